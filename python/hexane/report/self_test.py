"""A program whose single run tests Hexane's interface to the Neural Engine: rows of surfaces, ports by name, weights of
each layer, numbers. The results of the run tell the possible faults apart."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from hexane import _core
from hexane.graph import Array

# Names are not in alphabetical order, sizes differ, and rows have 10 bytes, so that confusions show in the results.
MIL = """program(1.3)
[buildInfo = dict<string, string>({{{{"coremlc-component-MIL", "3510.2.1"}}, {{"coremlc-version", "3505.4.1"}}}})]
{{
    func main<ios18>(tensor<fp16, [1, 4, 3, 5]> z, tensor<fp16, [1, 4, 1, 1]> a) {{
        tensor<int32, [2]> ones = const()[name = string("ones"), val = tensor<int32, [2]>([1, 1])];
        tensor<int32, [4]> zeros = const()[name = string("zeros"), val = tensor<int32, [4]>([0, 0, 0, 0])];
        string valid = const()[name = string("valid"), val = string("valid")];
        int32 one = const()[name = string("one"), val = int32(1)];
        tensor<fp16, [4, 4, 1, 1]> w1 = const()[name = string("w1"), val = tensor<fp16, [4, 4, 1, 1]>(\
BLOBFILE(path = string("@model_path/weights/weights.bin"), offset = uint64({first})))];
        tensor<fp16, [4, 4, 1, 1]> w2 = const()[name = string("w2"), val = tensor<fp16, [4, 4, 1, 1]>(\
BLOBFILE(path = string("@model_path/weights/weights.bin"), offset = uint64({second})))];
        tensor<fp16, [1, 4, 3, 5]> once = conv(dilations = ones, groups = one, pad = zeros, pad_type = valid, strides = ones, \
weight = w1, x = z)[name = string("once")];
        tensor<fp16, [1, 4, 3, 5]> twice = conv(dilations = ones, groups = one, pad = zeros, pad_type = valid, strides = ones, \
weight = w2, x = once)[name = string("twice")];
        tensor<fp16, [1, 4, 3, 5]> sum = add(x = twice, y = a)[name = string("sum")];
        tensor<int32, [1]> width = const()[name = string("width"), val = tensor<int32, [1]>([3])];
        tensor<fp16, [1, 4, 3, 1]> largest = reduce_max(axes = width, keep_dims = bool(true), x = z)[name = string("largest")];
    }} -> (sum, largest);
}}
"""  # noqa: E501
FIRST, SECOND = (1, 2, 3, 4), (8, 4, 2, 1)  # The diagonals of the two weights.
SHAPES = {"z": (1, 4, 3, 5), "a": (1, 4, 1, 1)}


@dataclass(frozen=True, slots=True)
class Check:
    """One tested property. need: the expected finding; "" if any finding is right."""

    kind: str
    name: str
    found: str
    need: str

    @property
    def ok(self) -> bool:
        return self.need in ("", self.found)


@cache
def program() -> tuple[str, bytes]:
    """Returns the MIL text, and its weight file."""
    arrays = [("fp16", np.diag(d).astype(np.float16).reshape(4, 4, 1, 1)) for d in (FIRST, SECOND)]
    weights, (first, second) = _core.blob_write(arrays)
    return MIL.format(first=first, second=second), weights


def self_test(setup: _core.AneSetup, least_surface_bytes: int, qos: int) -> list[Check]:
    """Returns the checks of a run. Raises DeviceError if the program cannot be compiled, loaded or run."""
    text, weights = program()
    # Whole numbers that fp16 holds exactly. All elements of z differ.
    given = {name: np.arange(1, 1 + np.prod(shape), dtype=np.float16).reshape(shape) for name, shape in SHAPES.items()}
    inputs, outputs, results = _core.run_on_ane(
        setup,
        text,
        {"weights/weights.bin": weights},
        given,
        least_surface_bytes=least_surface_bytes,
        qos=qos,
    )
    ports = [
        Check("port", port["name"], f"{port['dtype']}{list(port['shape'])}, strides {list(port['strides'])}", "")
        for port in (*inputs, *outputs)
    ]
    return [*ports, *_numbers(given["z"], given["a"], results)]


def _numbers(z: Array, a: Array, results: dict[str, Any]) -> list[Check]:
    first, second = (np.array(d, np.float16).reshape(1, 4, 1, 1) for d in (FIRST, SECOND))
    total, largest = results["sum"], results["largest"]
    causes = {
        "each layer has its own weights": z * first * second + a,
        "all layers read the first weights": z * first * first + a,
        "all layers read the last weights": z * second * second + a,
    }
    cause = next((name for name, array in causes.items() if np.array_equal(array, total)), "other numbers")
    rows = "rows are where the strides say"
    return [
        Check("self-test", "weights", cause, "each layer has its own weights"),
        Check(
            "self-test",
            "rows",
            rows if np.array_equal(largest, z.max(axis=3, keepdims=True)) else f"{largest.ravel().tolist()}",
            rows,
        ),
    ]
