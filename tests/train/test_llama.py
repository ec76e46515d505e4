"""The decoder of the Llama family against the same model written in PyTorch, and in NumPy."""

from typing import Any

import numpy as np
import pytest

import hexane as hx
from decoders import decoder_weights, logits_in_numpy
from hexane.graph import Array
from hexane.train.decoder.model import initial_weights

CONFIGS = {
    "MHA": {},
    "GQA": {"kv_heads": 2},
    "MQA": {"kv_heads": 1, "tied": False},
    "half": {"rope": "half", "theta": 500000.0, "kv_heads": 2},
    "no rotation": {"rope": "none", "residual": 0.5},
    "wide heads": {"head_dim": 12, "tied": False, "epsilon": 1e-6},
}
SMALL = {"vocab": 37, "dim": 32, "hidden": 56, "layers": 2, "heads": 4, "seq": 11}


def config(name: str) -> hx.train.LlamaConfig:
    return hx.train.LlamaConfig(**{**SMALL, **CONFIGS[name]})


def batch(c: hx.train.LlamaConfig, rows: int) -> dict[str, Array]:
    rng = np.random.default_rng(2)
    tokens, labels = (rng.integers(0, c.vocab, (rows, c.seq)).astype(np.int32) for _ in range(2))
    labels[0, :2] = -100
    return {"tokens": tokens, "labels": labels}


def in_torch(
    c: hx.train.LlamaConfig, w: dict[str, Array], fed: dict[str, Array]
) -> tuple[Array, float, dict[str, Array]]:
    """Logits, loss and gradients in fp64."""
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    from torch_llama import torch_logits, torch_loss

    p = {name: torch.tensor(a.astype(np.float64), requires_grad=True) for name, a in w.items()}
    logits = torch_logits(c, p, fed["tokens"])
    loss = torch_loss(c, p, fed)
    loss.backward()
    return logits.detach().numpy(), float(loss.detach()), {name: t.grad.numpy() for name, t in p.items()}


def off(got: Array, want: Array) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_numpy(name: str) -> None:
    c = config(name)
    fed = batch(c, 2)
    model = hx.train.llama(c, weights=decoder_weights(c), batch=2)
    got = hx.compile(hx.graph({"logits": model.logits}))(tokens=fed["tokens"])
    assert off(got, logits_in_numpy(c, decoder_weights(c), fed["tokens"])) < 1e-5


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.filterwarnings("default")
def test_loss_and_gradients_are_those_of_torch(name: str, checkpoints: bool) -> None:
    c = config(name)
    fed = batch(c, 3)
    logits, loss, gradients = in_torch(c, decoder_weights(c), fed)
    model = hx.train.llama(c, weights=decoder_weights(c), batch=3, checkpoints=checkpoints)
    found = hx.grad(model.loss, list(model.params.values()))
    named = dict(zip(model.params, found, strict=True))
    got = hx.compile(hx.graph({"logits": model.logits, "loss": model.loss, **named}))(**fed)
    assert off(got["logits"], logits) < 1e-5
    assert abs(float(got["loss"]) - loss) < 1e-5 * loss
    assert set(gradients) == set(named)
    for weight, want in gradients.items():
        assert off(got[weight], want) < 1e-5, weight


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "no rotation"])
def test_the_other_order_of_rotated_channels_is_the_same_model(name: str) -> None:
    c, w = config(name), decoder_weights(config(name))
    tokens = batch(c, 1)["tokens"]
    other, permuted = hx.train.with_rope(c, w, "half" if c.rope == "interleaved" else "interleaved")
    assert other.rope != c.rope
    assert off(logits_in_numpy(other, permuted, tokens), logits_in_numpy(c, w, tokens)) < 1e-12
    back, again = hx.train.with_rope(other, permuted, c.rope)
    assert back == c
    assert all(np.array_equal(again[key], w[key]) for key in w)


def test_a_model_without_rotation_has_no_other_order() -> None:
    c = config("no rotation")
    with pytest.raises(hx.Error, match="got 'half' for a model of 'none', need one that is rotated"):
        hx.train.with_rope(c, decoder_weights(c), "half")


def test_a_step_lowers_the_loss() -> None:
    c = config("GQA")
    model = hx.train.llama(c, batch=2, seed=3)
    net = hx.compile(hx.train.step(model.loss, list(model.params.values()), hx.train.adamw(1e-2)))
    losses = [float(net(**batch(c, 2))["loss"]) for _ in range(30)]
    assert abs(losses[0] - np.log(c.vocab)) < 0.1
    assert losses[-1] < 0.5 * losses[0]


def test_drawn_weights_follow_the_seed() -> None:
    c = hx.train.LlamaConfig(vocab=500, dim=64, hidden=128, layers=8, heads=4)

    one, again, other = (initial_weights(c, seed) for seed in (1, 1, 2))
    for name, array in one.items():
        assert np.array_equal(array, again[name])
        assert (array.ndim == 1) == np.array_equal(array, other[name])
    assert 0.019 < one["model.embed_tokens.weight"].std() < 0.021
    assert 0.0045 < one["model.layers.5.mlp.down_proj.weight"].std() < 0.0055


def test_known_models_have_the_published_sizes() -> None:
    # llama2.c's table of models: 15M, 42M and 110M parameters; the seed counts 109.53 M.
    assert hx.train.LlamaConfig.named("stories15M").parameters == 15_191_712
    assert hx.train.LlamaConfig.named("stories110M", seq=256).parameters == 109_529_856


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 5}, r"heads: got 5, need a divisor of dim 32, or head_dim="),
        ({"kv_heads": 3}, r"kv_heads: got 3, need a divisor of heads 4"),
        ({"head_dim": 7}, r"head_dim: got 7, need an even number"),
        ({"layers": 0}, r"layers: got 0, need an integer from 1"),
        ({"seq": 2.0}, r"seq: got 2.0, need an integer"),
        ({"rope": "quarter"}, r"rope: got 'quarter', need one of 'interleaved', 'half', 'none'"),
        ({"residual": 0.0}, r"residual: got 0.0, need a number above 0"),
        ({"theta": float("nan")}, r"theta: got nan, need a number above 0"),
    ],
)
def test_sizes_that_do_not_fit_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(hx.Error, match=message):
        hx.train.LlamaConfig(**{**SMALL, **changes})


def test_wrong_weights_are_named() -> None:
    c = config("GQA")
    good = decoder_weights(c)
    with pytest.raises(hx.Error, match=r"got the model 'storys', need stories15M"):
        hx.train.llama("storys")
    with pytest.raises(hx.Error, match=r"names that are missing: model.norm.weight"):
        hx.train.llama(c, weights={k: v for k, v in good.items() if k != "model.norm.weight"})
    with pytest.raises(hx.Error, match=r"names that are not the model's: lm_head.weight"):
        hx.train.llama(c, weights={**good, "lm_head.weight": good["model.embed_tokens.weight"]})
    with pytest.raises(
        hx.Error, match=r"model.norm.weight: got float32 of shape \(1,\), need float32 of shape \(32,\)"
    ):
        hx.train.llama(c, weights={**good, "model.norm.weight": np.ones(1, np.float32)})
    with pytest.raises(hx.Error, match=r"batch: got 0"):
        hx.train.llama(c, batch=0)
