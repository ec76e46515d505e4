"""What Core ML is known to do with a package: each rule finds its case, and nothing in a package without one."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from coreml_files import package
from hexane.importers.coreml.model import open_model
from hexane.importers.coreml.opsets import FIRST
from hexane.importers.coreml.schema import messages
from hexane.report.package_rules import find_package_rules
from hexane.targets.rules import package_rules

FP16, FP32, INT8, INT32 = 10, 11, 21, 23


class Written:
    """A program written op after op."""

    def __init__(self, opset: str = "CoreML8") -> None:
        self.spec = messages()["Model"](specificationVersion=9)
        self.function = self.spec.mlProgram.functions["main"]
        self.function.opset = opset
        self.block = self.function.block_specializations[opset]

    def typed(self, kind: Any, shape: Any, dtype: int) -> None:
        kind.dataType, kind.rank = dtype, len(shape)
        for d in shape:
            if d is None:
                kind.dimensions.add().unknown.SetInParent()
            else:
                kind.dimensions.add().constant.size = d

    def input(self, name: str, shape: Any, dtype: int = FP16, described: bool = True) -> None:
        self.typed(self.function.inputs.add(name=name).type.tensorType, shape, dtype)
        if described:
            array = self.spec.description.input.add(name=name).type.multiArrayType
            array.dataType = {FP16: 65552, FP32: 65568, INT8: 131080, INT32: 131104}[dtype]
            array.shape.extend(d or 4 for d in shape)

    def state(self, name: str, shape: Any, dtype: int = FP16) -> None:
        kind = self.function.inputs.add(name=name).type.stateType.wrappedType.tensorType
        self.typed(kind, shape, dtype)

    def op(self, op: str, shape: Any, dtype: int = FP16, name: str = "y", **inputs: Any) -> None:
        operation = self.block.operations.add(type=op)
        for argument, given in inputs.items():
            binding = operation.inputs[argument].arguments.add()
            if isinstance(given, str) and not given.startswith("'"):
                binding.name = given
            else:
                self.value(binding.value, given)
        self.typed(operation.outputs.add(name=name).type.tensorType, shape, dtype)
        label = operation.attributes["name"]
        label.type.tensorType.dataType = 2
        label.immediateValue.tensor.strings.values.append(name)

    def value(self, value: Any, given: Any) -> None:
        if isinstance(given, str):
            value.type.tensorType.dataType = 2
            value.immediateValue.tensor.strings.values.append(given[1:])
            return
        array = np.asarray(given)
        dtype = {"float16": FP16, "float32": FP32, "int64": INT32, "int32": INT32}[array.dtype.name]
        self.typed(value.type.tensorType, array.shape, dtype)
        if dtype == FP16:
            value.immediateValue.tensor.bytes.values = array.tobytes()
        elif dtype == FP32:
            value.immediateValue.tensor.floats.values.extend(array.reshape(-1).tolist())
        else:
            value.immediateValue.tensor.ints.values.extend(array.reshape(-1).tolist())

    def found(self, folder: Path) -> dict[str, str]:
        """The texts of the rules that are broken."""
        self.block.outputs.append("y")
        model = open_model(package(folder, self.spec.SerializeToString()))
        return {finding.rule: finding.wrong for finding in find_package_rules(model, "main")}


def infinite(w: Written) -> None:
    w.op("add", (2, 3), x="x", y=np.full((2, 3), -np.inf, np.float16))


def attention(batch: int) -> Callable[[Written], None]:
    def write(w: Written) -> None:
        w.input("q", (batch, 4, 8))
        w.op("matmul", (batch, 4, 4), name="s", x="q", y="q")
        w.op("add", (batch, 4, 4), name="m", x="s", y="s")
        w.op("softmax", (batch, 4, 4), name="p", x="m")
        w.op("matmul", (batch, 4, 8), x="p", y="q")

    return write


def ranged(w: Written) -> None:
    w.input("r", (2, None))
    for low, high in ((2, 2), (1, 9)):
        w.spec.description.input[1].type.multiArrayType.shapeRange.sizeRanges.add(lowerBound=low, upperBound=high)
    w.op("relu", (2, None), x="r")


def listed(count: int) -> Callable[[Written], None]:
    def write(w: Written) -> None:
        w.input("e", (2, None))
        shapes = w.spec.description.input[len(w.spec.description.input) - 1].type.multiArrayType.enumeratedShapes
        for i in range(count):
            shapes.shapes.add(shape=[2, 4 + i])
        w.op("relu", (2, None), x="e")

    return write


def both(w: Written) -> None:
    ranged(w)
    listed(3)(w)


def state(extent: int, dtype: int = FP16) -> Callable[[Written], None]:
    def write(w: Written) -> None:
        w.state("cache", (1, extent), dtype)
        w.op("read_state", (1, extent), dtype, input="cache")

    return write


def palette(w: Written) -> None:
    w.state("cache", (1, 32))
    w.op("constexpr_lut_to_dense", (2, 3), indices=np.zeros((2, 3), np.int32), lut=np.zeros((1, 1, 16, 1), np.float16))


def open_state(w: Written) -> None:
    ranged(w)
    w.state("cache", (1, 32))


def scaled(w: Written) -> None:
    w.op(
        "constexpr_lut_to_dense",
        (2, 3),
        name="l",
        indices=np.zeros((2, 3), np.int32),
        lut=np.zeros((1, 1, 4, 1), np.float16),
    )
    w.op("constexpr_blockwise_shift_scale", (2, 3), data="l", scale=np.ones((2, 1), np.float16))


CASES: dict[str, tuple[Callable[[Written], None], str]] = {
    "fp32_program": (lambda w: w.op("relu", (2, 3), FP32, x="x"), "1 of 1 ops compute in fp32"),
    "infinite_constants": (infinite, "infinite fp16 constants, 1: the converter turns what is beyond 65504"),
    "ranged_shapes": (ranged, "the engine runs the usual shape alone"),
    "many_shapes": (listed(130), "130 listed shapes, more than 128"),
    "mixed_shapes": (both, "one input has shapes in a range, another one a list"),
    "open_state": (open_state, "an input of open shapes next to a state"),
    "state_dtype": (state(32, FP32), "a state of fp32"),
    "state_rows": (state(33), "rows of 33, no multiple of 32"),
    "int8_ports": (lambda w: (w.input("i", (2, 3), INT8), w.op("cast", (2, 3), x="i"))[0], "an int8 input"),
    "scaled_palette": (scaled, "a palette with a scale"),
    "stateful_palette": (palette, "palettes of 16 numbers in a model with states"),
    "integer_weights": (scaled, "places layers with integer weights"),
    "affine_weights": (lambda w: w.op("constexpr_affine_dequantize", (2, 3)), "weights of 8 bits"),
    "same_lower_rows": (lambda w: w.op("max_pool", (1, 2, 3), x="x", pad_type="'same_lower"), "a pool of one spatial axis"),
    "several_squeezed": (lambda w: w.op("squeeze", (3,), x="x", axes=np.array([0, 1], np.int32)), "squeezing several axes"),
    "slice_update": (lambda w: w.op("slice_update", (2, 3), x="x"), "Apple's own tests leave it out"),
    "scatter": (lambda w: w.op("scatter_nd", (2, 3), data="x"), "indices outside"),
    "integer_linear": (lambda w: w.op("linear", (2, 3), INT32, x="x"), "a product of int32"),
    "gru_of_one": (lambda w: (w.input("s", (5, 1, 3)), w.op("gru", (5, 1, 3), x="s"))[0], "a batch of 1"),
    "half_prelu": (lambda w: w.op("prelu", (2, 3), x="x"), "prelu in fp16"),
    "attention_of_many": (attention(10), "softmax and matmul of 10 items"),
    "softplus_overflow": (lambda w: w.op("softplus", (2, 3), x="x"), "0 above 10.394"),
    "sum_of_exp_overflow": (lambda w: w.op("reduce_log_sum_exp", (2,), x="x"), "above 65504"),
}  # fmt: skip


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_finds_its_case(tmp_path: Path, rule: str) -> None:
    write, text = CASES[rule]
    written = Written()
    written.input("x", (2, 3))
    write(written)
    found = written.found(tmp_path)
    assert text in found[rule]


def test_every_rule_has_a_case() -> None:
    assert set(package_rules()) - set(CASES) == {"late_ops", "large_program"}


@pytest.mark.parametrize(
    ("write", "rule"), [(attention(9), "attention_of_many"), (state(64), "state_rows"), (listed(100), "many_shapes"),
                        (lambda w: w.op("squeeze", (3,), x="x", axes=np.array([0], np.int32)), "several_squeezed")]
)  # fmt: skip
def test_a_near_miss_is_fine(tmp_path: Path, write: Callable[[Written], None], rule: str) -> None:
    written = Written()
    written.input("x", (2, 3))
    write(written)
    assert rule not in written.found(tmp_path)


def test_an_op_that_is_newer_than_its_function_is_named(tmp_path: Path) -> None:
    written = Written("CoreML5")
    written.input("x", (2, 3))
    written.op("resize", (2, 3), x="x")
    assert written.found(tmp_path) == {
        "late_ops": "resize is an op of iOS 17, in a function for iOS 15: Core ML refuses to load it"
    }


def test_the_first_system_of_each_op_is_that_of_coremltools() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        apple = pytest.importorskip("coremltools", reason="coremltools is not installed")
    registry = apple.converters.mil.mil.ops.registry.SSAOpRegistry.core_ops
    for op, year in FIRST.items():
        if op != "write_state":  # coreml_update_state in the registry
            assert min(target.value for target in registry[op]) == apple.target[f"iOS{year}"].value, op


def test_a_package_in_fp16_breaks_no_rule(tmp_path: Path) -> None:
    x = hx.input("x", (1, 3, 8, 8))
    path = tmp_path / "net.mlpackage"
    hx.save_coreml(hx.graph(hx.relu(hx.conv(x, np.ones((4, 3, 3, 3), np.float32)))), path)
    assert find_package_rules(open_model(path), "main") == ()
