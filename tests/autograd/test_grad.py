"""hx.grad: forms of ops that the records' cases leave out, sums, second order, and what it refuses."""

from collections.abc import Callable

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Array
from hexane.ops.reference import run_reference

STEP = 1e-5
RNG = np.random.default_rng(3)


def some(*shape: int) -> Array:
    return RNG.uniform(-1.5, 1.5, shape)


def image(*shape: int) -> tuple[Array, ...]:
    return (some(*shape),)


FORMS: dict[str, tuple[tuple[Array, ...], Callable[..., hx.Tensor]]] = {
    "a strided convolution that leaves pixels": (
        (some(2, 4, 9, 10), some(6, 2, 3, 3), some(6)),
        lambda x, w, c: hx.conv(x, w, c, strides=(3, 2), pad=(1, 0, 2, 1), groups=2),
    ),
    "a dilated convolution": ((some(1, 2, 11, 9), some(3, 2, 3, 2)), lambda x, w: hx.conv(x, w, dilations=(2, 3), strides=2, pad=2)),
    "a depthwise convolution": ((some(2, 4, 7, 7), some(8, 1, 3, 3)), lambda x, w: hx.conv(x, w, groups=4, pad=1, strides=2)),
    "a convolution along one axis": ((some(2, 3, 12), some(4, 3, 5)), lambda x, w: hx.conv(x, w, strides=2, pad=(2, 1))),
    "a convolution of volumes": ((some(1, 2, 5, 6, 4), some(3, 2, 2, 3, 2)), lambda x, w: hx.conv(x, w, strides=(2, 1, 2), pad=1)),
    "a convolution with channels last": ((some(2, 6, 5, 4), some(3, 4, 3, 3)), lambda x, w: hx.conv(x, w, pad=1, strides=2, layout="nhwc")),
    "a transposed convolution": (
        (some(2, 4, 4, 5), some(4, 3, 3, 3), some(6)),
        lambda x, w, c: hx.conv_transpose(x, w, c, strides=2, pad=1, output_padding=(1, 0), groups=2),
    ),
    "a transposed dilated convolution": ((some(1, 2, 5), some(2, 3, 3)), lambda x, w: hx.conv_transpose(x, w, dilations=2, strides=3, pad=1)),
    "max pool that overlaps": (image(2, 3, 9, 8), lambda x: hx.max_pool(x, kernel_sizes=3, strides=2, pad=1)),
    "max pool with dilation": (image(1, 2, 9, 9), lambda x: hx.max_pool(x, kernel_sizes=2, strides=1, dilations=3)),
    "max pool beyond the end": (image(1, 2, 8, 7), lambda x: hx.max_pool(x, kernel_sizes=3, strides=2, ceil_mode=True)),
    "max pool along one axis": (image(2, 2, 9), lambda x: hx.max_pool(x, kernel_sizes=3, strides=3)),
    "max pool with channels last": (image(1, 6, 6, 3), lambda x: hx.max_pool(x, kernel_sizes=2, strides=2, layout="nhwc")),
    "max pool of volumes": (
        image(2, 2, 5, 6, 7),
        lambda x: hx.max_pool(x, kernel_sizes=(2, 3, 2), strides=(2, 1, 3), dilations=(1, 2, 1), pad=(1, 0, 1, 1, 0, 1)),
    ),
    "max pool of volumes beyond the end": (
        image(1, 5, 5, 6, 2),
        lambda x: hx.max_pool(x, kernel_sizes=2, strides=2, ceil_mode=True, layout="nhwc"),
    ),
    "average pool of what is there": (image(1, 2, 7, 7), lambda x: hx.avg_pool(x, kernel_sizes=3, strides=2, pad=1)),
    "average pool beyond the end": (image(1, 2, 8, 7), lambda x: hx.avg_pool(x, kernel_sizes=3, strides=2, ceil_mode=True, exclude_padding=False, pad=1)),
    "average pool of volumes": (image(1, 2, 4, 5, 6), lambda x: hx.avg_pool(x, kernel_sizes=2, strides=(2, 1, 2))),
    "average pool with dilation": (image(1, 3, 9), lambda x: hx.avg_pool(x, kernel_sizes=2, dilations=2, strides=2)),
    "a product with a broadcast batch": ((some(3, 1, 4, 5), some(2, 6, 5)), lambda x, y: hx.matmul(x, y, transpose_y=True)),
    "a product with one matrix": ((some(2, 3, 4, 5), some(5, 6), some(6)), hx.matmul),
    "a product of transposed matrices": ((some(2, 5, 4), some(6, 5)), lambda x, y: hx.matmul(x, y, transpose_x=True, transpose_y=True)),
    "a slice with strides": (image(7, 9), lambda x: x[1:6:2, ::3]),
    "a slice backwards": (image(7, 4), lambda x: x[::-2]),
    "an edge": (image(3, 4), lambda x: hx.pad(x, begin=(2, 1), end=(1, 3), mode="edge")),
    "a reflection": (image(4, 5), lambda x: hx.pad(x, begin=(2, 3), end=(3, 1), mode="reflect")),
    "a wrap and a cut": (image(4, 5), lambda x: hx.pad(x, begin=(-1, 2), end=(2, -2), mode="wrap")),
    "rows of a table, some twice": (image(5, 3), lambda x: hx.gather(x, np.array([[0, 2], [2, -1]]))),
    "columns by index": (image(4, 5), lambda x: hx.gather(x, np.array([4, 4, 0]), axis=1)),
    "coordinates in a batch": (image(2, 3, 4), lambda x: hx.gather_nd(x, np.array([[[2], [0], [2]], [[1], [1], [1]]]), batch_dims=1)),
    "a written slice": ((some(4, 3), some(2, 3)), lambda x, u: hx.scatter_nd(x, np.array([[1], [3]]), u)),
    "written elements": ((some(3, 4), some(1, 4)), lambda x, u: hx.scatter_along_axis(x, np.array([[0, 2, 1, 0]]), u)),
    "a resize to less": (image(1, 2, 9, 8), lambda x: hx.resize(x, sizes=(4, 5))),
    "a cubic resize": (image(1, 1, 5, 6), lambda x: hx.resize(x, sizes=(9, 7), mode="cubic")),
    "the nearest pixel": (image(1, 2, 4, 5), lambda x: hx.resize(x, sizes=(9, 7), mode="nearest")),
    "a product with zeros": ((np.array([[0.0, 2, 3], [0, 0, 5], [1, 2, 4]]),), lambda x: hx.reduce_prod(x, axes=(1,))),
    "a norm over two axes": ((some(2, 3, 4), some(3, 4), some(3, 4)), lambda x, g, c: hx.layer_norm(x, g, c, axes=(-2, -1))),
    "attention with a mask": (
        (some(2, 3, 5, 4), some(2, 1, 6, 4), some(2, 1, 6, 3), some(5, 6)),
        lambda q, k, v, m: hx.scaled_dot_product_attention(q, k, v, m),
    ),
    "an equation": ((some(2, 3, 4), some(4, 3, 5)), lambda x, y: hx.einsum(x, y, equation="bij,jik->bk")),
    "a batch norm of statistics": ((some(2, 3, 4), some(3), np.abs(some(3)) + 0.5, some(3), some(3)), hx.batch_norm),
}  # fmt: skip


def evaluated(outputs: list[hx.Tensor], feeds: dict[str, Array]) -> list[Array]:
    graph = hx.graph({f"y{i}": t for i, t in enumerate(outputs)})
    return list(run_reference(graph, {n: feeds[n] for n in graph.input_names()}).values())


@pytest.mark.parametrize("name", FORMS)
def test_a_gradient_is_that_of_finite_differences(name: str) -> None:
    arrays, make = FORMS[name]
    inputs = [hx.input(f"x{i}", a.shape, "fp64") for i, a in enumerate(arrays)]
    y = make(*inputs)
    rng = np.random.default_rng(1)
    seed = rng.uniform(0.5, 1.5, y.shape)
    feeds = {f"x{i}": a for i, a in enumerate(arrays)}
    gradients = evaluated(hx.grad(y, inputs, seed=seed), feeds)
    for i, (array, got) in enumerate(zip(arrays, gradients, strict=True)):
        assert got.shape == array.shape
        for _ in range(3):
            way = rng.standard_normal(array.shape)
            high, low = (
                float((evaluated([y], {**feeds, f"x{i}": array + s * STEP * way})[0] * seed).sum()) for s in (1, -1)
            )
            want = (high - low) / (2 * STEP)
            np.testing.assert_allclose(float((got * way).sum()), want, rtol=1e-6, atol=1e-6, err_msg=f"x{i}")


def test_a_value_that_is_read_twice_gets_both_gradients() -> None:
    x = hx.input("x", (3,), "fp64")
    (got,) = evaluated([hx.grad(hx.reduce_sum(x * x + hx.sin(x)), x)], {"x": np.array([0.5, -1, 2])})
    np.testing.assert_allclose(got, 2 * np.array([0.5, -1, 2]) + np.cos([0.5, -1, 2]))


def test_halves_are_added_in_fp32_unless_a_dtype_is_given() -> None:
    x = hx.input("x", (4,), "fp16")
    y = hx.reduce_sum(hx.sin(x) + hx.exp(x) + hx.square(x), axes=(0,))
    wide, narrow = (hx.graph(hx.grad(y, x, dtype=kind)) for kind in (None, "fp16"))
    assert any(n.op == "add" and n.types[0].dtype.name == "fp32" for n in wide.nodes)
    assert not any(t.dtype.name == "fp32" for n in narrow.nodes for t in n.types)
    assert wide.outputs[0].value.dtype.name == "fp16"


def test_a_gradient_has_a_gradient() -> None:
    x = hx.input("x", (3,), "fp64")
    first = hx.grad(hx.reduce_sum(hx.tanh(x) * x), x)
    (got,) = evaluated([hx.grad(hx.reduce_sum(first), x)], {"x": np.array([0.3, -0.7, 1.1])})
    t = np.tanh([0.3, -0.7, 1.1])
    np.testing.assert_allclose(got, 2 * (1 - t**2) * (1 - np.array([0.3, -0.7, 1.1]) * t))


def test_values_in_between_and_what_they_are_made_of_have_gradients() -> None:
    """That of w goes through h, which is asked for as well."""
    w = hx.param("w", np.array([2.0, 3.0]), "fp64")
    h = w * 5.0
    dh, dw = evaluated(hx.grad(hx.reduce_sum(hx.square(h)), [h, w]), {})
    np.testing.assert_allclose(dh, [20, 30])
    np.testing.assert_allclose(dw, [100, 150])


def test_an_operand_that_an_expansion_is_given_twice_counts_twice() -> None:
    x = hx.input("x", (2, 3), "fp64")
    inner = hx.exp(x)
    got, want = evaluated(
        [hx.grad(hx.reduce_sum(hx.mse(inner, x, reduction="none")), x), 2 * (inner - x) * (inner - 1.0)],
        {"x": np.arange(6.0).reshape(2, 3) / 5},
    )
    np.testing.assert_allclose(got, want)


def test_stop_gradient_makes_a_constant() -> None:
    x = hx.input("x", (2,), "fp64")
    (got,) = evaluated([hx.grad(hx.reduce_sum(hx.stop_gradient(x) * x), x)], {"x": np.array([4.0, 5.0])})
    np.testing.assert_array_equal(got, [4, 5])


def test_several_losses_are_added() -> None:
    x = hx.input("x", (2,), "fp64")
    one, two = hx.reduce_sum(x * 3.0), hx.reduce_sum(hx.square(x))
    (got,) = evaluated([hx.grad([one, two], x)], {"x": np.array([1.0, 2.0])})
    np.testing.assert_array_equal(got, [5, 7])


def test_labels_that_are_ignored_have_no_gradient() -> None:
    logits = hx.input("x", (3, 4), "fp64")
    loss = hx.cross_entropy(logits, np.array([1, -100, 3]))
    (got,) = evaluated([hx.grad(loss, logits)], {"x": np.arange(12.0).reshape(3, 4)})
    assert not got[1].any()
    np.testing.assert_allclose(got.sum(), 0, atol=1e-12)


def test_a_training_step_of_a_small_network_compiles_and_agrees() -> None:
    rng = np.random.default_rng(0)
    x, labels = hx.input("x", (4, 3, 8, 8)), hx.input("labels", (4,), "int32")
    w = [
        hx.param(n, rng.standard_normal(s).astype(np.float32) * 0.2) for n, s in (("w1", (6, 3, 3, 3)), ("w2", (5, 96)))
    ]
    y = hx.max_pool(hx.relu(hx.conv(x, w[0], pad=1)), kernel_sizes=2, strides=2)
    loss = hx.cross_entropy(hx.linear(hx.flatten(y), w[1]), labels)
    graph = hx.graph({"loss": loss, "w1": hx.grad(loss, w[0]), "w2": hx.grad(loss, w[1])})
    feeds = {"x": rng.standard_normal((4, 3, 8, 8)).astype(np.float32), "labels": np.array([0, 3, 4, 1], np.int32)}
    want, got = run_reference(graph, feeds), hx.compile(graph, threads=1)(feeds)
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-5 * np.abs(array).max())


@pytest.mark.parametrize("shape", [(0, 3, 5, 5), (2, 0, 5, 5)])
def test_the_weight_of_a_convolution_of_nothing_has_zeros(shape: tuple[int, ...]) -> None:
    x, w = hx.input("x", shape), hx.param("w", np.ones((4, shape[1], 3, 3), np.float32))
    graph = hx.graph(hx.grad(hx.reduce_sum(hx.conv(x, w)), w))
    for got in (evaluated_once(graph, shape), hx.compile(graph)(np.zeros(shape, np.float32))):
        assert got.shape == w.shape
        assert not got.any()


def evaluated_once(graph: hx.Graph, shape: tuple[int, ...]) -> Array:
    return next(iter(run_reference(graph, {"x": np.zeros(shape, np.float32)}).values()))


def test_an_input_that_is_given_twice_gets_the_gradient_of_each_place_once() -> None:
    """Self-attention of one tensor was given three times its gradient."""
    x = hx.input("x", (1, 3, 4), "fp64")
    array = some(1, 3, 4)
    y = hx.scaled_dot_product_attention(x, x, x)
    (got,) = evaluated([hx.grad(hx.reduce_sum(hx.square(y)), x)], {"x": array})
    parts = [hx.input(n, (1, 3, 4), "fp64") for n in "abc"]
    other = hx.scaled_dot_product_attention(*parts)
    each = evaluated(hx.grad(hx.reduce_sum(hx.square(other)), parts), dict.fromkeys("abc", array))
    np.testing.assert_allclose(got, sum(each), rtol=1e-12, atol=1e-12)


# torch.nn.functional.cross_entropy (2.13.0) with label_smoothing=0.1 and labels 2, ignored, 0.
SMOOTHED = {
    "mean": (0.7894347310, [[0.2852077782, -0.0016372241, -0.2835705578], [0, 0, 0], [-0.1340461671, 0.1056975796, 0.0283486228]]),
    "sum": (1.5788694621, [[0.5704155564, -0.0032744482, -0.5671411156], [0, 0, 0], [-0.2680923342, 0.2113951593, 0.0566972456]]),
}  # fmt: skip


@pytest.mark.parametrize("reduction", SMOOTHED)
def test_smoothed_labels_are_those_of_torch(reduction: str) -> None:
    logits = hx.input("logits", (3, 3))
    labels = np.array([2, -100, 0])
    loss = hx.cross_entropy(logits, labels, label_smoothing=0.1, reduction=reduction)
    net = hx.compile(hx.graph({"loss": loss, "g": hx.grad(loss, logits)}))
    found = net(np.array([[1, -2, 0.5], [0.3, 0.2, -1], [2, 1, 0]], np.float32))
    for got, want in zip((found["loss"], found["g"]), SMOOTHED[reduction], strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("share", [-0.1, 1.5, np.nan])
def test_a_share_of_labels_outside_0_to_1_is_refused(share: float) -> None:
    with pytest.raises(hx.Error, match=r"label_smoothing: got .*, need a share in 0\.\.1"):
        hx.cross_entropy(hx.input("logits", (3, 3)), np.array([0, 1, 2]), label_smoothing=share)


def refused(make: Callable[[hx.Tensor], object]) -> str:
    x = hx.input("x", (1, 2, 4, 4, 4))
    with pytest.raises(hx.Error) as told:
        make(x)
    return str(told.value)


def test_what_is_not_differentiable_is_named_with_its_path() -> None:
    index = np.array([[0]])
    said = refused(lambda x: hx.grad(hx.reduce_sum(hx.exp(hx.scatter_nd(x, index, x, mode="max"))), x))
    assert "mode 'max'" in said
    assert "scatter_nd -> exp -> reduce_sum" in said
    assert "test_grad.py" in said


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda x: hx.grad(x, x), "need one number, or a seed"),
        (lambda x: hx.grad(hx.reduce_argmax(hx.reshape(x, shape=(128,))), x), "which has no gradient, need floats"),
        (lambda x: hx.grad(hx.reduce_sum(hx.round(x)), x), "only through step functions and integers"),
        (lambda x: hx.grad(hx.reduce_sum(x), hx.input("z", (2,))), "does not depend on input"),
        (lambda x: hx.grad(hx.reduce_sum(x), []), "wrt: got []"),
        (lambda x: hx.grad(hx.reduce_sum(x), 3), "wrt: got 3"),
        (lambda x: hx.grad(x, x, seed=np.ones(3)), "seed: got"),
    ],
)
def test_what_has_no_gradient_says_why(make: Callable[[hx.Tensor], object], words: str) -> None:
    assert words in refused(make)


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_the_ends_of_a_clip_have_the_gradient_of_torch_clamp(dtype: str) -> None:
    """PyTorch 2.13 printed these for clamp and relu6 at -1, 0, 1, 6 and 7."""
    x = hx.input("x", (5,), dtype)
    values = np.array([-1, 0, 1, 6, 7], np.float64 if dtype == "fp64" else np.float32)
    for y, want in ((hx.clip(x, alpha=-1, beta=1), [1, 1, 1, 0, 0]), (hx.relu6(x), [0, 0, 1, 0, 0])):
        (dx,) = hx.grad(hx.reduce_sum(y), [x])
        np.testing.assert_array_equal(hx.compile(hx.graph(dx))(values), want)
