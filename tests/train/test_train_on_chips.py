"""A training step compiled for chips: params stay in fp32, updates are the host's, and the losses follow the host's."""

import warnings

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Array

pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")
STEPS = 25
SHAPES = {"w1": (8, 1, 3, 3), "b1": (8,), "w2": (10, 128), "b2": (10,)}


def batch(number: int) -> dict[str, Array]:
    rng = np.random.default_rng(number)
    labels = rng.integers(0, 10, 16).astype(np.int32)
    pictures = np.random.default_rng(99).standard_normal((10, 1, 8, 8))
    return {"x": (pictures[labels] + rng.standard_normal((16, 1, 8, 8))).astype(np.float32), "labels": labels}


def compiled(target: str, numerics: str = "", loss_scale: float = 1.0) -> hx.Model:
    rng = np.random.default_rng(1)
    p = {n: hx.param(n, (rng.standard_normal(s) * 0.2).astype(np.float32)) for n, s in SHAPES.items()}
    y = hx.max_pool(hx.relu(hx.conv(hx.input("x", (16, 1, 8, 8)), p["w1"], p["b1"], pad=1)), kernel_sizes=2, strides=2)
    loss = hx.cross_entropy(hx.linear(hx.flatten(y), p["w2"], p["b2"]), hx.input("labels", (16,), "int32"))
    step = hx.train.step(loss, list(p.values()), hx.train.adamw(5e-3), clip=1.0, loss_scale=loss_scale)
    made = hx.compile(step, target=target, numerics=numerics, device="cpu", threads=1)
    assert isinstance(made, hx.Model)
    return made


def losses(net: hx.Model) -> Array:
    return np.array([net(batch(i))["loss"] for i in range(STEPS)])


@pytest.mark.parametrize(
    ("target", "numerics"), [("h13", "ieee"), ("h13", "engine"), ("h16", "engine"), ("h17s", "engine")]
)
def test_losses_on_a_chip_follow_those_of_the_host(target: str, numerics: str) -> None:
    want, net = losses(compiled("host")), compiled(target, numerics)
    got = losses(net)
    assert want[-1] < 0.6 * want[0]
    np.testing.assert_allclose(got, want, rtol=0.02, atol=0.01)
    assert net.read_state("w1").dtype == net.read_state("w1.v").dtype == np.float32


@pytest.mark.parametrize("target", ["h13", "h17s"])
def test_a_large_loss_scale_overflows_nothing(target: str) -> None:
    """Squares of gradients are added up on the host: fp16 ends at 65504."""
    want, net = losses(compiled("host")), compiled(target, "engine", loss_scale=1024.0)
    np.testing.assert_allclose(losses(net), want, rtol=0.02, atol=0.01)
    assert np.isfinite(net(batch(0))["norm"])


def test_the_engine_has_the_products_and_the_host_the_updates() -> None:
    program = compiled("h13").program
    assert program is not None
    on_engine = {n.op for s in program.segments if s.device == "ane" for n in s.nodes}
    assert {"conv", "matmul"} & on_engine or "linear" in on_engine
    assert not on_engine & {"adam_step", "squared_norm"}
    reasons = [d.reason for d in program.decisions if d.node.startswith("adam_step") and d.verdict == "host"]
    assert len(reasons) == len(SHAPES)
    assert all("fp16 holds neither" in r for r in reasons)


def trainer(target: str, loss_scale: float, width: int = 3) -> hx.train.Trainer:
    rng = np.random.default_rng(1)
    w = hx.param("w", (rng.standard_normal((10, 1, 3, width)) * 0.2).astype(np.float32))
    images = hx.conv(hx.input("x", (16, 1, 8, 8)), w, pad=(1, 1, width // 2, width // 2))
    y = hx.reduce_mean(images, axes=(2, 3), keep_dims=False)
    loss = hx.cross_entropy(y, hx.input("labels", (16,), "int32"))
    options = hx.Options(target=target, device="cpu")
    return hx.train.Trainer(loss, [w], hx.train.sgd(0.1), loss_scale=loss_scale, options=options)


@pytest.mark.filterwarnings("default::hexane.HazardWarning")
def test_a_large_scale_is_warned_of_where_wide_slices_overflow() -> None:
    made = trainer("h13", 1024.0)
    with pytest.warns(hx.HazardWarning, match=r"above 4094 into infinity.*loss_scale=1024 the largest .* is 0\.[0-9]+"):
        made.fit(batch, 1)
    made.fit(batch, 2)  # warned of once


@pytest.mark.parametrize(("target", "scale", "width"), [("h16", 1024.0, 3), ("h13", 256.0, 3), ("h13", 1024.0, 1)])
def test_no_other_training_is_warned_of(target: str, scale: float, width: int) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer(target, scale, width).fit(batch, 1)
    assert not [w for w in caught if "above 4094" in str(w.message)]


@pytest.mark.parametrize("tied", [True, False])
def test_rows_of_an_embedding_are_summed_in_fp32_on_the_host(tied: bool) -> None:
    """A sum of many small gradients stands still in fp16."""
    rng = np.random.default_rng(3)
    table, head = (hx.param(n, rng.standard_normal((40, 16)).astype(np.float32)) for n in ("table", "head"))
    rows = hx.gather(table, hx.input("ids", (6,), "int32"), axis=0)
    loss = hx.reduce_mean(hx.square(hx.matmul(rows, table if tied else head, transpose_y=True)))
    step = hx.train.step(loss, [table] if tied else [table, head], hx.train.sgd(1.0), accumulate=2)
    ids = rng.integers(0, 40, 6).astype(np.int32)
    nets = [hx.compile(step, target=target, device="cpu", threads=1) for target in ("h13", "host")]
    for net in nets:
        for _ in range(4):
            net(ids=ids)
        assert net.read_state("table.grad").dtype == np.float32
    np.testing.assert_allclose(nets[0].read_state("table"), nets[1].read_state("table"), rtol=0.02, atol=0.02)
    on_engine = {n.op for s in nets[0].program.segments if s.device == "ane" for n in s.nodes}
    assert "matmul" in on_engine
    assert not on_engine & {"scatter_nd", "restart_sum", "accumulate_step"}
