"""sparse_matmul: the bits of a product with the whole weight, and its errors."""

from typing import Any

import numpy as np
import pytest
from tests.support.kernels import run, run_every_cut, same_bits

import hexane as hx
from hexane.errors import Error
from hexane.graph import Graph
from hexane.ops.records.sparse_product import END, sparse, whole
from instruction_sets import assert_passes_on, on_others

SLOTS = {
    "none": (),
    "in registers": (("add", 0, 0, 4), ("relu", 0, 0, -1)),
    "in memory": (("silu", 0, 0, -1), ("add", 0, 0, 4)),
}
# Columns and terms: of parts of a mask, of several masks, and of long sums.
SHAPES = [(1, 1), (64, 0), (0, 5), (3, 70), (16, 33), (63, 40), (64, 40), (70, 513), (130, 1537), (200, 9)]


def pruned(rng: np.random.Generator, columns: int, terms: int, zeros: float) -> np.ndarray:
    weight = rng.standard_normal((columns, terms)).astype(np.float32)
    weight[rng.random(weight.shape) < zeros] = 0
    weight[rng.random(weight.shape) < 0.02] = -0.0
    return weight


def multiply(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, extra: np.ndarray, slots: Any, transposed: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """By sparse_matmul, cut in every way, and by matmul."""
    attrs = {"transpose_x": int(transposed), "epilogue": slots}
    got, want = np.empty_like(extra), np.empty_like(extra)
    masks, numbers = sparse(weight)
    again = np.empty_like(extra)
    run("sparse_matmul", [x, masks, numbers, bias, extra], [again], {**attrs, "columns": len(weight)}, constants=[1, 2])
    run_every_cut("sparse_matmul", [x, masks, numbers, bias, extra], [got], columns=len(weight), **attrs)
    assert same_bits(got, again)
    shifted = tuple((op, a, b, operand - (operand > 0)) for op, a, b, operand in slots)
    run("matmul", [x, weight, bias, extra], [want], {**attrs, "transpose_y": 1, "epilogue": shifted}, constants=[1])
    return got, want


@pytest.mark.parametrize("zeros", [0.0, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_has_the_bits_of_the_whole_weight(shape: tuple[int, int], zeros: float) -> None:
    rng = np.random.default_rng(shape[0] + 10)
    weight = pruned(rng, *shape, zeros)
    for rows in (1, 2, 5, 13):
        x, extra = (rng.standard_normal((rows, n)).astype(np.float32) for n in (shape[1], shape[0]))
        got, want = multiply(x, weight, extra[0].copy(), extra, SLOTS["in registers"])
        assert same_bits(got, want)


@pytest.mark.parametrize("slots", SLOTS)
@pytest.mark.parametrize("rows", range(1, 41))
def test_rows_have_the_bits_of_the_whole_weight(rows: int, slots: str) -> None:
    rng = np.random.default_rng(rows)
    weight = pruned(rng, 150, 96, 0.6)
    x, extra = (rng.standard_normal((rows, n)).astype(np.float32) for n in (96, 150))
    got, want = multiply(x, weight, None, extra, SLOTS[slots])
    assert same_bits(got, want)


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_the_bits_of_strided_and_transposed_operands(rows: int) -> None:
    rng = np.random.default_rng(rows)
    weight = pruned(rng, 100, 60, 0.5)
    bias, extra = rng.standard_normal(100).astype(np.float32), rng.standard_normal((2, rows, 100)).astype(np.float32)
    wide = rng.standard_normal((2, rows, 2, 60)).astype(np.float32)[:, :, 1]
    assert same_bits(*multiply(wide, weight, bias, extra, SLOTS["in registers"]))
    transposed = rng.standard_normal((2, 60, rows)).astype(np.float32)
    assert same_bits(*multiply(transposed, weight, bias, extra, SLOTS["in memory"], transposed=True))


@pytest.mark.parametrize("rows", [1, 4, 17])
def test_a_zero_of_the_weight_meets_infinities_and_nan(rows: int) -> None:
    """As the whole weight does: 0 times infinity is NaN."""
    rng = np.random.default_rng(rows)
    weight = pruned(rng, 70, 64, 0.7)
    x, extra = (rng.standard_normal((rows, n)).astype(np.float32) for n in (64, 70))
    x[0, 3], x[-1, 9], x[rows // 2, 11] = np.inf, -np.inf, -0.0
    weight[5] = 0
    got, want = multiply(x, weight, None, extra, ())
    assert np.isnan(want).any()
    np.testing.assert_array_equal(got, want)


def test_what_is_stored_gives_the_weight_again() -> None:
    rng = np.random.default_rng(0)
    for columns, terms in SHAPES:
        weight = pruned(rng, columns, terms, 0.5)
        masks, numbers = sparse(weight)
        assert len(numbers) == np.count_nonzero(weight.view(np.uint32)) + END
        assert same_bits(whole(masks, numbers, columns), weight)


def test_the_reference_is_a_product_of_the_whole_weight() -> None:
    op = hx.ops.OPS["cpu.sparse_matmul"]
    rng = np.random.default_rng(0)
    weight, x = pruned(rng, 70, 40, 0.5), rng.standard_normal((3, 40)).astype(np.float32)
    assert op.ref is not None
    y = op.ref(x, *sparse(weight), weight[:, 0], columns=70, transpose_x=False)
    np.testing.assert_allclose(y, x @ weight.T + weight[:, 0], rtol=1e-5, atol=1e-5)


def operands(**changed: Any) -> tuple[list[np.ndarray], dict[str, Any]]:
    masks, numbers = sparse(np.eye(8, 6, dtype=np.float32))
    found = {"x": np.ones((2, 6), np.float32), "masks": masks, "numbers": numbers, "columns": 8, "transpose_x": 0,
             "epilogue": ()} | changed  # fmt: skip
    return [found.pop(name) for name in ("x", "masks", "numbers")], found


def beyond() -> np.ndarray:
    masks = operands()[0][1].copy()
    masks[0, 5, 1] = 1  # of column 8
    return masks


def one_more() -> np.ndarray:
    masks = operands()[0][1].copy()
    masks[0, 0, 0] |= 2
    return masks


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"numbers": np.zeros(5 + END, np.float32)}, "numbers: got 21, need 22, one for each bit of the masks and 16 more"),
    ({"numbers": np.zeros(7 + END, np.float32)}, "numbers: got 23, need 22"),
    ({"numbers": np.zeros(0, np.float32)}, "numbers: got 0, need 22"),
    ({"masks": one_more()}, "numbers: got 22, need 23"),
    ({"masks": beyond(), "numbers": np.zeros(7 + END, np.float32)}, "masks: got a bit of a column after the last one"),
    ({"masks": np.zeros((1, 5, 8), np.uint8)}, r"masks: got \(1, 5, 8\), need \(1, 6, 8\) for 8 columns"),
    ({"masks": np.zeros((1, 6, 9), np.uint8)}, r"masks: got \(1, 6, 9\)"),
    ({"masks": np.zeros((2, 6, 8), np.uint8)}, r"masks: got \(2, 6, 8\)"),
    ({"masks": np.zeros((6, 8), np.uint8)}, "ranks: got 2, 2 and 1, need at least 2, 3 and 1"),
    ({"numbers": np.zeros((1, 22), np.float32)}, "ranks: got 2, 3 and 2"),
    ({"columns": -1}, "columns: got -1, need 0 or more"),
    ({"columns": 1 << 62}, "sizes|columns|got"),
    ({"columns": 65}, r"need \(2, 6, 8\) for 65 columns"),
    ({"columns": 9}, "out"),
]


@pytest.mark.parametrize("constants", [[1, 2], []], ids=["constant", "changing"])
@pytest.mark.parametrize(("changed", "told"), WRONG)
def test_operands_that_do_not_fit_are_refused(changed: dict[str, Any], told: str, constants: list[int]) -> None:
    """Before the product, or when it is asked for where the weight is no constant."""
    arrays, attrs = operands(**changed)
    with pytest.raises(Error, match=told):
        run("sparse_matmul", arrays, [np.zeros((2, 8), np.float32)], attrs, constants=constants)


def network(rng: np.random.Generator) -> tuple[Graph, np.ndarray]:
    """Pruned products among other ops."""
    values = [hx.input("x", (int(rng.integers(1, 30)), 96))]

    def weight(columns: int, terms: int) -> np.ndarray:
        return pruned(rng, columns, terms, rng.choice([0.0, 0.55, 0.9]))

    ways = [
        lambda x: hx.linear(x, weight(96, 96)),
        lambda x: hx.relu(hx.linear(x, weight(96, 96), weight(96, 1)[:, 0])) + x,
        lambda x: hx.silu(x @ weight(96, 96)),
        lambda x: hx.transpose(hx.matmul(hx.transpose(x, perm=(1, 0)), weight(x.shape[0], x.shape[0]))),
        lambda x: hx.linear(x, weight(96, 96)) * weight(96, 1)[:, 0],
        lambda x: hx.linear(hx.linear(x, weight(200, 96)), weight(96, 200)),
        lambda x: hx.softmax(hx.reshape(hx.linear(hx.reshape(x, shape=(1, 1, -1)), weight(96, x.type.size)), shape=(1, 96)), axis=-1)
        + x,
    ]  # fmt: skip
    for way in rng.integers(0, len(ways), 5):
        values.append(ways[way](values[-1]))
    x = rng.standard_normal(values[0].shape).astype(np.float32)
    return hx.graph({"y": values[-1], "z": values[2]}), x


@pytest.mark.parametrize("seed", range(20))
def test_random_networks_have_the_bits_of_whole_weights(seed: int) -> None:
    graph, x = network(np.random.default_rng(seed))
    want = hx.compile(graph, threads=1, memory=hx.Memory(whole_weights=True))
    assert "sparse_matmul" not in [step["kernel"] for step in want.steps]
    net = hx.compile(graph, threads=1 + seed % 2, memory=hx.Memory(rows=2) if seed % 3 == 2 else hx.Memory())
    for name, array in want(x).items():
        np.testing.assert_array_equal(net(x)[name], array)


def test_many_rows_have_the_bits_of_the_whole_weight() -> None:
    rng = np.random.default_rng(0)
    weight = pruned(rng, 150, 600, 0.6)
    x, extra = (rng.standard_normal((100, n)).astype(np.float32) for n in (600, 150))
    assert same_bits(*multiply(x, weight, None, extra, SLOTS["in registers"]))


def of_product(op: str, size: int) -> hx.Tensor:
    """A linear or a convolution of windows 1x1 or 3x3, from `size` channels to as many, with seeded weights."""
    rng = np.random.default_rng(0)
    if op == "linear":
        return hx.linear(hx.input("x", (1, size)), rng.standard_normal((size, size)).astype(np.float32))
    window = (3, 3) if op == "3x3" else (1, 1)
    return hx.conv(hx.input("x", (1, size, 4, 4)), rng.standard_normal((size, size, *window)).astype(np.float32))


@pytest.mark.parametrize(("mode", "share"), [("sparse:0.5", 0.54), ("sparse:0.9", 0.14), ("none", 1.0)])
@pytest.mark.parametrize("op", ["linear", "1x1", "3x3"])
def test_a_plan_and_its_memory_leave_out_the_zeros(op: str, mode: str, share: float, tmp_path: Any) -> None:
    graph = hx.graph(of_product(op, 384))
    x = np.random.default_rng(1).standard_normal(graph.inputs[0].shape).astype(np.float32)
    nets = [hx.compile(graph, compress=mode, memory=hx.Memory(whole_weights=w)) for w in (True, False)]
    sizes = []
    for i, net in enumerate(nets):
        net.save(tmp_path / f"{i}.hxp")
        sizes.append((tmp_path / f"{i}.hxp").stat().st_size)
    assert sizes[1] <= share * sizes[0]
    assert nets[1].memory["weights"] <= share * nets[0].memory["weights"]
    np.testing.assert_array_equal(hx.load(tmp_path / "1.hxp")(x), nets[0](x))
    said = [str(d) for d in nets[1].program.decisions if d.stage == "keep_sparse"]
    assert len(said) == (mode != "none")


@pytest.mark.parametrize("options", [{"dtype": "fp16"}, {"memory": hx.Memory(runtime="c99")}], ids=["fp16", "c99"])
@pytest.mark.parametrize("op", ["linear", "1x1", "3x3"])
def test_weights_in_fp16_and_of_the_c99_runtime_are_whole(op: str, options: dict[str, Any]) -> None:
    net = hx.compile(hx.graph(of_product(op, 96)), compress="sparse:0.6", **options)
    assert not [step["kernel"] for step in net.steps if "sparse" in step["kernel"]]


def test_decisions_say_which_pruned_weights_lose_their_zeros() -> None:
    rng = np.random.default_rng(0)
    x = hx.input("x", (1, 64, 8, 8))
    y = hx.conv(x, rng.standard_normal((64, 64, 3, 3)).astype(np.float32), pad=1)
    y = hx.conv(y, rng.standard_normal((64, 32, 3, 3)).astype(np.float32), pad=1, groups=2)
    y = hx.linear(hx.reshape(y, shape=(1, 4096)), rng.standard_normal((8, 4096)).astype(np.float32))
    net = hx.compile(y, compress="sparse:0.5")
    said = [d.reason.split("; ")[-1] for d in net.program.decisions if d.stage == "compress"]
    assert said == [
        "stored without its zeros where this CPU computes in fp32",
        "folds on this CPU: no memory gained",
        "stored without its zeros where this CPU computes in fp32",
    ]


@on_others
def test_each_instruction_set_has_the_bits_of_the_whole_weight(name: str) -> None:
    assert_passes_on(name, "(bits_of or infinities) and not instruction_set", [__file__])
