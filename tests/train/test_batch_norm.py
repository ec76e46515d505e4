"""Batch norm in training: PyTorch's numbers, and running statistics that move with the steps."""

from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Array

RNG = np.random.default_rng(11)
SHAPE = (4, 2, 3, 3)
BATCHES = RNG.standard_normal((3, *SHAPE)).astype(np.float32) * 2 + 0.5
WANTED = RNG.standard_normal((3, *SHAPE)).astype(np.float32)

# torch.nn.BatchNorm2d(2, momentum=0.2) after 3 steps of SGD(lr=0.1) on the mean squared error (2.13.0, CPU, fp32).
TORCH = {
    "mean": [0.22583884000778198, 0.31281858682632446],
    "variance": [2.154644727706909, 2.1554713249206543],
    "gamma": [0.7075579166412354, 0.7092979550361633],
    "beta": [-0.0007207189337350428, 0.03226778283715248],
}


def params(channels: int = 2) -> dict[str, hx.Tensor]:
    zeros, ones = np.zeros(channels, np.float32), np.ones(channels, np.float32)
    start = {"mean": zeros, "variance": ones, "gamma": ones, "beta": zeros}
    return {name: hx.param(name, array) for name, array in start.items()}


def stepper(**options: Any) -> hx.Model:
    p = params()
    y = hx.train.batch_norm(hx.input("x", SHAPE), *p.values(), momentum=0.2)
    step = hx.train.step(hx.mse(y, hx.input("y", SHAPE)), [p["gamma"], p["beta"]], hx.train.sgd(0.1), **options)
    net = hx.compile(step, threads=1)
    assert isinstance(net, hx.Model)
    return net


def states(net: hx.Model) -> dict[str, Array]:
    return {name: net.read_state(name) for name in TORCH}


def test_three_steps_are_those_of_torch() -> None:
    net = stepper()
    for x, y in zip(BATCHES, WANTED, strict=True):
        net(x=x, y=y)
    for name, array in states(net).items():
        np.testing.assert_allclose(array, TORCH[name], rtol=2e-6, atol=1e-6, err_msg=name)


def test_running_statistics_move_in_every_call_that_accumulates() -> None:
    net = stepper(accumulate=3)
    for x, y in zip(BATCHES, WANTED, strict=True):
        net(x=x, y=y)
    for name in ("mean", "variance"):
        np.testing.assert_allclose(net.read_state(name), TORCH[name], rtol=2e-6)


def test_a_batch_that_is_not_finite_leaves_the_running_statistics() -> None:
    net = stepper()
    net(x=BATCHES[0], y=WANTED[0])
    before = states(net)
    net(x=np.full(SHAPE, np.inf, np.float32), y=WANTED[0])
    for name, array in states(net).items():
        np.testing.assert_array_equal(array, before[name])


def test_batch_norms_that_share_running_statistics_move_them_one_after_the_other() -> None:
    p = params(3)
    mean, variance = p["mean"], p["variance"]
    y = hx.train.batch_norm(hx.input("x", (8, 3)), mean, variance, p["gamma"])
    z = hx.train.batch_norm(y + hx.input("x2", (8, 3)), mean, variance, p["gamma"])
    net = hx.compile(hx.train.step(hx.reduce_sum(z * z * z, keep_dims=False), [p["gamma"]], hx.train.sgd(0.1)))
    x, x2 = RNG.standard_normal((2, 8, 3)).astype(np.float32) + 1
    net(x=x, x2=x2)
    after = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5) + x2
    running, spread = np.zeros(3), np.ones(3)
    for one in (x, after):
        running, spread = 0.9 * running + 0.1 * one.mean(0), 0.9 * spread + 0.1 * one.var(0, ddof=1)
    np.testing.assert_allclose(net.read_state("mean"), running, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(net.read_state("variance"), spread, rtol=1e-5)


def test_running_statistics_that_are_constants_are_refused() -> None:
    p = params()
    y = hx.train.batch_norm(hx.input("x", SHAPE), hx.const(np.zeros(2, np.float32)), p["variance"], p["gamma"])
    with pytest.raises(hx.Error, match=r"mean of batch_norm_training .*got const, need an hx.param"):
        hx.train.step(hx.mse(y, hx.input("y", SHAPE)), [p["gamma"]], hx.train.sgd(0.1))


def test_one_param_cannot_be_both_statistics() -> None:
    p = params()
    y = hx.train.batch_norm(hx.input("x", SHAPE), p["mean"], p["mean"], p["gamma"])
    with pytest.raises(hx.Error, match="got 'mean' as mean and as variance"):
        hx.train.step(hx.mse(y, hx.input("y", SHAPE)), [p["gamma"]], hx.train.sgd(0.1))


def test_a_batch_of_one_element_for_each_channel_is_refused() -> None:
    p = params()
    with pytest.raises(hx.Error, match="need at least two"):
        hx.train.batch_norm(hx.input("x", (1, 2)), p["mean"], p["variance"])


def test_fp16_is_normalised_without_overflow() -> None:
    x = hx.input("x", (64, 2), "fp16")
    zeros = hx.const(np.zeros(2, np.float16))
    y = hx.batch_norm_training(x, zeros, zeros + np.float16(1))[0]
    array = (RNG.standard_normal((64, 2)) * 2000).astype(np.float16)
    got = hx.compile(hx.graph(y))(array)
    wide = array.astype(np.float64)
    np.testing.assert_allclose(got, (wide - wide.mean(0)) / wide.std(0), rtol=2e-3, atol=2e-3)
