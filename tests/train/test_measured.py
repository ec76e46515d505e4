"""What the log says of the machine: times by lane, operations, memory, compiles left."""

from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from engines import stand_in_engine
from hexane.train.lanes import LANES, PRODUCTS
from hexane.train.measured import most_memory, operations

LLAMA = hx.train.LlamaConfig(vocab=61, dim=32, hidden=48, layers=2, heads=4, kv_heads=2, seq=16)
BATCH, WIDE, HIDDEN, CLASSES = 16, 6, 12, 3
# Forward, and the gradient of each weight; the first layer's input needs no gradient.
OF_STEP = 2 * BATCH * (2 * WIDE * HIDDEN + 3 * HIDDEN * CLASSES)


def trainer(folder: Path | None = None) -> hx.train.Trainer:
    rng = np.random.default_rng(5)
    shapes = {"w1": (HIDDEN, WIDE), "w2": (CLASSES, HIDDEN)}
    p = {name: hx.param(name, rng.standard_normal(shape).astype(np.float32)) for name, shape in shapes.items()}
    logits = hx.linear(hx.relu(hx.linear(hx.input("x", (BATCH, WIDE)), p["w1"])), p["w2"])
    loss = hx.cross_entropy(logits, hx.input("labels", (BATCH,), "int32"))
    return hx.train.Trainer(loss, list(p.values()), hx.train.adamw(0.02), clip=1.0, folder=folder, threads=1)


def batch(number: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(number)
    x = rng.standard_normal((BATCH, WIDE)).astype(np.float32)
    return {"x": x, "labels": rng.integers(0, CLASSES, BATCH).astype(np.int32)}


def llama_step(target: str) -> hx.Model:
    model = hx.train.llama(LLAMA, seed=1)
    step = hx.train.step(model.loss, list(model.params.values()), hx.train.adamw(3e-3))
    made = hx.compile(step if target == "host" else hx.train.on_engine(step), target=target, threads=1)
    assert isinstance(made, hx.Model)
    return made


def test_an_entry_has_times_by_lane_operations_and_memory() -> None:
    before = most_memory()
    made = trainer()
    entries = made.fit(batch, 4, progress=False)
    assert operations(made.net) == (OF_STEP, 0)
    for one in entries:
        lanes = {name: one[name] for name in one if name.startswith("ms.")}
        assert lanes.keys() == {"ms.products", "ms.updates", "ms.other"}
        assert 0 < sum(lanes.values()) <= one["ms"]
        least, most = (OF_STEP / (one["ms"] + rest) / 1e9 for rest in (0.0006, -0.0006))  # ms is rounded
        assert 0.999 * least <= one["tflops"] <= 1.001 * most
        assert one["memory"] >= before
        assert "of_peak" not in one
        assert "compiles_left" not in one


def test_numbers_that_a_function_gives_are_logged() -> None:
    drawn = iter([{}, {"mw.cpu": 3.5}, {"mw.cpu": 4.5, "mw.ane": 1.0}])
    entries = trainer().fit(batch, 3, progress=False, watch=lambda: next(drawn))
    assert [(one.get("mw.cpu"), one.get("mw.ane")) for one in entries] == [(None, None), (3.5, None), (4.5, 1.0)]


@pytest.mark.filterwarnings("ignore::hexane.FallbackWarning")
def test_programs_of_an_engine_count_as_what_they_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    device = stand_in_engine()
    whole, none = operations(llama_step("h13"))
    monkeypatch.setattr("hexane.runtime.engine.find_engine", lambda _: (device, ""))
    net = llama_step("h13")
    all_of_it, of_engine = operations(net)
    assert net.is_on_engine
    assert (all_of_it, none) == (whole, 0)
    # Facts of the six kernels: products of the layers, forward and backward, but for gradients of weights.
    rows, dim, hidden, heads, key = LLAMA.seq, LLAMA.dim, LLAMA.hidden, LLAMA.heads, LLAMA.dim // LLAMA.heads
    linear = 2 * dim * dim + 2 * dim * key * LLAMA.kv_heads + 3 * dim * hidden  # weights of a layer
    scores = heads * rows * key  # multiply-adds of a row, for the scores and for the values each
    turned = (heads + LLAMA.kv_heads) * key * key  # the rotation swaps neighbours with a matrix
    forward, backward = linear + turned + 2 * scores, linear + turned + 5 * scores  # scores are computed again
    assert of_engine == 2 * LLAMA.layers * rows * (forward + backward)


@pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")
def test_on_an_engine_an_entry_has_its_lane_share_of_peak_and_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    device = stand_in_engine()
    monkeypatch.setattr("hexane.runtime.engine.find_engine", lambda _: (device, ""))
    model = hx.train.llama(LLAMA, seed=1)
    made = hx.train.Trainer(
        model.loss, list(model.params.values()), hx.train.adamw(3e-3), programs=True,
        options=hx.Options(target="M1"), threads=1, loss_scale=256.0,
    )  # fmt: skip
    ids = {port.name: np.arange(LLAMA.seq, dtype=np.int32)[None] for port in made.net.inputs}
    (one,) = made.fit(lambda _: ids, 1, progress=False)
    assert {name[3:] for name in one if name.startswith("ms.")} == {*LANES} - {"ranks"}
    peak = hx.project_peak("M1").tflops
    assert peak is not None
    assert one["of_peak"] == pytest.approx(operations(made.net)[1] / one["ms"] / 1e9 / peak, rel=1e-3)
    counters = device.counters
    assert one["compiles_left"] == counters["compile_limit"] - counters["compiled"] - counters["compiles_in_loads"]


def test_products_that_are_added_to_a_sum_are_products() -> None:
    w = hx.param("w", np.ones((64, 64), np.float32))
    loss = hx.reduce_sum(hx.square(hx.input("x", (32, 64)) @ w))
    net = hx.compile(hx.train.step(loss, [w], hx.train.sgd(0.1), accumulate=2), threads=1)
    assert isinstance(net, hx.Model)
    assert {step["kernel"] for step in net.steps} >= {"matmul", "accumulating_matmul"}
    assert {"matmul", "accumulating_matmul", "encoded_matmul", "encoded_rows_matmul"} <= PRODUCTS
