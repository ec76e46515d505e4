"""Networks that multiply in bf16: how far they are from fp32, and what else changes."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import hexane as hx
from hexane import _core
from hexane.errors import Error


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> hx.Tensor:
    return hx.const((rng.standard_normal(shape) * scale).astype(np.float32))


def image_network() -> hx.Graph:
    """Pixels of 0..255, a 7x7 convolution of three channels, a residual block, a depthwise convolution and classes."""
    rng = np.random.default_rng(0)
    x = hx.input("x", (1, 3, 32, 32))
    y = hx.relu(hx.conv(x, normal(rng, 24, 3, 7, 7, scale=147**-0.5), normal(rng, 24), strides=2, pad=3))
    z = hx.relu(hx.conv(y, normal(rng, 24, 24, 3, 3, scale=216**-0.5), normal(rng, 24), pad=1))
    z = hx.relu(hx.conv(z, normal(rng, 24, 24, 3, 3, scale=216**-0.5), pad=1) + y)
    z = hx.conv(z, normal(rng, 24, 1, 3, 3, scale=1 / 3), groups=24, pad=1)
    pooled = hx.reshape(hx.reduce_mean(z, axes=(2, 3)), shape=(1, 24))
    return hx.graph([hx.linear(pooled, normal(rng, 10, 24, scale=24**-0.5), normal(rng, 10))])


def text_network() -> hx.Graph:
    rng = np.random.default_rng(1)
    x = hx.input("x", (2, 33, 64))
    parts = [hx.linear(x, normal(rng, 64, 64, scale=1 / 8), normal(rng, 64)) for _ in range(3)]
    heads = [hx.transpose(hx.reshape(p, shape=(2, 33, 4, 16)), perm=(0, 2, 1, 3)) for p in parts]
    mixed = hx.transpose(hx.scaled_dot_product_attention(*heads), perm=(0, 2, 1, 3))
    y = hx.layer_norm(x + hx.reshape(mixed, shape=(2, 33, 64)), hx.const(np.ones(64, np.float32)), axes=(-1,))
    hidden = hx.gelu(hx.linear(y, normal(rng, 256, 64, scale=1 / 8), normal(rng, 256)))
    return hx.graph([y + hx.linear(hidden, normal(rng, 64, 256, scale=1 / 16), normal(rng, 64))])


def feed(name: str) -> np.ndarray:
    rng = np.random.default_rng(2)
    if name == "image":
        return rng.uniform(0, 255, (1, 3, 32, 32)).astype(np.float32)
    return (rng.standard_normal((2, 33, 64))).astype(np.float32)


NETWORKS = {"image": (image_network, 4, 1), "text": (text_network, 5, 0)}  # products in bf16, and other convolutions


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_in_bf16_is_near_the_one_in_fp32(name: str) -> None:
    made, products, others = NETWORKS[name]
    x = feed(name)
    net, wide = hx.compile(made(), dtype="bf16"), hx.compile(made())
    nodes = [step.node.op for step in net.program.steps]
    assert sum(op in ("cpu.bf16_matmul", "cpu.bf16_conv") for op in nodes) == products
    assert sum(op in ("cpu.matmul", "cpu.conv") for op in nodes) == others
    assert [p.dtype.name for p in (*net.inputs, *net.outputs)] == ["fp32", "fp32"]
    got, want = np.asarray(net(x)), np.asarray(wide(x))
    error = np.abs(got - want).max() / np.abs(want).max()
    assert 1e-6 < error < 0.02


@pytest.mark.parametrize("name", NETWORKS)
def test_threads_do_not_change_the_bits(name: str) -> None:
    x = feed(name)
    results = [np.asarray(hx.compile(NETWORKS[name][0](), dtype="bf16", threads=n)(x)) for n in (1, 2, 3)]
    assert all(r.tobytes() == results[0].tobytes() for r in results)


def test_forms_of_the_instruction_agree() -> None:
    x, forms = feed("text"), _core.bf16_forms()
    results = []
    for form in forms:
        _core.use_bf16_form(form)
        results.append(np.asarray(hx.compile(text_network(), dtype="bf16")(x)))
    _core.use_bf16_form(forms[0])
    for other in results:
        np.testing.assert_allclose(other, results[0], atol=0.02 * np.abs(results[0]).max(), rtol=0)


def test_weights_take_half_the_bytes(tmp_path: Path) -> None:
    sizes = {}
    for dtype in ("fp32", "bf16"):
        hx.compile(text_network(), dtype=dtype).save(tmp_path / dtype)
        sizes[dtype] = (tmp_path / dtype).stat().st_size
    weights = 4 * (3 * 64 * 64 + 2 * 64 * 256)
    assert abs(sizes["fp32"] - sizes["bf16"] - weights / 2) < weights / 20
    x = feed("text")
    saved = hx.load(tmp_path / "bf16")
    assert np.array_equal(np.asarray(saved(x)), np.asarray(hx.compile(text_network(), dtype="bf16")(x)))


def test_attention_of_many_keys_is_in_bf16() -> None:
    rng = np.random.default_rng(4)
    for keys, op in ((191, "scaled_dot_product_attention"), (192, "cpu.bf16_scaled_dot_product_attention")):
        q, k, v = (hx.input(n, (2, s, 32)) for n, s in (("q", 64), ("k", keys), ("v", keys)))
        graph = hx.graph([hx.scaled_dot_product_attention(q, k, v)])
        feed = {p.name: rng.standard_normal(p.shape).astype(np.float32) for p in hx.compile(graph).inputs}
        nets = [hx.compile(graph, dtype="bf16", threads=n) for n in (1, 2)]
        assert [step.node.op for step in nets[0].program.steps] == [op]
        got, again = (np.asarray(net(feed)) for net in nets)
        assert got.tobytes() == again.tobytes()
        want = np.asarray(hx.compile(graph)(feed))
        assert np.linalg.norm(got - want) <= 0.01 * np.linalg.norm(want)


def stored_narrow(net: hx.Model) -> int:
    return sum(step.node.attrs.get("narrow", False) for step in net.program.steps)


def test_what_only_products_read_is_stored_in_bf16() -> None:
    """The bits are those of results in fp32, which an output makes of them."""
    rng = np.random.default_rng(5)
    weights = [
        normal(rng, 48, 32, scale=1 / 6),
        normal(rng, 40, 48, scale=1 / 7),
        normal(rng, 24, 40, 3, 3, scale=1 / 19),
    ]
    weights.append(normal(rng, 24, 24, 1, 1, scale=1 / 5))

    def network(outputs: bool) -> hx.Graph:
        hidden = hx.gelu(hx.linear(hx.input("x", (1, 90, 32)), weights[0]))
        mixed = hx.linear(hidden, weights[1])
        image = hx.transpose(hx.reshape(mixed, shape=(1, 9, 10, 40)), perm=(0, 3, 1, 2))
        first = hx.relu(hx.conv(image, weights[2], pad=1))
        second = hx.conv(first, weights[3])
        return hx.graph([second, hidden, first] if outputs else [second])

    x = rng.standard_normal((1, 90, 32)).astype(np.float32)
    net, wide = (hx.compile(network(outputs), dtype="bf16") for outputs in (False, True))
    assert (stored_narrow(net), stored_narrow(wide)) == (2, 0)
    assert np.array_equal(np.asarray(net(x)), np.asarray(wide(x)[wide.outputs[0].name]))


def test_products_in_a_row_store_bf16() -> None:
    rng = np.random.default_rng(5)
    x = hx.input("x", (9, 32))
    for _ in range(5):
        x = hx.linear(x, normal(rng, 32, 32))
    net = hx.compile(hx.graph([x]), dtype="bf16")
    assert [step.node.attrs["narrow"] for step in net.program.steps] == [True, True, True, True, False]


def inverted_residuals() -> hx.Graph:
    """MobileNetV2's blocks, on pixels of 0..255: a wide product, a depthwise convolution, a narrow product."""
    rng = np.random.default_rng(7)
    x = hx.input("x", (1, 3, 24, 24))
    x = hx.relu6(hx.conv(x, normal(rng, 16, 3, 3, 3, scale=1e-2), strides=2, pad=1))
    for stride in (1, 2, 1):
        y = hx.relu6(hx.conv(x, normal(rng, 96, 16, 1, 1, scale=0.2), normal(rng, 96)))
        y = hx.relu6(hx.conv(y, normal(rng, 96, 1, 3, 3, scale=0.3), normal(rng, 96), groups=96, strides=stride, pad=1))
        y = hx.conv(y, normal(rng, 16, 96, 1, 1, scale=0.1), normal(rng, 16))
        x = x + y if stride == 1 else y
    return hx.graph([x])


def test_a_depthwise_convolution_between_products_reads_and_stores_bf16() -> None:
    net, wide = hx.compile(inverted_residuals(), dtype="bf16"), hx.compile(inverted_residuals())
    kinds = [(s.node.op, s.node.inputs[0].dtype.name, s.node.types[0].dtype.name) for s in net.program.steps]
    between = [kind for kind in kinds if kind[0] == "cpu.bf16_stored_conv"]
    assert between == [("cpu.bf16_stored_conv", "bf16", "bf16")] * 3
    assert kinds.count(("cpu.bf16_conv", "bf16", "fp32")) == 3  # the narrow product, which may add the residual
    x = np.random.default_rng(8).uniform(0, 255, (1, 3, 24, 24)).astype(np.float32)
    got, want = np.asarray(net(x)), np.asarray(wide(x))
    assert 1e-6 < np.linalg.norm(got - want) / np.linalg.norm(want) < 0.01
    again = np.asarray(hx.compile(inverted_residuals(), dtype="bf16", threads=3)(x))
    assert again.tobytes() == got.tobytes()


def test_a_depthwise_convolution_that_other_ops_read_stays_in_fp32() -> None:
    rng = np.random.default_rng(9)
    x = hx.conv(hx.input("x", (1, 8, 12, 12)), normal(rng, 32, 8, 1, 1))
    y = hx.conv(x, normal(rng, 32, 1, 3, 3), groups=32, pad=1)
    pooled = hx.reduce_mean(y, axes=(2, 3), keep_dims=True)
    net = hx.compile(hx.graph([hx.conv(y, normal(rng, 8, 32, 1, 1)), pooled]), dtype="bf16")
    assert [s.node.op for s in net.program.steps].count("cpu.conv") == 1
    assert stored_narrow(net) == 0


def test_a_model_in_bf16_still_computes_in_fp32() -> None:
    """Its results are rounded once, and subnormal ones stay."""
    weight = np.ones((1, 4), np.float32) * 2.0**-70
    graph = hx.graph([hx.matmul(hx.input("x", (1, 4), "bf16"), hx.const(weight.T.astype(ml_dtypes.bfloat16)))])
    x = np.full((1, 4), 2.0**-60, ml_dtypes.bfloat16)
    assert np.asarray(hx.compile(graph)(x)).astype(np.float32) == np.float32(2.0**-128)


def test_a_residual_stays_in_fp32() -> None:
    rng = np.random.default_rng(6)
    x = hx.linear(hx.input("x", (9, 32)), normal(rng, 32, 32))
    net = hx.compile(hx.graph([x + hx.linear(x, normal(rng, 32, 32))]), dtype="bf16")
    assert stored_narrow(net) == 0


def test_a_chip_refuses_the_dtype() -> None:
    with pytest.raises(Error, match=r"dtype: got 'bf16' for M5 \(h17\), which computes in fp16"):
        hx.compile(text_network(), target="M5", dtype="bf16")


def test_working_memory_may_be_short() -> None:
    x = feed("image")
    want = np.asarray(hx.compile(image_network(), dtype="bf16")(x))
    net = hx.compile(image_network(), dtype="bf16", memory=hx.Memory(rows=1))
    assert np.array_equal(np.asarray(net(x)), want)
