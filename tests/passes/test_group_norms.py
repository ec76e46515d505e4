"""Group norms on chips: all spellings are one op, which stays on the engine and is right in fp16."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.build import graph
from hexane.cost.estimate import estimate_program
from hexane.passes.repair import repair, without_repair
from hexane.report.estimate import program_for
from hexane.targets import load_target

Array = np.ndarray[Any, Any]
Build = Callable[[hx.Tensor], hx.Tensor]
SHAPE, GROUPS, EPSILON = (2, 12, 40, 40), 4, 1e-5
RNG = np.random.default_rng(5)
GAMMA, BETA = (RNG.normal(size=(12, 1, 1)).astype(np.float32) for _ in range(2))
ROWS = (2, GROUPS, 3, 40, 40)


def reference(x: Array, groups: int, epsilon: float = EPSILON) -> Array:
    rows = x.astype(np.float64).reshape(x.shape[0], groups, -1)
    centred = rows - rows.mean(-1, keepdims=True)
    return (centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)).reshape(x.shape)


def as_torch_exports_it(x: hx.Tensor, gain: float = 1.0) -> hx.Tensor:
    row = hx.reshape(x, shape=(2, GROUPS, -1))
    row = hx.instance_norm(row, np.full(GROUPS, gain, np.float32), np.zeros(GROUPS, np.float32), epsilon=EPSILON)
    return hx.reshape(row, shape=SHAPE) * GAMMA + BETA


def written_out(square: Build, over: Callable[[hx.Tensor, hx.Tensor], hx.Tensor], inside: bool = False) -> Build:
    """As coremltools writes it, or with the factors on the view."""

    def build(x: hx.Tensor) -> hx.Tensor:
        rows, axes = hx.reshape(x, shape=ROWS), (2, 3, 4)
        centred = rows - hx.reduce_mean(rows, axes=axes, keep_dims=True)
        y = over(centred, hx.reduce_mean(square(centred), axes=axes, keep_dims=True) + EPSILON)
        if inside:
            shape = (1, GROUPS, 3, 1, 1)
            return hx.reshape(y * GAMMA.reshape(shape) + BETA.reshape(shape), shape=SHAPE)
        return hx.reshape(y, shape=SHAPE) * GAMMA + BETA

    return build


def over_root(x: hx.Tensor, variance: hx.Tensor) -> hx.Tensor:
    return x / hx.sqrt(variance)


SPELLINGS: dict[str, Build] = {
    "op": lambda x: hx.group_norm(x, GAMMA.ravel(), BETA.ravel(), num_groups=GROUPS, epsilon=EPSILON),
    "op, mul, add": lambda x: hx.group_norm(x, num_groups=GROUPS, epsilon=EPSILON) * GAMMA + BETA,
    "torch": as_torch_exports_it,
    "layer norm of rows": lambda x: (
        hx.reshape(hx.layer_norm(hx.reshape(x, shape=(2 * GROUPS, -1)), epsilon=EPSILON), shape=SHAPE) * GAMMA + BETA
    ),
    "mul, sqrt, div": written_out(lambda v: v * v, over_root),
    "pow, pow": written_out(lambda v: hx.pow(v, 2.0), lambda v, s: v / hx.pow(s, 0.5)),
    "square, rsqrt": written_out(hx.square, lambda v, s: v * hx.rsqrt(s)),
    "factors on the view": written_out(hx.square, over_root, inside=True),
    "bounded": lambda x: written_out(hx.square, over_root)(hx.tanh(x)),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_is_one_group_norm(name: str) -> None:
    model = graph(SPELLINGS[name](hx.input("x", SHAPE)))
    made = repair(model, load_target("h13"))
    (norm,) = [node for node in made.nodes if node.op == "group_norm"]
    assert norm.attrs["num_groups"] == GROUPS
    assert all(v is not None and v.shape == (12,) for v in norm.inputs[1:])
    assert made.ops.isdisjoint(("reshape", "reduce_mean", "layer_norm", "instance_norm", "add"))
    x = RNG.normal(3, 2, SHAPE).astype(np.float32)
    want = reference(np.tanh(x) if name == "bounded" else x, GROUPS) * GAMMA + BETA
    np.testing.assert_allclose(hx.compile(made)(x), want, atol=2e-5)
    # Over the whole network a form is applied once: a second run finds nothing.
    assert repair(made, load_target("h13")).nodes == made.nodes


def test_a_norm_of_items_written_out_is_one_group_norm() -> None:
    """One group, on the image or on one row that is wider than a chip takes."""
    x = RNG.normal(3, 2, SHAPE).astype(np.float32)
    for shape, axes in ((SHAPE, (1, 2, 3)), ((2, 1, 19200), (2,)), ((2, 19200), (1,))):
        rows = hx.reshape(hx.input("x", SHAPE) * 0.5, shape=shape)
        centred = rows - hx.reduce_mean(rows, axes=axes, keep_dims=True)
        y = centred / hx.sqrt(hx.reduce_mean(hx.square(centred), axes=axes, keep_dims=True) + EPSILON)
        made = repair(graph(hx.reshape(y, shape=SHAPE)), load_target("h13"))
        assert [node.op for node in made.nodes if node.inputs] == ["mul", "group_norm"]
        np.testing.assert_allclose(hx.compile(made)(x), reference(x * 0.5, 1), atol=2e-5)


def test_the_groups_own_factors_are_kept() -> None:
    made = repair(graph(as_torch_exports_it(hx.input("x", SHAPE), gain=3.0)), load_target("h13"))
    x = RNG.normal(size=SHAPE).astype(np.float32)
    assert "group_norm" in made.ops
    np.testing.assert_allclose(hx.compile(made)(x), 3 * reference(x, GROUPS) * GAMMA + BETA, atol=5e-5)


def rows_of_other_items(x: hx.Tensor) -> hx.Tensor:
    """Each row is of 1.5 channels."""
    return hx.reshape(hx.layer_norm(hx.reshape(x, shape=(2, 8, -1))), shape=SHAPE)


def with_factors_of_pixels(x: hx.Tensor) -> hx.Tensor:
    pixels = RNG.normal(size=(1, 1, 3, 40, 40)).astype(np.float32)
    return hx.reshape(hx.layer_norm(hx.reshape(x, shape=ROWS), axes=(2, 3, 4)) * pixels, shape=SHAPE)


def in_another_shape(x: hx.Tensor) -> hx.Tensor:
    return hx.reshape(hx.layer_norm(hx.reshape(x, shape=(2, GROUPS, -1))), shape=(2, 24, 40, 20))


def read_elsewhere(x: hx.Tensor) -> hx.Tensor:
    y = hx.layer_norm(hx.reshape(x, shape=(2, GROUPS, -1)))
    return hx.reshape(y, shape=SHAPE) + hx.reduce_max(y)


def by_computed_factors(x: hx.Tensor) -> hx.Tensor:
    gain = hx.exp(hx.reduce_mean(x, axes=(0, 2, 3), keep_dims=True))
    return as_torch_exports_it(x) * gain


OTHERS = [rows_of_other_items, with_factors_of_pixels, in_another_shape, read_elsewhere, by_computed_factors]


@pytest.mark.parametrize("build", OTHERS)
def test_what_is_no_group_norm_keeps_its_meaning(build: Build) -> None:
    model = graph(build(hx.input("x", SHAPE)))
    made = repair(model, load_target("h13"))
    assert ("group_norm" in made.ops) == (build is by_computed_factors)
    x = RNG.normal(size=SHAPE).astype(np.float32)
    np.testing.assert_allclose(hx.compile(made)(x), hx.compile(model)(x), atol=1e-4)


def test_large_norms_of_items_and_instances_are_group_norms() -> None:
    """Where their factors are of pixels, a product and a sum follow. Small ones keep the layer."""
    gamma, beta = (RNG.normal(size=SHAPE[1:]).astype(np.float32) for _ in range(2))
    x = RNG.normal(5, 2, SHAPE).astype(np.float32)
    small = hx.layer_norm(hx.input("y", (1, 12, 8, 8)), axes=(1, 2, 3))
    rows = {
        1: (lambda v: hx.layer_norm(v, gamma, beta, axes=(1, 2, 3)), gamma, beta),
        12: (lambda v: hx.instance_norm(v, GAMMA.ravel(), BETA.ravel()), GAMMA, BETA),
    }
    for groups, (build, gain, offset) in rows.items():
        made = repair(graph([build(hx.input("x", SHAPE)), small]), load_target("h13"))
        norms = [node for node in made.nodes if node.op.endswith("norm")]
        assert sorted(node.op for node in norms) == ["group_norm", "layer_norm"]
        results = hx.compile(made)({"x": x, "y": np.ones((1, 12, 8, 8), np.float32)})
        y = next(v for v in results.values() if v.shape == SHAPE)
        np.testing.assert_allclose(y, reference(x, groups) * gain + offset, atol=1e-4)


# ---- on chips ----

NUMBERS: dict[str, Callable[[Any, tuple[int, ...]], Array]] = {
    "unit": lambda r, s: r.normal(size=s),
    "pixels": lambda r, s: r.uniform(0, 255, s),
    "a mean of 1000": lambda r, s: r.normal(1000, 1, s),
    "a mean of 30000": lambda r, s: r.normal(30000, 300, s),
    "a deviation of 1e4": lambda r, s: np.clip(r.normal(0, 1e4, s), -6e4, 6e4),
    "a deviation of 0.001": lambda r, s: r.normal(0, 1e-3, s),
    "the ends of fp16": lambda r, s: np.where(r.normal(size=s) > 0, 65504, -65504),
    "channels that are constant": lambda r, s: r.uniform(-50, 50, (*s[:2], *[1] * (len(s) - 2))) * np.ones(s),
    "constant": lambda r, s: np.full(s, 1000.3),
    "zeros": lambda r, s: np.zeros(s),
}
SHAPES = [((1, 64, 24, 24), 1), ((2, 30, 24, 32), 3), ((1, 20, 30, 30), 20), ((1, 64, 600), 4), ((1, 8, 8, 20, 20), 2)]


@pytest.mark.parametrize("numerics", ["engine", "ieee"])
@pytest.mark.parametrize("name", NUMBERS)
def test_group_norms_are_right_in_any_range(name: str, numerics: Any) -> None:
    """Next to fp64, for numbers of fp16. A norm layer of a mean of 1000 is off by up to 0.25: it rounds the mean."""
    for shape, groups in SHAPES:
        x = NUMBERS[name](np.random.default_rng(3), shape).astype(np.float16)
        for epsilon in (1e-5, 1e-12, 0.5):
            if epsilon < 1e-5 and name in ("a deviation of 0.001", "channels that are constant"):
                continue  # smaller than fp16 has squares of such numbers for, and 0 / 0
            for chip in ("h13", "h17s"):
                v = hx.input("x", shape, "fp16")
                y = hx.compile(hx.group_norm(v, num_groups=groups, epsilon=epsilon), target=chip, numerics=numerics)(x)
                want = reference(x, groups, epsilon)
                error = np.abs(np.asarray(y, np.float64) - want).max()
                assert error < 2.0**-9 * max(1.0, float(np.abs(want).max())), (shape, epsilon, chip)


@pytest.mark.parametrize("numerics", ["engine", "ieee"])
def test_planes_of_more_pixels_than_fp16_counts(numerics: Any) -> None:
    """1 over 90,000 is a subnormal of fp16: means of planes are means of rows first."""
    x = RNG.normal(2, 3, (1, 4, 300, 300)).astype(np.float16)
    v = hx.input("x", x.shape, "fp16")
    for groups in (1, 2, 4):
        y = hx.compile(hx.group_norm(v, num_groups=groups), target="h13", numerics=numerics)(x)
        assert np.abs(np.asarray(y, np.float64) - reference(x, groups)).max() < 0.01


WHOLE = [
    ((1, 64, 56, 56), 1),
    ((1, 320, 64, 64), 32),
    ((1, 128, 256, 256), 32),
    ((1, 64, 12000), 8),
    ((2, 6, 90, 90), 3),
]


@pytest.mark.parametrize("chip", ["h13", "h14", "h16g", "h17s"])
def test_no_group_is_too_wide_for_a_chip(chip: str) -> None:
    for shape, groups in WHOLE:
        x = hx.relu(hx.input("x", shape))
        rows = hx.reshape(hx.instance_norm(hx.reshape(x, shape=(shape[0], groups, -1))), shape=shape)
        for y in (hx.group_norm(x, num_groups=groups), rows):
            report = hx.preflight(hx.relu(y), chip)
            assert report.ok
            assert [found.device for found in report.segments] == ["ane"], (shape, groups)


def test_a_group_norm_costs_less_than_its_layer() -> None:
    """By the estimate, where the layer runs as it is."""
    for chip in ("h13", "h16g", "h17s"):
        target = load_target(chip)
        for shape in ((1, 32, 32, 32), (1, 512, 7, 7)):
            model = graph(hx.layer_norm(hx.relu(hx.input("x", shape)), axes=(1, 2, 3)))
            before, after = (program_for(g, target) for g in (without_repair(model), model))
            assert estimate_program(after, target).latency_us < estimate_program(before, target).latency_us


def gained(x: hx.Tensor, is_read: bool) -> hx.Tensor:
    """One over the deviation of each channel, in another shape and times a constant before it multiplies x."""
    inside = hx.reduce_mean(hx.square(x), axes=(2, 3), keep_dims=True) * 0.01 + 2.3e-6
    gain = hx.reshape(hx.reshape(hx.rsqrt(inside), shape=(1, 2, 4, 1)) * GAMMA[:4].reshape(4, 1), shape=(1, 8, 1, 1))
    return hx.identity(gain) if is_read else x * gain


@pytest.mark.filterwarnings("ignore::hexane.FallbackWarning")
@pytest.mark.parametrize("is_read", [True, False])
def test_a_small_epsilon_decides_nothing_where_zeros_are_multiplied(is_read: bool) -> None:
    """It does where the reciprocal itself is read: fp16 has 2.32e-6 for 2.3e-6."""
    model = without_repair(graph(gained(hx.input("x", (1, 8, 6, 6)), is_read)))
    devices = {found.device for found in hx.preflight(model, "h13", repair=False).segments}
    assert devices == ({"ane", "host"} if is_read else {"ane"})
    for scale in (0.0, 0.05, 1.0):
        x = RNG.normal(0, scale, (1, 8, 6, 6)).astype(np.float16).astype(np.float32)
        got, want = (np.asarray(hx.compile(model, **kw)(x)) for kw in ({"target": "h13"}, {}))
        np.testing.assert_allclose(got, want, rtol=0.02, atol=0.02)
