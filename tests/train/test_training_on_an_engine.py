"""`hexane train` where there is an engine: the dispatch of macOS, with what stands in for its framework."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from engines import stand_in_engine
from hexane.runtime.states import read_states
from hexane.train.decoder.training import DecoderTraining, TrainingOptions
from hexane.train.kernels import Variant
from stand_in import StandIn, needs_stand_in

pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")
CONFIG = hx.train.LlamaConfig(vocab=61, dim=32, hidden=48, layers=2, heads=4, kv_heads=2, seq=16)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    ids = np.random.default_rng(0).integers(0, 61, 2000).astype(np.uint16)
    hx.train.save_tokens(tmp_path / "tokens.bin", [ids], vocab=61)
    return tmp_path / "tokens.bin"


@pytest.fixture(autouse=True)
def framework(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    needs_stand_in()
    made = StandIn()
    device = stand_in_engine()
    monkeypatch.setattr("hexane.runtime.engine.find_engine", lambda _: (device, ""))
    return made


def training(tokens: Path, folder: Path, device: str = "auto", target: str = "h13") -> DecoderTraining:
    options = TrainingOptions(steps=6, accumulate=2, lr=1e-2, target=target, loss_scale=1024.0)
    return DecoderTraining(
        CONFIG, None, tokens, folder, options, evaluation=tokens, evaluated=4, threads=1, device=device
    )


def run(made: DecoderTraining, batches: int, resume: bool = False) -> list[float]:
    found = made.trainer.fit(made.windows, batches, checkpoint_every=4, resume=resume, progress=False)
    return [entry["loss"] for entry in found]


def test_the_engine_trains_and_goes_on_bit_for_bit(tokens: Path, tmp_path: Path) -> None:
    whole, parts = (training(tokens, tmp_path / name) for name in ("whole", "parts"))
    assert whole.trainer.net.device.startswith("ane (")
    assert "12 programs of" in whole.trainer.net.device
    losses = run(whole, 12)
    assert losses[:6] == run(parts, 6)
    assert losses[6:] == run(training(tokens, tmp_path / "parts"), 12, resume=True)
    mine, theirs = (read_states(tmp_path / name / "checkpoint.hxc") for name in ("parts", "whole"))
    for name, array in mine.items():
        assert array.tobytes() == theirs[name].tobytes(), name
    assert np.isfinite(whole.trainer.evaluate(whole.evaluation or [])["loss"])


@pytest.mark.parametrize(("variant", "count"), [("cpu-head", 6), ("ane-head", 10)])
def test_layers_share_programs(variant: Variant, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many are compiled and loaded as there are kernels, however many layers: weights are inputs."""
    kept = []
    for layers in (1, 3):
        model = hx.train.llama(replace(CONFIG, layers=layers, seq=8), seed=1)
        step = hx.train.step(model.loss, list(model.params.values()), hx.train.adamw(1e-3))
        device = stand_in_engine()
        monkeypatch.setattr("hexane.runtime.engine.find_engine", lambda _, device=device: (device, ""))
        before = device.counters
        net = hx.compile(hx.train.on_engine(step, variant), target="h13", device=hx.Device("ane", cache=False))
        after = device.counters
        assert [after[what] - before[what] for what in ("compiled", "loaded")] == [count, count]
        kept.append(net)


def test_what_the_engine_trained_goes_on_anywhere(tokens: Path, tmp_path: Path) -> None:
    engine = run(training(tokens, tmp_path / "run"), 6)
    host = run(training(tokens, tmp_path / "host", target="host"), 8)
    np.testing.assert_allclose(engine, host[:6], rtol=0.01)
    rest = run(training(tokens, tmp_path / "run", device="cpu"), 8, resume=True)
    np.testing.assert_allclose(rest, host[6:], rtol=0.01)


def test_an_engine_that_gives_up_leaves_the_checkpoint_before(tokens: Path, tmp_path: Path, framework: StandIn) -> None:
    made = training(tokens, tmp_path / "run")
    run(made, 4)
    before = (tmp_path / "run" / "checkpoint.hxc").read_bytes()
    framework.set(**{"raise": 1})
    with pytest.raises(hx.DeviceError, match=r"\[train\.fit\] batch 4: .*NSInternalInconsistencyException"):
        run(made, 12)
    assert (tmp_path / "run" / "checkpoint.hxc").read_bytes() == before
    with pytest.raises(hx.Error, match="half way"):
        run(made, 12)
    with pytest.raises(hx.Error, match="half way"):
        made.trainer.save()
    losses = run(made, 12, resume=True)
    assert losses == run(training(tokens, tmp_path / "whole"), 12)[4:]
