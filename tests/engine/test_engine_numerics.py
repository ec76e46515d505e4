"""numerics="engine": what a chip's program returns is what the chip's products return, on the way from a network to the
numbers."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from test_engine_products import conv

import engine_planar
import hexane as hx
from engine_model import matmul, winograd
from hexane.graph import Array

RNG = np.random.default_rng(3)
WEIGHT = (RNG.standard_normal((20, 6, 3, 3)) * 0.2).astype(np.float16)
IMAGE = RNG.standard_normal((1, 6, 5, 7)).astype(np.float16)


def network() -> hx.Tensor:
    return hx.conv(hx.input("x", IMAGE.shape, "fp16"), WEIGHT, pad=(1, 1, 1, 1))


def run(net: hx.Model, x: Array) -> Array:
    (y,) = net(x).values() if isinstance(net(x), dict) else (net(x),)
    return np.asarray(y)


@pytest.mark.parametrize("chip", ["h13", "h14c", "h16c", "h17s", "h18g"])
def test_a_convolution_returns_what_the_chip_returns(chip: str, tmp_path: Path) -> None:
    net = hx.compile(network(), target=chip, numerics="engine")
    image, none = np.ascontiguousarray(IMAGE.transpose(0, 2, 3, 1)), np.zeros(len(WEIGHT), np.float16)
    by_winograd = chip in ("h17s", "h18g")
    want = winograd(image, WEIGHT, none, 1) if by_winograd else conv(image, WEIGHT, None, 1, pads=[1, 1, 1, 1])
    assert run(net, IMAGE).tobytes() == np.ascontiguousarray(want.transpose(0, 3, 1, 2)).tobytes()
    net.save(tmp_path / "net.hxp")
    assert run(hx.load(tmp_path / "net.hxp"), IMAGE).tobytes() == run(net, IMAGE).tobytes()


def test_an_accumulator_overflows_where_the_chip_s_does() -> None:
    x, w = np.full((2, 3), 200, np.float16), np.full((3, 4), 100, np.float16)
    nets = {
        n: hx.compile(hx.matmul(hx.input("x", x.shape, "fp16"), w), target="m1", numerics=n) for n in ("ieee", "engine")
    }
    assert (run(nets["ieee"], x) == 60000).all()
    assert (run(nets["engine"], x) == np.inf).all()
    assert run(nets["engine"], x / 4).tobytes() == matmul((x / 4).astype(np.float16), w).tobytes()
    assert "engine's arithmetic" in nets["engine"].device
    assert "ieee" in nets["ieee"].device


def test_a_product_that_a_gain_follows_is_still_the_chip_s() -> None:
    gain = np.linspace(0.3, 1.7, len(WEIGHT)).astype(np.float16).reshape(1, -1, 1, 1)
    net = hx.compile(network() * gain, target="h13", numerics="engine")
    product = run(hx.compile(network(), target="h13", numerics="engine"), IMAGE)
    assert run(net, IMAGE).tobytes() == engine_planar.binary("mul", product, gain).tobytes()


@pytest.mark.parametrize(
    "kind", ["int8", "int8 per channel", "int8 with a gain", "int8 quantised again", "linear", "palette"]
)
def test_weights_in_few_bits_are_those_of_fp16_to_the_chip(kind: str) -> None:
    """They are scaled before they are multiplied, by scales that fp16 has, as MIL's are."""
    rng = np.random.default_rng(8)
    stored = rng.integers(0 if kind == "palette" else -128, 128, (20, 7) if kind == "linear" else WEIGHT.shape)
    scale = np.float16(rng.uniform(0.001, 0.003, 20) if kind == "int8 per channel" else 0.0023).astype(np.float32)
    table = (rng.standard_normal(128) * 0.2).astype(np.float16)
    if kind == "palette":
        small, weight = hx.gather(hx.const(table), hx.const(stored), axis=0), table[stored]
    else:
        small = hx.dequantize(hx.const(stored.astype(np.int8)), hx.const(scale), dtype="fp16")
        weight = (stored * np.float64(scale).reshape(-1, *[1] * (stored.ndim - 1))).astype(np.float16)
    x = hx.input("x", IMAGE.shape, "fp16")

    def behind(filters: hx.Tensor) -> hx.Tensor:
        if kind == "linear":
            return hx.matmul(x, filters, transpose_y=True)
        y = hx.conv(x, filters, bias=np.linspace(-1, 1, 20).astype(np.float16), pad=(1, 1, 1, 1))
        y = y * np.linspace(0.3, 1.7, 20).astype(np.float16).reshape(1, -1, 1, 1) if "gain" in kind else y
        return hx.quantize(y, np.float32(0.05), dtype="int8") if "again" in kind else y

    net, plain = (hx.compile(behind(f), target="h16", numerics="engine") for f in (small, hx.const(weight)))
    assert run(net, IMAGE).tobytes() == run(plain, IMAGE).tobytes()
    assert net.program is not None
    assert [s.numerics.family for s in net.program.steps if s.kernel in ("conv", "matmul")] == ["engine"]
    fused = [d for d in net.program.decisions if (d.stage, d.verdict) == ("collapse_quant_dequant", "fused")]
    assert fused, "the layer reads weights in few bits, or this says nothing"


BEHIND: dict[str, Callable[[hx.Tensor], hx.Tensor]] = {
    "a number is added": lambda y: y + np.float16(1),
    "a number is added and an activation follows": lambda y: hx.relu(y + np.float16(0.3)),
    "it is taken from a number": lambda y: np.float16(1) - y,
    "two biases make one in fp32": lambda y: y + np.linspace(-1, 1, 20).astype(np.float16)[:, None, None] + np.float16(0.3),
    "a gain that the weights take leaves a bias in fp32": lambda y: (y + np.float16(0.7)) * np.float16(0.5),
    "it is quantised": lambda y: hx.quantize(y, np.float32(0.1), dtype="int8"),
}  # fmt: skip


@pytest.mark.parametrize("name", BEHIND)
def test_a_product_is_the_chip_s_whatever_stands_behind(name: str) -> None:
    net = hx.compile(BEHIND[name](network()), target="h13", numerics="engine")
    assert net.program is not None
    assert [s.numerics.family for s in net.program.steps if s.kernel == "conv"] == ["engine"]


def test_a_number_is_added_to_the_rounded_product() -> None:
    product = run(hx.compile(network(), target="h13", numerics="engine"), IMAGE)
    net = hx.compile(hx.relu(network() + np.float16(0.3)), target="h13", numerics="engine")
    want = np.maximum(engine_planar.binary("add", product, np.full_like(product, 0.3)), 0)
    assert run(net, IMAGE).tobytes() == want.tobytes()


def test_decisions_say_by_which_rule_a_step_computes_and_how_that_is_known() -> None:
    def said(y: hx.Tensor) -> list[tuple[str, str]]:
        net = hx.compile(y, target="h16", numerics="engine")
        assert net.program is not None
        return [(d.verdict, d.reason) for d in net.program.decisions if d.stage == "numerics"]

    products = "products in fixed point, rounded to 2^-16 one by one"
    assert said(network()) == [("engine", f"exact: {products}")]
    assert said(hx.gelu(network())) == [("engine", f"inferred: {products}; then gelu: by the table of gelu")]
    assert said(hx.exp(hx.input("x", (2, 3), "fp16"))) == [("engine", "measured: by the table of exp2")]
    assert said(hx.sin(network())) == [("engine", f"inferred: {products}; then sin: by the table of sin")]
    verdict, reason = said(hx.atan(hx.input("x", (2, 3), "fp16")))[0]
    assert verdict == "engine"
    assert reason.startswith("open: the formula itself, one rounding")
    small = hx.quantize(hx.input("x", (2, 3), "fp16"), np.float32(0.1), dtype="int8")
    assert ("ieee", "open: how the chip rounds to integers, halves above all, is not published") in said(small)


def test_softmax_and_attention_take_the_chip_s_steps() -> None:
    q, k, v = (RNG.standard_normal((1, 2, 9, 16)).astype(np.float16) for _ in range(3))
    x = hx.input("x", q.shape, "fp16")
    attended = hx.compile(hx.scaled_dot_product_attention(x, k, v, scale=0.25), target="h16", numerics="engine")
    want = np.stack([engine_planar.attention(q[0, i], k[0, i], v[0, i], 0.25, None) for i in range(2)])
    assert run(attended, q).tobytes() == want[None].tobytes()
    shares = hx.compile(hx.softmax(hx.relu(x), axis=3), target="h16", numerics="engine")
    assert run(shares, q).tobytes() == engine_planar.softmax(np.maximum(q, 0).reshape(18, 16)).tobytes()
    assert all(step.numerics.family == "engine" for net in (attended, shares) for step in net.program.steps)


def bottlenecks() -> hx.Tensor:
    """Dense, depthwise and pointwise convolutions, pools, activations and a residual, of which rows can be streamed."""
    rng = np.random.default_rng(4)

    def conv(x: hx.Tensor, outputs: int, size: int, groups: int = 1, stride: int = 1) -> hx.Tensor:
        weight = (
            rng.standard_normal((outputs, x.shape[1] // groups, size, size))
            * (2 / (x.shape[1] // groups * size * size)) ** 0.5
        )
        pad = (size // 2,) * 4
        return hx.conv(
            x,
            weight.astype(np.float16),
            rng.standard_normal(outputs).astype(np.float16),
            strides=(stride, stride),
            pad=pad,
            groups=groups,
        )

    x = hx.silu(conv(hx.input("x", (1, 3, 38, 37), "fp16"), 24, 3))
    y = hx.relu(conv(conv(x, 24, 3, groups=24), 40, 1))
    y = conv(hx.sigmoid(conv(y, 40, 3, groups=40, stride=1)) * y, 24, 1)
    y = hx.max_pool(x + y, kernel_sizes=(2, 2), strides=(2, 2))
    y = conv(hx.avg_pool(y, kernel_sizes=(3, 3)), 33, 5, stride=2)
    return y - hx.softmax(y, axis=1)


def test_a_chip_s_arithmetic_is_what_its_programs_compute_in_unless_told() -> None:
    x = np.float16([[2048, 5]])
    y = hx.relu(hx.input("x", x.shape, "fp16")) + hx.input("one", x.shape, "fp16")
    usual, ieee = hx.compile(y, target="h13"), hx.compile(y, target="h13", numerics="ieee")
    one = np.ones_like(x)
    assert usual(x, one).tolist() == hx.compile(y, target="h13", numerics="engine")(x, one).tolist() == [[2050, 6]]
    assert ieee(x, one).tolist() == [[2048, 6]]


def test_the_host_casts_what_goes_to_the_engine() -> None:
    """Programs of an engine have ports of fp16; the cast in front of one rounds halves to even."""
    x = hx.input("x", (3,))
    with pytest.warns(hx.FallbackWarning):
        net = hx.compile({"given": hx.relu(x), "of the host": hx.abs(hx.sinh(x * 0) + x)}, target="h13")
    got = net(np.float32([2049, 2051, -2049]))
    assert got["given"].tolist() == [2048, 2052, 0]
    assert got["of the host"].tolist() == [2048, 2052, 2048]
    assert net.program is not None
    said = {(d.verdict, d.reason) for d in net.program.decisions if d.stage == "numerics" and d.node.startswith("cast")}
    assert ("ieee", "decoded: the host casts what goes to the engine: to fp16, halves to even") in said


@pytest.mark.parametrize("chip", ["h13", "h17s"])
@pytest.mark.parametrize("size", [1, 300, 10000], ids=["small products", "large products", "overflows"])
def test_threads_and_streamed_rows_give_the_same_bits(chip: str, size: int) -> None:
    x = bottlenecks()
    image = (RNG.standard_normal((1, 3, 38, 37)) * size).astype(np.float16)
    options = [
        {"threads": 1},
        {"threads": 2},
        {"threads": 5},
        *({"threads": 2, "memory": hx.Memory(rows=rows)} for rows in (1, 2, 5)),
    ]
    nets = [hx.compile(x, target=chip, numerics="engine", **how) for how in options]  # type: ignore[arg-type]
    assert all(net.program and net.program.loops for net in nets[3:]), "some rows are streamed"
    results = [run(net, image).tobytes() for net in nets]
    assert [one == results[0] for one in results] == [True] * len(results)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"numerics": "engine"}, "need a chip"), ({"numerics": "bf16"}, "need 'engine', 'ieee' or 'q31'")],
)
def test_other_arithmetics_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(hx.Error, match=words):
        hx.compile(network(), **options)
