"""numerics="engine": what a chip's program returns is what the chip's products return, on the way from a network to the numbers."""

from pathlib import Path

import numpy as np
import pytest
from test_engine_products import conv

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


def test_decisions_say_what_computes_in_which_arithmetic() -> None:
    net = hx.compile(hx.exp(network()), target="h13", numerics="engine")
    assert net.program is not None
    said = {d.node.partition(" at ")[0]: d.verdict for d in net.program.decisions if d.stage == "numerics"}
    assert said["conv"] == "engine"
    assert said.get("exp", "ieee") == "ieee"


@pytest.mark.parametrize(
    ("options", "words"), [({"numerics": "engine"}, "need a chip"), ({"numerics": "q31"}, "need 'ieee' or 'engine'")]
)
def test_other_arithmetics_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(hx.Error, match=words):
        hx.compile(network(), **options)
