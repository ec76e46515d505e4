"""Layers that no one kernel computes as the chip does: each of their steps rounded to fp16, in programs as users
compile them."""

import warnings
from collections.abc import Callable

import numpy as np
import pytest
from test_engine_products import conv

import engine_planar as model
import hexane as hx
from engine_model import Array

RNG = np.random.default_rng(21)


def numbers(*shape: int, scale: float = 1.0) -> Array:
    return (RNG.standard_normal(shape) * scale).astype(np.float16)


def compiled(
    build: Callable[..., hx.Tensor], *shapes: tuple[int, ...], target: str = "h13", threads: int = 1
) -> hx.Model:
    tensors = [hx.input(f"x{i}", shape, "fp16") for i, shape in enumerate(shapes)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hx.HazardWarning)
        net = hx.compile(build(*tensors), target=target, threads=threads, repair=False)
    assert isinstance(net, hx.Model)
    return net


def run(build: Callable[..., hx.Tensor], *arrays: Array, target: str = "h13") -> Array:
    """With one thread and with three, which have to agree."""
    nets = [compiled(build, *(a.shape for a in arrays), target=target, threads=n) for n in (1, 3)]
    one, three = (np.asarray(net(*arrays)) for net in nets)
    assert one.tobytes() == three.tobytes()
    return one


def assert_bits(got: Array, want: Array) -> None:
    assert got.shape == want.shape
    assert got.tobytes() == np.ascontiguousarray(want).tobytes(), np.argwhere(got != want)[:5]


# ---- transposed convolution ----


def transposed(
    x: Array, w: Array, bias: Array | None, stride: int, rate: int, pad: int, extra: int, groups: int
) -> Array:
    """A convolution over the image with zeros between its pixels, by the weights turned around."""
    n, c, height, width = x.shape
    inner, outer, k, _ = w.shape
    spread = np.zeros((n, c, (height - 1) * stride + 1, (width - 1) * stride + 1), np.float16)
    spread[:, :, ::stride, ::stride] = x
    reach = rate * (k - 1) - pad
    spread = np.pad(spread, ((0, 0), (0, 0), (reach, reach + extra), (reach, reach + extra)))
    turned = w[:, :, ::-1, ::-1].reshape(groups, inner // groups, outer, k, k).transpose(0, 2, 1, 3, 4)
    filters = np.ascontiguousarray(turned.reshape(groups * outer, inner // groups, k, k))
    image = np.ascontiguousarray(spread.transpose(0, 2, 3, 1))
    return conv(image, filters, bias, groups, dilations=[rate, rate]).transpose(0, 3, 1, 2)


@pytest.mark.parametrize(
    "case",
    [(3, 2, 1, 1, 1, 1), (4, 2, 1, 1, 0, 1), (2, 3, 1, 0, 0, 1), (3, 2, 2, 1, 0, 2), (3, 1, 1, 1, 0, 1)],
    ids=str,
)
@pytest.mark.parametrize("scale", [1.0, 60.0])
def test_a_transposed_convolution_has_the_products_of_the_chip(case: tuple[int, ...], scale: float) -> None:
    k, stride, rate, pad, extra, groups = case
    x, w, bias = numbers(2, 4, 5, 6, scale=scale), numbers(4, 3, k, k, scale=scale), numbers(3 * groups, scale=scale)

    def build(x: hx.Tensor) -> hx.Tensor:
        return hx.conv_transpose(
            x, w, bias, strides=stride, dilations=rate, pad=pad, output_padding=extra, groups=groups
        )

    want = transposed(x, w, bias, stride, rate, pad, extra, groups)
    assert_bits(run(build, x), want)
    assert_bits(run(lambda x: hx.relu(build(x)), x), model.write(np.maximum(model.read(want), 0)))


# ---- gain, offset and activations behind a layer ----


def test_a_gain_and_its_offset_are_rounded_once() -> None:
    x, gain, offset = numbers(2, 16, 5, 7), numbers(16, 1, 1), numbers(16, 1, 1, scale=40)
    once = model.write(x.astype(np.float32) * gain.astype(np.float32) + offset.astype(np.float32))
    assert_bits(
        run(lambda x: hx.relu(x) * gain + offset, np.abs(x)), model.write(np.abs(x.astype(np.float32)) * gain + offset)
    )
    twice = model.binary("add", model.binary("mul", np.abs(x), gain), offset)
    assert once.tobytes() != twice.tobytes()


def test_a_table_behind_a_gain_meets_a_rounded_number() -> None:
    x = numbers(3, 64, scale=4)
    scaled = model.binary("mul", x, np.float16(0.3))
    assert_bits(run(lambda x: hx.sigmoid(x * np.float16(0.3)), x), model.unary("sigmoid", scaled))


# ---- norms ----


def test_an_instance_norm_is_a_layer_norm_of_each_channel() -> None:
    x, gamma, beta = numbers(2, 5, 6, 7, scale=3), numbers(5), numbers(5)
    plain = model.norm(x.reshape(10, 42), None, None, 1e-5, True).reshape(x.shape)
    assert_bits(run(lambda x: hx.instance_norm(x, None, None, epsilon=1e-5), x), plain)
    want = model.write(plain.astype(np.float32) * gamma.astype(np.float32)[:, None, None] + beta[:, None, None])
    assert_bits(run(lambda x: hx.instance_norm(x, gamma, beta, epsilon=1e-5), x), want)


def test_a_norm_that_is_written_out_takes_steps() -> None:
    x = numbers(6, 48)
    squares = model.unary("square", x)
    mean = model.reduced("reduce_mean", squares)
    scale = model.unary("rsqrt", model.binary("add", mean, np.float16(1e-3)))[:, None]
    build = lambda x: x * hx.rsqrt(hx.reduce_mean(x * x, axes=(1,), keep_dims=True) + np.float16(1e-3))  # noqa: E731
    assert_bits(run(build, x), model.binary("mul", x, scale))


# ---- slices along the width ----


@pytest.mark.parametrize(
    ("target", "saturates"), [("h13", True), ("h14", True), ("h16", False), ("h17s", False), ("h18g", False)]
)
def test_a_slice_that_begins_inside_a_row_saturates(target: str, saturates: bool) -> None:
    x = np.float16([[[1, 4094, 4096, -4094, -4096, 60000, 2**-24, -0.0]]])
    got = run(lambda x: hx.concat([x[:, :, 1:], x[:, :, :1]], axis=2), x, target=target)
    want = np.roll(x, -1, 2)
    assert_bits(
        np.abs(got), np.abs(np.where(np.abs(want) > 4094, np.inf, want).astype(np.float16) if saturates else want)
    )
    assert (np.sign(got) == np.sign(want)).all()


def test_slices_of_other_axes_and_from_the_start_are_free() -> None:
    x = np.full((2, 4, 6), 60000, np.float16)
    for cut in (np.s_[1:], np.s_[:, 2:], np.s_[:, :, :3]):
        assert np.isfinite(run(lambda x, cut=cut: x[cut] * np.float16(1), x)).all()


def test_a_decision_says_that_a_slice_saturates() -> None:
    with pytest.warns(hx.HazardWarning):
        net = hx.compile(hx.relu(hx.input("x", (2, 8), "fp16")[:, 2:]), target="h13")
    assert net.program is not None
    (said,) = [d for d in net.program.decisions if d.verdict == "saturates"]
    assert "above 4094 become infinity" in said.reason
    assert "measured" in said.source


@pytest.mark.parametrize("rank", [4, 5])
def test_a_norm_has_the_same_steps_with_an_axis_more(rank: int) -> None:
    x, gamma = numbers(2, 3, *(4, 5, 2)[: rank - 2]), numbers(3)
    flat = run(lambda x: hx.instance_norm(x, gamma, None, epsilon=1e-3), x.reshape(2, 3, 4, -1))
    assert_bits(run(lambda x: hx.instance_norm(x, gamma, None, epsilon=1e-3), x), flat.reshape(x.shape))
    mean, variance = numbers(3), np.abs(numbers(3))

    def batch_norm(x: hx.Tensor, mean: hx.Tensor, variance: hx.Tensor) -> hx.Tensor:
        return hx.batch_norm(x, hx.relu(mean), hx.relu(variance), gamma, None, axis=1)

    want = run(batch_norm, x.reshape(2, 3, 4, -1), mean, variance)
    assert_bits(run(batch_norm, x, mean, variance), want.reshape(x.shape))


def test_the_squares_of_an_l2_norm_are_added_before_anything_is_rounded() -> None:
    x = numbers(5, 24, scale=3)
    wide = x.astype(np.float32)
    total = model.write(model.reduced("reduce_sum", wide * wide)[:, None] + model.constant(1e-3))
    got = run(lambda x: hx.l2_norm(x, axes=-1, epsilon=1e-3), x)
    assert_bits(got, model.binary("mul", x, model.unary("rsqrt", total)))


# ---- reductions: accumulate, scale, one rounding ----


@pytest.mark.parametrize("numerics", ["engine", "ieee"])
@pytest.mark.parametrize("chip", ["h13", "h16", "h17s"])
def test_a_sum_is_scaled_before_it_is_rounded(chip: str, numerics: str) -> None:
    """A variance as E[x^2] - E[x]^2 of 512 numbers of size 100: the sums are beyond 65504, their means are not."""
    x = numbers(4, 512, scale=100)
    port = hx.input("x", x.shape, "fp16")
    moments = {
        "mean": hx.reduce_sum(port, axes=(1,)) * np.float16(1 / 512),
        "square": hx.reduce_sum_square(port, axes=(1,)) * np.float16(1 / 512) + np.float16(1e-3),
        "size": hx.reduce_l1_norm(port, axes=(1,)) * np.float16(1 / 512),
    }
    got = hx.compile(hx.graph(moments), target=chip, numerics=numerics)(x)
    wide = x.astype(np.float64)
    want = {"mean": wide.mean(1), "square": (wide * wide).mean(1) + 1e-3, "size": np.abs(wide).mean(1)}
    for name, value in want.items():
        np.testing.assert_allclose(np.ravel(got[name]), value, rtol=2e-3, atol=0.02, err_msg=name)


def test_a_sum_with_gain_and_offset_is_rounded_once() -> None:
    x = numbers(6, 40, scale=60)
    wide = model.reduced("reduce_sum", x.astype(np.float32))
    want = model.write(wide * model.constant(0.3) + model.constant(7))
    build = lambda x: hx.reduce_sum(x, axes=(1,)) * np.float16(0.3) + np.float16(7)  # noqa: E731
    assert_bits(run(build, x).reshape(want.shape), want)


# ---- norms of large numbers ----

NORMS: dict[str, tuple[Callable[[hx.Tensor], hx.Tensor], Callable[[Array], Array]]] = {
    "rms_norm": (lambda x: hx.rms_norm(x, epsilon=1e-5), lambda v: v / np.sqrt((v * v).mean(-1, keepdims=True) + 1e-5)),
    "l2_norm": (lambda x: hx.l2_norm(x, epsilon=1e-6), lambda v: v / np.sqrt((v * v).sum(-1, keepdims=True) + 1e-6)),
    "l2_norm of a batch": (
        lambda x: hx.reshape(hx.l2_norm(hx.reshape(x, shape=(2, 4, 8, 8)), axes=(0, 2, 3)), shape=x.shape),
        lambda v: (v.reshape(2, 4, 64) / np.sqrt((v.reshape(2, 4, 64) ** 2).sum((0, 2), keepdims=True))).reshape(v.shape),
    ),
    "mean_variance_norm": (lambda x: hx.mean_variance_norm(x, axes=(-1,)), lambda v: _centred(v, -1, 0.0)),
    "layer_norm": (lambda x: hx.layer_norm(x, epsilon=1e-5), lambda v: _centred(v, -1, 1e-5)),
    "instance_norm": (lambda x: hx.instance_norm(x, epsilon=1e-5), lambda v: _centred(v, -1, 1e-5)),
    "group_norm": (lambda x: hx.group_norm(x, num_groups=2), lambda v: _centred(v.reshape(1, 2, -1), -1, 1e-5).reshape(v.shape)),
}  # fmt: skip


def _centred(v: Array, axis: int, epsilon: float) -> Array:
    spread = v - v.mean(axis, keepdims=True)
    return np.asarray(spread / np.sqrt((spread * spread).mean(axis, keepdims=True) + epsilon))


@pytest.mark.parametrize("numerics", ["engine", "ieee"])
@pytest.mark.parametrize("chip", ["h13", "h16"])
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_holds_up_to_the_largest_number(name: str, chip: str, numerics: str) -> None:
    """Standard deviations from 1 to 15000, and rows with one number of 60000 among small ones."""
    base = RNG.standard_normal((1, 8, 64))
    spike = base.copy()
    spike[0, :, 5] = 60000
    build, of = NORMS[name]
    net = hx.compile(build(hx.input("x", base.shape, "fp16")), target=chip, numerics=numerics)
    for values in (base, base * 300, base * 15000, spike):
        v = np.clip(values, -65504, 65504).astype(np.float16)
        want = of(v.astype(np.float64))
        got = np.asarray(net(v), np.float64)
        assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want), np.abs(v).max()


@pytest.mark.parametrize("numerics", ["engine", "ieee"])
@pytest.mark.parametrize("name", ["rms_norm", "l2_norm", "mean_variance_norm"])
def test_a_norm_of_nothing_is_nothing(name: str, numerics: str) -> None:
    net = hx.compile(NORMS[name][0](hx.input("x", (1, 8, 64), "fp16")), target="h16", numerics=numerics)
    assert not np.asarray(net(np.zeros((1, 8, 64), np.float16))).any()


@pytest.mark.filterwarnings("ignore::hexane.HazardWarning", "ignore::hexane.FallbackWarning")
@pytest.mark.parametrize("name", ["rms_norm", "l2_norm", "mean_variance_norm", "layer_norm"])
def test_a_norm_of_a_line_that_is_cut_holds_large_numbers(name: str) -> None:
    """70,000 numbers are more than an axis of the chip has."""
    v = np.clip(RNG.standard_normal((1, 70000)) * 15000, -65504, 65504).astype(np.float16)
    build, of = NORMS[name]
    for numerics in ("engine", "ieee"):
        got = np.asarray(hx.compile(build(hx.input("x", v.shape, "fp16")), target="h13", numerics=numerics)(v), float)
        want = of(v.astype(np.float64))
        assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want), numerics


def test_a_large_epsilon_counts_in_a_row_that_is_scaled() -> None:
    """It does not grow with the row's largest number."""
    v = numbers(1, 8, 64, scale=200)
    for op, want in (
        (hx.rms_norm, v / np.sqrt((v.astype(float) ** 2).mean(-1, keepdims=True) + 5000)),
        (hx.l2_norm, v / np.sqrt((v.astype(float) ** 2).sum(-1, keepdims=True) + 5000)),
    ):
        got = np.asarray(hx.compile(op(hx.input("x", v.shape, "fp16"), epsilon=5000.0), target="h16")(v), float)
        np.testing.assert_allclose(got, want, rtol=4e-3, atol=1e-3)
