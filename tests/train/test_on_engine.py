"""A training step whose programs of the engine are cut out: the same numbers on the host, and those programs on chips."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from engines import plan_engine
from hexane.graph import Array, Graph
from hexane.passes.retarget.marked import HOST
from hexane.train.kernels import Variant

pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")
SMALL = {"vocab": 61, "dim": 32, "hidden": 48, "layers": 2, "heads": 4, "seq": 16}
CHIPS = [
    ("h13", "ieee"),
    ("h17s", "engine"),
    *(pytest.param(chip, "engine", marks=pytest.mark.slow) for chip in ("h13", "h16")),
]
STEPS = 10


def config(**changes: Any) -> hx.train.LlamaConfig:
    return hx.train.LlamaConfig(**{**SMALL, **changes})


def step(c: hx.train.LlamaConfig, batch: int = 1, **options: Any) -> Graph:
    model = hx.train.llama(c, batch=batch, seed=1)
    return hx.train.step(model.loss, list(model.params.values()), hx.train.adamw(3e-3), **options)


def feed(number: int, batch: int = 1) -> dict[str, Array]:
    rng = np.random.default_rng(number % 3)
    tokens = rng.integers(0, SMALL["vocab"], (batch, SMALL["seq"])).astype(np.int32)
    return {"tokens": tokens, "labels": np.roll(tokens, -1, axis=1)}


def losses(graph: Graph, batch: int = 1, **options: Any) -> Array:
    net = hx.compile(graph, **options)
    return np.array([net(feed(i, batch))["loss"] for i in range(STEPS)])


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("changes", [{}, {"kv_heads": 2}, {"rope": "half", "tied": False}], ids=["MHA", "GQA", "half"])
def test_the_cut_step_computes_what_the_step_does(changes: dict[str, Any], batch: int) -> None:
    given = {"clip": 1.0, "accumulate": 2}
    whole = losses(step(config(**changes), batch, **given), batch)
    cut = losses(hx.train.on_engine(step(config(**changes), batch, **given)), batch)
    assert whole[-1] < 0.95 * whole[0]
    np.testing.assert_allclose(cut, whole, rtol=1e-4)


@pytest.mark.parametrize("targets", [("h13",), pytest.param(("h12", "h17s"), marks=pytest.mark.slow)])
@pytest.mark.parametrize("changes", [{}, {"kv_heads": 2, "tied": False}], ids=["tied", "separate"])
def test_with_the_head_on_the_engine_losses_are_the_same(changes: dict[str, Any], targets: tuple[str, ...]) -> None:
    whole = losses(step(config(**changes)))
    np.testing.assert_allclose(losses(hx.train.on_engine(step(config(**changes)), "ane-head")), whole, rtol=1e-5)
    for target in targets:
        cut = hx.train.on_engine(step(config(**changes), loss_scale=1024.0), "ane-head")
        np.testing.assert_allclose(losses(cut, target=target), whole, rtol=0.01)


@pytest.mark.parametrize("changes", [{}, {"kv_heads": 2, "rope": "half"}], ids=["MHA", "GQA"])
def test_six_programs_a_layer_follow_one_for_each_product(changes: dict[str, Any]) -> None:
    """The oracle: what the first trainers on the engine did, in the same arithmetic."""
    six, each = (
        losses(hx.train.on_engine(step(config(**changes), loss_scale=1024.0), variant), target="h13")
        for variant in ("cpu-head", "linear")
    )
    np.testing.assert_allclose(six, each, rtol=2e-3)


@pytest.mark.parametrize("target", ["h13", "h17s"])
def test_with_the_head_each_program_is_a_segment_too(target: str) -> None:
    """32,000 classes are as many channels of an output as chips have in one convolution."""
    graph = step(config(layers=1, vocab=32000))
    made = hx.train.kernels(graph, variant="ane-head")
    program = hx.compile(hx.train.on_engine(graph, "ane-head"), target=target).program
    assert program is not None
    assert Counter(s.device for s in program.segments)["ane"] == len(made) == 11


@pytest.mark.parametrize("target", ["h13", "h16", "h17s"])
def test_each_program_is_a_segment_with_one_input_and_one_output(target: str) -> None:
    c = config(kv_heads=2)
    graph = step(c)
    made = hx.train.kernels(graph)
    program = hx.compile(hx.train.on_engine(graph), target=target).program
    assert program is not None
    engine = [s for s in program.segments if s.device == "ane"]
    got = Counter((s.inputs[0].type.shape, s.outputs[0].type.shape) for s in engine)
    assert all(len(s.inputs) == len(s.outputs) == 1 for s in engine)
    assert {p.type.dtype.name for s in engine for p in (*s.inputs, *s.outputs)} == {"fp16"}
    assert got == Counter((k.graph.inputs[0].shape, k.graph.outputs[0].value.shape) for k in made)
    host = {node.op for s in program.segments if s.device == "host" for node in s.nodes}
    assert {"gather", "cross_entropy", "adam_step", "squared_norm", "scatter_nd"} <= host
    assert any(d.verdict == "host" and d.reason == HOST and d.node.startswith("matmul") for d in program.decisions)


def lora_step(targets: tuple[str, ...] = ("q", "v"), **changes: Any) -> Graph:
    c = config(**changes)
    rng = np.random.default_rng(4)
    weights = {name: rng.normal(0, 0.1, s).astype(np.float32) for name, s in c.shapes().items()}
    model = hx.train.llama(c, weights=weights, lora=hx.train.Lora(rank=2, targets=targets))
    return hx.train.step(model.loss, list(model.params.values()), hx.train.adamw(3e-3))


@pytest.mark.parametrize("variant", ["cpu-head", "ane-head", "linear"])
@pytest.mark.parametrize("lora", [False, True], ids=["whole", "adapters"])
def test_with_shared_keys_every_program_is_the_engine_s(variant: Variant, lora: bool) -> None:
    """The host's part has tensors of five axes there, whose views are joined; those around programs are not."""
    graph = lora_step(kv_heads=2, seq=32) if lora else step(config(kv_heads=2, seq=32))
    made = hx.train.kernels(graph, variant=variant)
    assert len({k.name for k in made}) == len(made)
    program = hx.compile(hx.train.on_engine(graph, variant), target="M4").program
    assert program is not None
    engine = [s for s in program.segments if s.device == "ane"]
    if variant == "linear":  # three products read one value, and share its reshape
        assert sum(n.op in ("matmul", "linear") for s in engine for n in s.nodes) == len(made) == len(engine)
        return
    got = Counter((s.inputs[0].type.shape, s.outputs[0].type.shape) for s in engine)
    assert got == Counter((k.graph.inputs[0].shape, k.graph.outputs[0].value.shape) for k in made)


def test_weights_that_are_not_trained_are_in_programs_too() -> None:
    both, once = ("fwdAttn", "fwdFFN", "ffnBwd"), ("sdpaBwd1", "sdpaBwd2", "qkvBwd")
    want_kinds = {**dict.fromkeys(both, 2), **dict.fromkeys(once, 1)}
    assert Counter(k.kind for k in hx.train.kernels(lora_step())) == want_kinds
    made = hx.train.kernels(lora_step(("q", "k", "v", "o", "gate", "up", "down")))
    assert Counter(k.kind for k in made) == want_kinds
    whole = {k.name: k for k in hx.train.kernels(step(config()))}
    for k in made:  # as the reference's table has them, and then the adapters' own
        for got, want in ((k.inputs, whole[k.name].inputs), (k.outputs, whole[k.name].outputs)):
            assert [t.channels for t in got][: len(want)] == [t.channels for t in want], k.name


def test_one_message_says_what_is_not_the_engine_s() -> None:
    graph = hx.train.on_engine(lora_step())
    with pytest.warns(hx.FallbackWarning) as caught:
        hx.compile(graph, target="M4")
    (said,) = (str(w.message) for w in caught)
    assert re.match(
        r"\[compile\] M4 \(h16g\): 3 products with weights are in no program of the engine: matmul at "
        r"model\.layers\.0.*\(no residual add ends the backward pass of its branch\)",
        said,
    )
    with pytest.warns(hx.FallbackWarning) as caught:
        hx.compile(hx.train.on_engine(step(config())), target="h11")
    (said,) = (str(w.message) for w in caught)
    assert re.search(r"\. 12 of 12 programs are not the engine's as a whole: .*sdpaBwd2 at layer0 and 1 more \(", said)


@pytest.mark.filterwarnings("error::hexane.FallbackWarning")
def test_the_host_s_part_is_no_fallback() -> None:
    program = hx.compile(hx.train.on_engine(step(config())), target="h16", fallback="error").program
    assert program is not None
    places = {node.where for s in program.segments for node in s.nodes}
    assert "linear at lm_head" in places or "matmul at lm_head" in places
    assert any("model.layers.1.mlp.up_proj" in place for place in places)


@pytest.mark.parametrize(("target", "numerics"), CHIPS)
def test_losses_on_a_chip_follow_those_of_the_host(target: str, numerics: str) -> None:
    """Four layers, ten steps, within a hundredth."""
    c = config(layers=4)
    want = losses(step(c))
    got = losses(hx.train.on_engine(step(c, loss_scale=1024.0)), target=target, numerics=numerics, device="cpu")
    assert want[-1] < 0.9 * want[0]
    np.testing.assert_allclose(got, want, rtol=0.01)


@pytest.mark.filterwarnings("default")
def test_losses_follow_those_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    from torch_llama import torch_loss

    c = config(layers=4)
    first = hx.train.llama(c, seed=1)
    net = hx.compile(hx.train.step(first.loss, list(first.params.values()), hx.train.adamw(3e-3)))
    weights = {name: torch.tensor(net.read_state(name), requires_grad=True) for name in first.params}
    optimizer = torch.optim.AdamW(list(weights.values()), lr=3e-3, weight_decay=0.01)
    cut = losses(hx.train.on_engine(step(c)))
    for i in range(STEPS):
        loss = torch_loss(c, weights, feed(i))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert abs(float(loss.detach()) - cut[i]) < 1e-4 * cut[i], i


def test_programs_run_behind_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written as MIL with its weights as inputs, read again, and run by a device."""
    monkeypatch.setattr("hexane.runtime.engine.find_engine", lambda _: (plan_engine(), ""))
    c = config(layers=1)
    want = losses(step(c))
    net = hx.compile(hx.train.on_engine(step(c, loss_scale=1024.0)), target="h13", device="ane")
    got = np.array([net(feed(i))["loss"] for i in range(STEPS)])
    np.testing.assert_allclose(got, want, rtol=0.01)


def test_gradients_are_products_of_what_programs_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """In fp16, as it is: with the bits of products of floats."""
    monkeypatch.setattr("hexane.runtime.engine.find_engine", lambda _: (plan_engine(), ""))
    graph = hx.train.on_engine(step(config(), loss_scale=1024.0))
    net = hx.compile(graph, target="h13", device="ane")
    monkeypatch.setattr("hexane.stages.segments.roots.keep_halves", lambda graph, *_: graph)
    wide = hx.compile(graph, target="h13", device="ane")
    for i in range(4):
        assert net(feed(i))["loss"].tobytes() == wide(feed(i))["loss"].tobytes()
    for name in net.state_names:
        assert net.read_state(name).tobytes() == wide.read_state(name).tobytes(), name
    assert isinstance(net, hx.Model)
    assert net.program is not None
    products = [s.node for s in net.program.steps if s.node.op == "cpu.widening_matmul"]
    assert len(products) == 7 * SMALL["layers"]
    copied = [s for s in net.steps if s["kernel"] == "copy" and s["source"].startswith("reshape at model.layers")]
    assert not copied


def test_gradients_of_weights_run_beside_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the threads do, the numbers are those of one step after the other."""
    monkeypatch.setattr("hexane.runtime.engine.find_engine", lambda _: (plan_engine(), ""))
    graph = hx.train.on_engine(step(config(), loss_scale=1024.0))
    made = [hx.compile(graph, target="h13", device="ane") for _ in range(2)]
    together, alone = made
    together.profile(True)
    for i in range(4):
        loss = together(feed(i))["loss"]
        traced = alone._core.trace(feed(i), lambda *_: None)
        assert loss.tobytes() == traced[0].tobytes()
    for name in together.state_names:
        assert together.read_state(name).tobytes() == alone.read_state(name).tobytes(), name
    steps = together.steps
    programs = [(i, s["waited"]) for i, s in enumerate(steps) if s["kernel"] == "program"]
    beside = [sum(s["kernel"] == "matmul" for s in steps[i + 1 : end]) for i, end in programs]
    assert len(programs) == 12
    assert sum(beside[4:]) >= 7 + 7 - 3  # seven weights a layer; those of the last program are there after it
    assert all(end > i + 1 for i, end in programs[4:])
    spans = together._core.timeline
    assert sorted(i for i, _, _ in spans) == list(range(len(steps)))
    assert all(begin <= end for _, begin, end in spans)
    ends = {i: (begin, end) for i, begin, end in spans}
    for i, end in programs:
        assert end == len(steps) or ends[i][1] <= ends[end][0]


def test_weights_that_stay_in_fp16_between_updates_are_those_of_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes all states before each call has every cast made again."""
    monkeypatch.setattr("hexane.runtime.engine.find_engine", lambda _: (plan_engine(), ""))
    graph = hx.train.on_engine(step(config(), loss_scale=1024.0, accumulate=3))
    kept, anew = (hx.compile(graph, target="h13", device="ane") for _ in range(2))
    for i in range(8):
        if i == 4:  # between two updates
            kept.update(**{"model.layers.0.mlp.down_proj.weight": np.full((32, 48), 0.125, np.float32)})
        if i == 7:
            kept.reset_state()
        for name in kept.state_names:
            anew.write_state(name, kept.read_state(name))
        assert kept(feed(i))["loss"].tobytes() == anew(feed(i))["loss"].tobytes(), i
        for name in kept.state_names:
            assert kept.read_state(name).tobytes() == anew.read_state(name).tobytes(), (i, name)


def test_a_step_without_programs_is_refused() -> None:
    x, w = hx.input("x", (4, 3)), hx.param("w", np.ones((2, 3), np.float32))
    graph = hx.train.step(hx.mse(hx.linear(x, w), np.zeros((4, 2), np.float32)), [w], hx.train.sgd(0.1))
    with pytest.raises(hx.Error, match=r"\[train.on_engine\] got a step without programs of the engine"):
        hx.train.on_engine(graph)


def test_a_trace_shows_programs_beside_gradients(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("hexane.runtime.engine.find_engine", lambda _: (plan_engine(), ""))
    model = hx.train.llama(config(), seed=1)
    trainer = hx.train.Trainer(
        model.loss,
        list(model.params.values()),
        hx.train.adamw(3e-3),
        loss_scale=1024.0,
        options=hx.Options(target="h13", device="ane"),
        programs=True,
    )
    trainer.fit(feed, 3, trace=tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    bars = [e for e in events if e["ph"] == "X"]
    programs = [e for e in bars if lanes[e["tid"]] == "engine"]
    assert len(bars) == len(trainer.net.steps)
    assert len(programs) == 12
    beside = [bar for p in programs for bar in bars if p["args"]["step"] < bar["args"]["step"] < p["args"]["waited"]]
    assert "matmul" in {bar["name"] for bar in beside}
    assert all(bar["ts"] >= 0 and bar["dur"] >= 0 for bar in bars)


def test_a_model_without_a_profiled_call_has_no_trace(tmp_path: Path) -> None:
    net = hx.compile(hx.graph(hx.relu(hx.input("x", (2, 3)))))
    with pytest.raises(hx.Error, match=r"\[save_trace\] got no call since profile\(\), need one"):
        net.save_trace(tmp_path / "trace.json")
    net.profile()
    net(np.ones((2, 3), np.float32))
    net.save_trace(tmp_path / "trace.json")
    assert [e["name"] for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]][-1] == "relu"
