"""Adapters of low rank: their gradients by the chain rule from PyTorch's, frozen weights, merging, and files of PEFT."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import hexane as hx
from decoders import decoder_weights, logits_in_numpy
from hexane.graph import Array

CONFIGS: dict[str, dict[str, Any]] = {
    "MHA": {},
    "GQA": {"kv_heads": 2, "tied": False},
    "half": {"rope": "half", "theta": 500000.0, "kv_heads": 2},
    "no rotation": {"rope": "none", "residual": 0.5},
}
SMALL = {"vocab": 37, "dim": 32, "hidden": 56, "layers": 2, "heads": 4, "seq": 11}
LORA = hx.train.Lora(3, 12.0)
SOME = hx.train.Lora(3, 4.5, ("v", "q_proj", "down"))


def config(name: str) -> hx.train.LlamaConfig:
    return hx.train.LlamaConfig(**{**SMALL, **CONFIGS[name]})


def batch(c: hx.train.LlamaConfig, rows: int = 2) -> dict[str, Array]:
    rng = np.random.default_rng(2)
    tokens, labels = (rng.integers(0, c.vocab, (rows, c.seq)).astype(np.int32) for _ in range(2))
    labels[0, :2] = -100
    return {"tokens": tokens, "labels": labels}


def adapters(c: hx.train.LlamaConfig, lora: hx.train.Lora) -> dict[str, Array]:
    rng = np.random.default_rng(5)
    return {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in lora.shapes(c).items()}


def merged_by_hand(w: dict[str, Array], lora: hx.train.Lora, values: dict[str, Array]) -> dict[str, Array]:
    """In fp64."""
    found = {name: array.astype(np.float64) for name, array in w.items()}
    for name in values:
        if name.endswith(".lora_A.weight"):
            stem = name.removesuffix(".lora_A.weight")
            b, a = (values[f"{stem}.lora_{part}.weight"].astype(np.float64) for part in "BA")
            found[f"{stem}.weight"] += lora.scale * (b @ a)
    return found


def loss_in_numpy(c: hx.train.LlamaConfig, w: dict[str, Array], fed: dict[str, Array]) -> float:
    logits = logits_in_numpy(c, w, fed["tokens"])
    top = logits.max(-1, keepdims=True)
    logarithms = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    counted = fed["labels"] != -100
    picked = np.take_along_axis(logarithms, np.where(counted, fed["labels"], 0)[..., None], -1)[..., 0]
    return float(-picked[counted].mean())


def off(got: Array, want: Array) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def gradients(
    c: hx.train.LlamaConfig, lora: hx.train.Lora, fed: dict[str, Array], checkpoints: bool = False
) -> dict[str, Array]:
    model = hx.train.llama(c, weights=decoder_weights(c), batch=2, lora=lora, checkpoints=checkpoints)
    found = hx.grad(model.loss, list(model.params.values()))
    net = hx.compile(hx.graph(dict(zip(model.params, found, strict=True))))
    net.update(**adapters(c, lora))
    got: dict[str, Array] = net(**fed)
    return got


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_are_the_slopes_of_the_loss_in_numpy(name: str) -> None:
    c, fed = config(name), batch(config(name))
    values, w = adapters(c, LORA), decoder_weights(c)
    got, rng = gradients(c, LORA, fed), np.random.default_rng(6)
    for part in ("lora_A", "lora_B"):
        way = {n: rng.normal(size=a.shape) if part in n else np.zeros(a.shape) for n, a in values.items()}
        losses = [
            loss_in_numpy(c, merged_by_hand(w, LORA, {n: a + step * way[n] for n, a in values.items()}), fed)
            for step in (1e-5, -1e-5)
        ]
        slope = (losses[0] - losses[1]) / 2e-5
        assert abs(sum(float(np.sum(got[n] * way[n])) for n in values) - slope) < 1e-4 * abs(slope) + 1e-5


@pytest.mark.parametrize("lora", [LORA, SOME], ids=["all", "some"])
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_follow_from_those_of_torch(name: str, checkpoints: bool, lora: hx.train.Lora) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    from torch_llama import torch_loss

    c, fed = config(name), batch(config(name))
    values = {n: torch.tensor(a.astype(np.float64), requires_grad=True) for n, a in adapters(c, lora).items()}
    w: dict[str, Any] = {n: torch.tensor(a.astype(np.float64)) for n, a in decoder_weights(c).items()}
    for stem in {n.partition(".lora_")[0] for n in values}:
        product = values[f"{stem}.lora_B.weight"] @ values[f"{stem}.lora_A.weight"]
        w[f"{stem}.weight"] = w[f"{stem}.weight"] + lora.scale * product
    torch_loss(c, w, fed).backward()
    got = gradients(c, lora, fed, checkpoints)
    assert got.keys() == values.keys()
    for adapter, tensor in values.items():
        assert off(got[adapter], tensor.grad.numpy()) < 2e-5, adapter


@pytest.mark.parametrize("name", CONFIGS)
def test_the_first_loss_is_that_of_the_frozen_model(name: str) -> None:
    c, fed = config(name), batch(config(name))
    w = decoder_weights(c)
    plain, adapted = (hx.train.llama(c, weights=w, batch=2, lora=lora).loss for lora in (None, LORA))
    assert hx.compile(hx.graph(adapted))(**fed) == hx.compile(hx.graph(plain))(**fed)


@pytest.mark.parametrize("name", CONFIGS)
def test_merged_weights_give_the_logits_of_adapters_kept_apart(name: str) -> None:
    c, fed = config(name), batch(config(name))
    w, values = decoder_weights(c), adapters(c, LORA)
    before = {n: a.tobytes() for n, a in w.items()}
    apart = hx.compile(hx.graph({"logits": hx.train.llama(c, weights=w, batch=2, lora=LORA).logits}))
    apart.update(**values)
    merged = hx.train.merge_adapters(c, w, LORA, values)
    assert {n: a.tobytes() for n, a in w.items()} == before
    together = hx.compile(hx.graph({"logits": hx.train.llama(c, weights=merged, batch=2).logits}))
    want = logits_in_numpy(c, merged_by_hand(w, LORA, values), fed["tokens"])
    got = apart(tokens=fed["tokens"])
    assert off(got, want) < 1e-5
    assert off(together(tokens=fed["tokens"]), want) < 1e-5
    assert off(got, logits_in_numpy(c, w, fed["tokens"])) > 1e-2


@pytest.mark.parametrize("lora", [LORA, SOME], ids=["all", "some"])
def test_a_step_has_no_gradient_or_moment_of_a_frozen_weight(lora: hx.train.Lora) -> None:
    c = config("GQA")
    model = hx.train.llama(c, weights=decoder_weights(c), batch=2, lora=lora)
    step = hx.train.step(model.loss, list(model.params.values()), hx.train.adamw(1e-2), clip=1.0, accumulate=2)
    frozen = {shape[::way] for shape in c.shapes().values() if len(shape) == 2 for way in (1, -1)}
    assert not frozen & set(lora.shapes(c).values())
    made = {kind.shape for node in step.nodes if node.inputs for kind in node.types}
    assert not frozen & made
    states = {node.attrs["name"] for node in step.nodes if node.op in ("state", "param")}
    assert {"step", "calls"} | {f"{n}{end}" for n in lora.shapes(c) for end in ("", ".m", ".v", ".grad")} == states


def test_adapters_learn_and_frozen_weights_stay() -> None:
    c, fed = config("GQA"), batch(config("GQA"))
    w = decoder_weights(c)
    before = {n: a.tobytes() for n, a in w.items()}
    model = hx.train.llama(c, weights=w, batch=2, lora=LORA)
    net = hx.compile(hx.train.step(model.loss, list(model.params.values()), hx.train.adamw(1e-2)), threads=1)
    assert isinstance(net, hx.Model)
    losses = [float(net(**fed)["loss"]) for _ in range(30)]
    assert losses[-1] < losses[0] / 2
    assert {n: a.tobytes() for n, a in w.items()} == before
    values = {n: net.read_state(n) for n in model.params}
    assert abs(loss_in_numpy(c, merged_by_hand(w, LORA, values), fed) - float(net(**fed)["loss"])) < 1e-4


def test_adapters_are_drawn_by_the_seed() -> None:
    c = config("MHA")
    one, same, other = (LORA.first(c, seed) for seed in (1, 1, 2))
    a, b = "model.layers.1.mlp.down_proj.lora_A.weight", "model.layers.1.mlp.down_proj.lora_B.weight"
    np.testing.assert_array_equal(one[a], same[a])
    assert not np.array_equal(one[a], other[a])
    assert 0.9 / np.sqrt(56) < np.abs(one[a]).max() <= 1 / np.sqrt(56)
    assert not one[b].any()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0,), r"rank: got 0, need an integer from 1 on"),
        ((True,), r"rank: got True"),
        ((8, 0.0), r"alpha: got 0.0, need a number above 0"),
        ((8, float("nan")), r"alpha: got nan"),
        ((8, 16, ("q", "w")), r"targets: got 'w', need some of q_proj, k_proj, "),
        ((8, 16, ("q", "q_proj")), r"targets: got q_proj, q_proj, need each once"),
        ((8, 16, ()), r"targets: got \(\), need some of"),
    ],
)
def test_adapters_that_cannot_be_are_refused(arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(hx.Error, match=text):
        hx.train.Lora(*arguments)


def test_a_rank_above_the_sizes_of_a_layer_is_refused() -> None:
    c = config("GQA")
    with pytest.raises(hx.Error, match=r"rank: got 17, need at most 16: k_proj is \(16, 32\)"):
        hx.train.llama(c, weights=decoder_weights(c), lora=hx.train.Lora(17))
    hx.train.llama(c, weights=decoder_weights(c), lora=hx.train.Lora(17, targets=("q",)))
    with pytest.raises(hx.Error, match=r"lora: got no weights"):
        hx.train.llama(c, lora=LORA)


@pytest.mark.parametrize("lora", [LORA, SOME], ids=["all", "some"])
def test_adapters_train_in_the_programs_of_a_chip_as_on_the_host(lora: hx.train.Lora) -> None:
    c = config("MHA")
    fed = {name: array[:, :8] for name, array in batch(c).items()}
    c = hx.train.LlamaConfig(**{**SMALL, "seq": 8})
    losses = {}
    for target, scale in (("host", 1.0), ("M4", 256.0)):
        says = "products with weights are in no program of the engine: matmul at model.layers.0"
        with pytest.warns(hx.FallbackWarning, match=says) if target == "M4" else nullcontext():
            model = hx.train.llama(c, weights=decoder_weights(c), batch=2, lora=lora)
            trainer = hx.train.Trainer(
                model.loss,
                list(model.params.values()),
                hx.train.adamw(1e-2),
                loss_scale=scale,
                options=hx.Options(target=target, device="cpu", threads=1),
                programs=target != "host",
            )
        losses[target] = [entry["loss"] for entry in trainer.fit(lambda _: fed, 10, progress=False)]
    np.testing.assert_allclose(losses["M4"], losses["host"], rtol=0.02)
    assert losses["host"][-1] < losses["host"][0]
