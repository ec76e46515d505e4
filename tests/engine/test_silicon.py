"""What chips returned, one number per seeded case: the relative distance of their result to fp64's. Equal bits give
equal distances.

Others measured the numbers with ANEForge's seeded cases: the linear ones on M1, M2 Max, M4 Max, M5 Pro and M6, which
agree; convolutions on M1, M2 Max and M4 Max, which compute them directly, and on M5 Pro and M6, which do by Winograd.
docs/numerics/published.md has the table.
"""

import re
from pathlib import Path

import numpy as np
import pytest
from test_engine_planar import NUMERICS, unary
from test_engine_products import engine_conv, engine_matmul

from engine_model import Array
from engine_planar import tree_sum, write
from kernels import run

LINEAR = {512: 0.00257800397023792, 1024: 0.005528352999597525, 2048: 0.012131920427695623}
CONV = {  # channels, batch, whether by Winograd
    (64, 8, False): 0.0003671660721200675,
    (128, 8, False): 0.00037520404231831836,
    (64, 16, False): 0.00036713452579315676,
    (128, 16, False): 0.000373510899298669,
    (64, 8, True): 0.0005162338465671137,
    (128, 8, True): 0.0005214500415248461,
    (64, 16, True): 0.0005134171098867606,
    (128, 16, True): 0.0005217801877804339,
}


def distance(got: Array, want: Array) -> float:
    return float(np.linalg.norm(got.astype(np.float64).ravel() - want.ravel()) / np.linalg.norm(want.ravel()))


@pytest.mark.parametrize("n", [512, 1024, pytest.param(2048, marks=pytest.mark.slow)])
def test_linear_returns_what_chips_returned(n: int) -> None:
    rng = np.random.default_rng(0)
    x, w = ((rng.standard_normal((n, n)).astype(np.float32) / np.float32(np.sqrt(n))) for _ in range(2))
    got = engine_matmul(x[:256].astype(np.float16), np.ascontiguousarray(w.T).astype(np.float16), constants=[1])
    assert distance(got, x[:256].astype(np.float64) @ w.astype(np.float64).T) == pytest.approx(LINEAR[n], rel=1e-12)


@pytest.mark.parametrize(
    ("channels", "batch", "winograd"),
    [case if case[:2] == (64, 8) else pytest.param(*case, marks=pytest.mark.slow) for case in CONV],
)
def test_convolution_returns_what_chips_returned(channels: int, batch: int, winograd: bool) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((batch, channels, 64, 64)).astype(np.float32)[0]
    w = np.float64(rng.standard_normal((channels, channels, 3, 3)).astype(np.float32)) * np.sqrt(2.0 / (channels * 9))
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1)))
    want = sum(
        np.tensordot(w[:, :, i, j].astype(np.float64), padded[:, i : i + 64, j : j + 64], 1)
        for i in range(3)
        for j in range(3)
    )
    image = np.ascontiguousarray(x.transpose(1, 2, 0)).astype(np.float16)[None]
    got = engine_conv(image, w.astype(np.float16), winograd=winograd, pads=[1, 1, 1, 1])[0].transpose(2, 0, 1)
    assert distance(got, np.asarray(want)) == pytest.approx(CONV[channels, batch, winograd], rel=1e-12)


RELU = 0.00020780100009547826
GELU = {0: 0.002399125839984865, 1: 0.0024010734360187464}  # M1, M2 Max, M6
GELU_HERE = {0: 0.0023978, 1: 0.0023998}


def activation_rows(which: int) -> Array:
    """The first or second draw of the cases of activations."""
    rng = np.random.default_rng(11)
    return [rng.standard_normal((rows, 4096)).astype(np.float32) for rows in (256, 2048)][which]


def test_relu_returns_what_chips_returned() -> None:
    x = activation_rows(0).astype(np.float64)
    assert distance(unary("relu", x.astype(np.float16)), np.maximum(x, 0)) == pytest.approx(RELU, rel=1e-12)


@pytest.mark.parametrize("which", GELU)
def test_gelu_is_near_what_chips_returned(which: int) -> None:
    x = activation_rows(which).astype(np.float64)
    want = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    got = distance(unary("gelu", x.astype(np.float16)), want)
    assert got == pytest.approx(GELU_HERE[which], rel=1e-4)
    assert got == pytest.approx(GELU[which], rel=1e-3)


def engine(op: str, inputs: list[Array], attrs: dict[str, object]) -> Array:
    shape = inputs[0].shape if op != "reduce_sum" else inputs[0].shape[:1]
    out = np.empty(shape, np.float16)
    run(op, inputs, [out], attrs, family="engine", numerics=NUMERICS)
    return out


# Open: what M1, M2 Max and M6 returned, and what the best rule there is returns; another rule has to be nearer.
OPEN = {
    ("softmax", 0): ([0.0010240666804474572, 0.0010256527550328975], 0.000875),
    ("softmax", 1): ([0.0010582602743854563, 0.0010581700214666815], 0.000868),
    ("layer_norm", 0): ([0.0006599372443371524, 0.000663225738513468], 0.000668),
    ("layer_norm", 1): ([0.0006641650399337232, 0.0006625734839700961], 0.000674),
    ("reduce_sum", 0): ([0.0007224220967624156, 0.0008079179874948665], 0.000368),
    ("reduce_sum", 1): ([0.0008092132072331669, 0.0008071717711200484], 0.000354),
}


@pytest.mark.parametrize(("op", "which"), OPEN)
def test_how_far_open_rules_are_from_what_chips_returned(op: str, which: int) -> None:
    x = activation_rows(which)
    wide, half = x.astype(np.float64), x.astype(np.float16)
    if op == "softmax":
        want = np.exp(wide - wide.max(1, keepdims=True))
        want /= want.sum(1, keepdims=True)
        got = engine(op, [half], {"axis": 1})
    elif op == "reduce_sum":
        want = wide.sum(1)
        got = engine(op, [half], {"axes": [1], "keep_dims": 0})
    else:
        rng = np.random.default_rng(13)
        gamma, beta = (1 + 0.1 * rng.standard_normal(4096)), 0.1 * rng.standard_normal(4096)
        parameters = [v.astype(np.float32) for v in (gamma, beta)]
        centered = wide - wide.mean(1, keepdims=True)
        want = centered / np.sqrt((centered**2).mean(1, keepdims=True) + 1e-5) * parameters[0] + parameters[1]
        got = engine(op, [half, *(v.astype(np.float16) for v in parameters)], {"axes": [1], "epsilon": 1e-5})
    print(op, which, distance(got, want))
    assert distance(got, want) == pytest.approx(OPEN[op, which][1], rel=2e-3)


TREE = {0: (0.0008079179874948665, 0.000808299), 1: (0.0008071717711200484, 0.000806874)}  # M6, and fours of fours


@pytest.mark.parametrize("which", TREE)
def test_fours_of_fours_are_nearest_to_long_sums_on_m6(which: int) -> None:
    """No kernel computes so yet: docs/numerics/published.md says why."""
    x = activation_rows(which)
    got = distance(write(tree_sum(x.astype(np.float16).astype(np.float64))), x.astype(np.float64).sum(1))
    assert got == pytest.approx(TREE[which][0], rel=5e-4)
    assert got == pytest.approx(TREE[which][1], rel=1e-5)


def test_the_page_says_what_is_tested_here() -> None:
    """Each row of its table: what silicon returned, and what Hexane returns, "the same" where that is exact."""
    page = (Path(__file__).parents[2] / "docs" / "numerics" / "published.md").read_text(encoding="utf-8")
    lines = page.split("## Published numbers")[1].splitlines()
    rows = [cells for line in lines if len(cells := line.strip("| ").split(" | ")) == 4]
    said = {}
    for case, chips, silicon, here in rows:
        if case != "case":
            numbers = [[float(n) for n in re.findall(r"\b0\.\d{5,}", cell)] for cell in (silicon, here)]
            said[case.replace("layer norm", "layer_norm"), "M5" in chips or "M6" in chips] = numbers
            assert bool(numbers[1]) != here.startswith("the same")
    shapes = ("[256, 4096]", "[2048, 4096]")
    tested = {(f"linear, N = {n}", n == 512): ([x], []) for n, x in LINEAR.items()}
    tested |= {(f"3x3, {c} channels, batch of {b}", pairs): ([x], []) for (c, b, pairs), x in CONV.items()}
    tested |= {(f"GELU, {shapes[i]}", True): ([x], [GELU_HERE[i]]) for i, x in GELU.items()}
    tested |= {("ReLU, [256, 4096]", True): ([RELU], [])}
    tested |= {(f"{op.removeprefix('reduce_')}, {shapes[i]}", True): (x, [y]) for (op, i), (x, y) in OPEN.items()}
    assert said.keys() == tested.keys()
    for row, (silicon, here) in tested.items():
        assert said[row][0] == pytest.approx(silicon, rel=1e-6), row
        assert said[row][1] == here, row
