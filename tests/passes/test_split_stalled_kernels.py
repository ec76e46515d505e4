"""Layers whose weights the DMA of a core would read slowly are cut along their output channels (constraint 35)."""

from collections.abc import Callable

import numpy as np
import pytest

import hexane as hx
from hexane.emit.coreml.prepare import in_precision
from hexane.emit.mil import emit_mil
from hexane.ops.reference import run_reference
from hexane.passes.layout.split_stalled_kernels import split_stalled_kernels, stalls
from hexane.targets.query import load_chip

M4 = load_chip("M4")
KIB, MIB = 1 << 10, 1 << 20
INNER, COLUMNS = 4096, 2048  # 1 MiB in each of 16 cores
RNG = np.random.default_rng(3)
WEIGHTS = RNG.integers(-2, 3, (INNER, COLUMNS)).astype(np.float16)
BIAS = RNG.integers(-2, 3, COLUMNS).astype(np.float16)


@pytest.mark.parametrize(
    ("share", "slow"),
    [
        (0, False),
        (16 * KIB, False),  # a kernel of less than a lap is never a lap behind
        (MIB - 16 * KIB, False),
        (MIB - 15 * KIB, True),
        (MIB, True),
        (MIB + 15 * KIB, True),
        (MIB + 16 * KIB, False),
        (MIB + MIB // 2, False),
        (7 * MIB, True),
    ],
)
def test_shares_near_multiples_of_a_mebibyte_stall(share: int, slow: bool) -> None:
    """The ring has 0x4000 lines of 64 bytes, and speed recovers within 256 lines of a multiple."""
    assert stalls(share) is slow


def rows() -> hx.Tensor:
    return hx.input("x", (1, 3, INNER), "fp16")


def image(size: int = 1) -> hx.Tensor:
    return hx.input("x", (1, INNER, 1, size), "fp16")


CUT: dict[str, Callable[[], hx.Tensor]] = {
    "matmul": lambda: rows() @ WEIGHTS,
    "matmul with a bias": lambda: hx.matmul(rows(), WEIGHTS, BIAS),
    "transposed": lambda: hx.matmul(rows(), WEIGHTS.T.copy(), transpose_y=True),
    "linear": lambda: hx.linear(rows(), WEIGHTS.T.copy(), BIAS),
    "conv": lambda: hx.conv(image(5), WEIGHTS.T.reshape(COLUMNS, INNER, 1, 1).copy(), BIAS),
    "two mebibytes": lambda: rows() @ np.concatenate([WEIGHTS, WEIGHTS[::-1]], axis=1),
}
KEPT: dict[str, Callable[[], hx.Tensor]] = {
    "another share": lambda: rows() @ WEIGHTS[:, :1900].copy(),
    "in fp32": lambda: hx.input("x", (3, INNER)) @ WEIGHTS.astype(np.float32),
    "computed": lambda: rows() @ hx.input("w", (INNER, COLUMNS), "fp16"),
    "groups": lambda: hx.conv(image(5), WEIGHTS.T.reshape(2 * COLUMNS, INNER // 2, 1, 1).copy(), groups=2),
    "a computed bias": lambda: hx.matmul(rows(), WEIGHTS, hx.input("b", (COLUMNS,), "fp16")),
}


@pytest.mark.parametrize("case", CUT)
def test_the_layer_is_cut_and_computes_the_same(case: str) -> None:
    graph = hx.graph(CUT[case]())
    cut = split_stalled_kernels(graph, M4)
    parts = [node for node in cut.nodes if node.op in ("matmul", "linear", "conv")]
    assert len(parts) > 1
    for node in parts:
        count = node.types[0].shape[1 if node.op == "conv" else -1]
        assert not stalls(-(-count // 16) * INNER * 2)
    x = {v.node.attrs["name"]: RNG.integers(-2, 3, v.shape).astype(np.float16) for v in graph.inputs}
    want, got = (run_reference(one, x) for one in (graph, cut))
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)
    assert [d.verdict for d in cut.decisions if d.stage == "split_stalled_kernels"] == ["split"]


@pytest.mark.parametrize("case", KEPT)
def test_other_layers_stay(case: str) -> None:
    graph = hx.graph(KEPT[case]())
    assert split_stalled_kernels(graph, M4) is graph


def test_chips_that_hold_kernels_in_each_core_get_small_pieces_anyway() -> None:
    graph = hx.graph(CUT["conv"]())
    assert split_stalled_kernels(graph, load_chip("M1")) is graph


def test_programs_and_packages_have_the_parts() -> None:
    model = hx.graph(hx.input("x", (1, 3, INNER)) @ WEIGHTS.astype(np.float32))
    assert emit_mil(model, M4).text.count(" = conv(") == 2
    package = in_precision(model, "fp16")
    assert sum(node.op == "matmul" for node in package.nodes) == 2
    assert in_precision(model, "fp32").ops & {"concat"} == set()
