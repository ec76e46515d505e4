"""Every kernel row on the cases of the op records: the steps that a case becomes, in every dtype a row takes."""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.support.cases import CASES, arrays, feeds, graph_of
from tests.support.traced import traced

import hexane as hx
from hexane import _core
from hexane.compression.compress import compress
from hexane.dtypes import BF16
from hexane.errors import Error
from hexane.graph import Graph
from hexane.program.attrs import Strings, pack
from hexane.targets import load_target

Array = NDArray[Any]
Box = list[tuple[int, int]]

DTYPES = {
    "bool": np.bool_, "fp16": np.float16, "bf16": BF16.numpy, "fp32": np.float32, "fp64": np.float64,
    "8b": np.int8, "16b": np.int16, "32b": np.int32, "64b": np.int64,
}  # fmt: skip
ROWS: dict[str, list[dict[str, Any]]] = {}
for _row in _core.kernels():
    ROWS.setdefault(_row["name"], []).append(dict(_row))


@dataclass(frozen=True)
class KernelCase:
    """A row of a kernel and operands for it; outputs are what a whole run gives."""

    row: Mapping[str, Any]
    inputs: list[Array | None]
    outputs: list[Array]
    attrs: bytes
    strings: bytes

    @property
    def name(self) -> str:
        return self.row["name"]

    def cuts(self) -> list[tuple[int, int, int]]:
        return _core.kernel_cuts(self.name, "ieee", self.inputs, self.outputs, self.attrs, self.strings)

    def needs(self, input: int, box: Box) -> Box:
        described = [
            None if a is None else a if a.dtype.name == "bfloat16" else (_name(a.dtype), a.shape, a.strides)
            for a in self.inputs
        ]
        return _core.kernel_needs(self.name, "ieee", described, self.outputs, self.attrs, self.strings, input, box)

    def run(self, inputs: list[Array | None]) -> list[Array]:
        outputs = [np.full_like(a, _filler(a)) for a in self.outputs]
        _core.run_kernel(self.name, inputs, outputs, self.attrs, self.strings)
        return outputs

    def run_part(
        self, inputs: list[Array | None], outputs: list[Array], part: tuple[int, int, int], rings: dict[int, int]
    ) -> None:
        _core.run_part(self.name, inputs, outputs, self.attrs, self.strings, *part, rings)


@cache
def _name(dtype: "np.dtype[Any]") -> str:
    return hx.const(np.zeros(0, dtype)).dtype.name


def _filler(array: Array) -> Any:
    return True if array.dtype == np.bool_ else 85


def whole(shape: tuple[int, ...]) -> Box:
    return [(0, n) for n in shape]


def part(array: Array, box: Box) -> Array:
    return array[(*(slice(*range) for range in box), ...)]


def poisoned_outside(array: Array, box: Box) -> Array:
    """A copy whose elements outside of the box are NaN, all bits set, or the other truth value."""
    if array.dtype == np.bool_:
        result = np.array(~array)
    else:
        result = np.full(array.nbytes, 0xFF, np.uint8).view(array.dtype).reshape(array.shape)
    part(result, box)[...] = part(array, box)
    return result


@cache
def kernel_cases() -> tuple[KernelCase, ...]:
    """Each distinct step of all cases, in every row of its kernel that takes it."""
    seen: set[tuple[Any, ...]] = set()
    found: list[KernelCase] = []
    for graph, given_to_it, dtype in (*((*one, "") for one in _examples()), *((*one, "bf16") for one in _in_bf16())):
        net = hx.compile(graph, threads=1, dtype=dtype)
        for step, given, outputs in traced(net, given_to_it):
            strings = Strings()
            attrs = pack(ROWS[step.kernel][0]["attrs"], step.attrs, strings)
            shapes = tuple(None if a is None else (a.shape, a.dtype.name) for a in (*given, *outputs))
            key = (step.kernel, attrs, strings.tobytes(), shapes)
            if key in seen or step.kernel == "write_slice":  # which writes a state in place
                continue
            seen.add(key)
            for row in ROWS[step.kernel]:
                if case := _of_row(row, given, outputs, attrs, strings.tobytes()):
                    found.append(case)
    return tuple(found)


def _in_bf16() -> Iterator[tuple[Graph, Mapping[str, Array]]]:
    """Attention with a mask of each dtype."""
    rng = np.random.default_rng(4)
    shapes = {"q": (2, 64, 5), "k": (2, 192, 5), "v": (2, 192, 3)}
    given: dict[str, Array] = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    for mask in (rng.standard_normal((64, 192)).astype(np.float32), rng.random((64, 192)) > 0.5):
        ports = [hx.input(name, shape) for name, shape in shapes.items()]
        seen = hx.input("mask", mask.shape, str(mask.dtype).replace("float32", "fp32"))
        yield hx.graph(hx.scaled_dot_product_attention(*ports, seen)), {**given, "mask": mask}


def _examples() -> Iterator[tuple[Graph, Mapping[str, Array]]]:
    """The cases, gradients that have kernels of their own, and products with weights of few bits or many zeros."""
    for op, i in CASES:
        if op.kernel is None and op.expand is None:
            continue
        inputs = arrays(op, op.cases[i])
        graph = graph_of(op, op.cases[i], inputs)
        yield graph, feeds(graph, inputs)
    weight = hx.cast(hx.const(np.linspace(-1, 1, 1 << 16).reshape(256, 256).astype(BF16.numpy)), dtype="fp32")
    x = np.random.default_rng(3).standard_normal((2, 24, 256)).astype(np.float32)
    yield hx.graph(hx.linear(hx.input("x", x.shape), weight)), {"x": x}
    logits, labels = hx.input("x", (2, 3, 17)), hx.input("labels", (2, 3), "int32")
    rng = np.random.default_rng(2)
    given = {"x": rng.standard_normal((2, 3, 17)).astype(np.float32), "labels": rng.integers(0, 17, (2, 3), np.int32)}
    yield hx.graph(hx.grad(hx.cross_entropy(logits, labels), [logits])), given
    heads = {name: rng.standard_normal((2, 3, 37, 8)).astype(np.float32) for name in ("q", "k", "v")}
    heads["mask"] = rng.standard_normal((2, 3, 1, 37)).astype(np.float32)
    operands = [hx.input(name, a.shape) for name, a in heads.items()]
    y = hx.scaled_dot_product_attention(*operands)
    yield hx.graph(hx.grad(hx.reduce_sum(y * y), operands[:3])), heads
    rows = {name: rng.standard_normal((2, 9, 37)).astype(np.float32) for name in ("x", "g")}
    gamma, weighted = hx.input("gamma", (37,)), hx.input("g", (2, 9, 37))
    x = hx.input("x", (2, 9, 37))
    loss = hx.reduce_sum(hx.rms_norm(x, gamma) * weighted)
    yield hx.graph(hx.grad(loss, [x, gamma])), {**rows, "gamma": rows["x"][0, 0]}
    batch = {"x": rng.standard_normal((9, 70)).astype(np.float32)}
    w = hx.param("w", rng.standard_normal((70, 40)).astype(np.float32))
    yield (
        hx.train.step(hx.reduce_sum(hx.square(hx.input("x", (9, 70)) @ w)), [w], hx.train.sgd(0.1), accumulate=2),
        batch,
    )
    weight = rng.standard_normal((72, 60)).astype(np.float32)
    modes = (
        ("int8", (2, 9, 60)),
        ("blockwise4:b30", (7, 60)),
        ("palette4:g8", (1, 60)),
        ("palette6:g24", (3, 60)),
        ("palette2:v2", (3, 60)),
    )
    for mode, shape in modes:
        x = hx.input("x", shape)
        small = hx.graph({"y": hx.linear(x, weight, weight[:, 0].copy())})
        given = {"x": rng.standard_normal(shape).astype(np.float32)}
        yield compress(small, hx.Compression(mode), load_target("host")), given
    for mode, shape in (("int8", (2, 9, 60)), ("blockwise4:b30", (7, 60)), ("palette2:v2", (3, 60))):
        matrix = hx.const(weight)  # read transposed, and as it is
        x = hx.input("x", shape)
        small = hx.graph({"y": hx.matmul(hx.linear(x, matrix), matrix) + weight[0]})
        given = {"x": rng.standard_normal(shape).astype(np.float32)}
        yield compress(small, hx.Compression(mode), load_target("host")), given
    halved = np.where(weight < 0.3, np.float32(0), weight)
    for shape in ((2, 9, 60), (7, 60), (1, 60)):
        graph = hx.graph({"y": hx.linear(hx.input("x", shape), halved, weight[:, 0].copy())})
        yield graph, {"x": rng.standard_normal(shape).astype(np.float32)}
    windows = (
        ("int8", (2, 24, 9, 8), (24, 24, 3, 3), {"pad": 1}),
        ("blockwise4:b8", (1, 24, 30), (48, 24, 5), {"strides": 2, "dilations": 2}),
        ("palette4:g8", (1, 24, 9, 8), (24, 24, 3, 3), {"pad": (0, 1, 2, 0), "strides": (1, 2)}),
        ("palette4:v4", (1, 24, 9, 8), (24, 24, 3, 3), {"pad": 1}),
    )
    for shape, weights, window in (
        ((2, 24, 9, 8), (72, 24, 3, 3), {"pad": 1}),
        ((2, 70, 9, 8), (72, 70, 1, 1), {}),
        ((1, 24, 30), (48, 24, 5), {"strides": 2, "dilations": 2}),
    ):
        kernel = rng.standard_normal(weights).astype(np.float32)
        kernel[kernel < 0.3] = 0
        graph = hx.graph(hx.conv(hx.input("x", shape), kernel, kernel.reshape(len(kernel), -1)[:, 0].copy(), **window))
        yield graph, {"x": rng.standard_normal(shape).astype(np.float32)}
    for mode, shape, weights, window in windows:
        kernel = rng.standard_normal(weights).astype(np.float32)
        small = hx.graph(
            {"y": hx.conv(hx.input("x", shape), kernel, kernel.reshape(len(kernel), -1)[:, 0].copy(), **window)}
        )
        given = {"x": rng.standard_normal(shape).astype(np.float32)}
        yield compress(small, hx.Compression(mode), load_target("host")), given
    pieces = (("int8", "conv", (48, 24, 3, 3)), ("palette4:g8", "conv_transpose", (48, 24, 2, 3)),
              ("palette4:v2", "conv_transpose", (48, 24, 2, 3)))  # fmt: skip
    for mode, op, weights in pieces:
        x, kernel = hx.input("x", (1, 48, 5, 4)), rng.standard_normal(weights).astype(np.float32)
        small = hx.graph(hx.conv(x, kernel, groups=2) if op == "conv" else hx.conv_transpose(x, kernel))
        given = {"x": rng.standard_normal(x.shape).astype(np.float32)}
        yield compress(small, hx.Compression(mode), load_target("host")), given


def _of_row(
    row: Mapping[str, Any], inputs: list[Array | None], outputs: list[Array], attrs: bytes, strings: bytes
) -> KernelCase | None:
    left, _, right = row["dtypes"].partition("->")
    try:
        given = _retyped(left.split(","), inputs)
        case = KernelCase(
            row, given, [a for a in _retyped(right.split(","), list(outputs)) if a is not None], attrs, strings
        )
        case.cuts()
        return replace(case, outputs=case.run(given))
    except Error:
        return None  # the row does not take such a call


def _retyped(tokens: list[str], operands: list[Array | None]) -> list[Array | None]:
    result: list[Array | None] = []
    for i, array in enumerate(operands):
        token = tokens[min(i, len(tokens) - 1)].removesuffix("...")
        if array is None or token == "*" or (token.endswith("b") and token == f"{8 * array.itemsize}b"):
            result.append(array)
        else:
            with np.errstate(all="ignore"):
                result.append(np.ascontiguousarray(array.astype(DTYPES.get(token, token))).reshape(array.shape))
    return result


def boxes(case: KernelCase) -> Iterator[Box]:
    """Boxes of the first output: a few ranges along each axis, and one that is cut along all."""
    shape = case.outputs[0].shape
    for axis, n in enumerate(shape):
        for begin, end in {(0, 1), (n // 2, n // 2 + 1), (n - 1, n), (1, n), (n // 3, n // 2 + 1)}:
            if 0 <= begin < end <= n and end - begin < n:
                yield [*whole(shape[:axis]), (begin, end), *whole(shape[axis + 1 :])]
    if case.outputs[0].size > 1:
        seed = zlib.crc32(case.name.encode())
        rng = np.random.default_rng(seed)
        begins = [int(rng.integers(0, n)) for n in shape]
        yield [(b, int(rng.integers(b + 1, n + 1))) for b, n in zip(begins, shape, strict=True)]


def parts(case: KernelCase) -> Iterator[tuple[int, int, int]]:
    """Ranges along every axis that the kernel can be cut along: the first, a middle and the last grain."""
    for axis, extent, grain in case.cuts():
        grains = -(-extent // grain)
        for i in sorted({0, grains // 2, grains - 1}):
            yield axis, i * grain, min((i + 1) * grain, extent)
