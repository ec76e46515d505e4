"""Tokens by a decoder's step of one token, whose keys and values are states: the same logits as all tokens at once."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from decoders import decoder_weights, llama2c_v0, logits_in_numpy
from hexane.graph import Array
from hexane.train.decoder.generate import PASS, Generator, Sampler, Steps, block_sizes, program

CONFIGS: dict[str, dict[str, Any]] = {
    "MHA": {},
    "GQA": {"kv_heads": 2},
    "MQA": {"kv_heads": 1, "tied": False},
    "half": {"rope": "half", "theta": 500000.0, "kv_heads": 2},
    "no rotation": {"rope": "none", "residual": 0.5},
    "wide heads": {"head_dim": 12, "tied": False, "epsilon": 1e-6},
}
SEQ = 11


def config(name: str = "MHA") -> hx.train.LlamaConfig:
    sizes = {"vocab": 37, "dim": 32, "hidden": 56, "layers": 2, "heads": 4, "seq": SEQ}
    return hx.train.LlamaConfig(**{**sizes, **CONFIGS[name]})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "model.bin"
    file.write_bytes(llama2c_v0(config("GQA"), decoder_weights(config("GQA"))))
    return file


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_the_whole_row(name: str) -> None:
    c = config(name)
    weights = decoder_weights(c)
    tokens = np.random.default_rng(2).integers(0, c.vocab, (1, c.seq)).astype(np.int32)
    net = program(c, weights)
    got = np.stack([net(tokens[0, i : i + 1], np.array([i], np.int32))[0] for i in range(c.seq)])
    full = hx.compile(hx.graph({"logits": hx.train.llama(c, weights=weights).logits}))(tokens)[0]
    for want in (full, logits_in_numpy(c, weights, tokens)[0]):
        assert np.linalg.norm(got - want) / np.linalg.norm(want) < 1e-5


def greedy(c: hx.train.LlamaConfig, weights: dict[str, Array], ids: list[int], count: int) -> list[int]:
    """By NumPy, all tokens computed anew for each one."""
    ids = list(ids)
    for _ in range(count):
        ids.append(int(logits_in_numpy(c, weights, np.array([ids]))[0, -1].argmax()))
    return ids


def test_at_temperature_0_the_likeliest_token_comes_each_time(path: Path) -> None:
    c = config("GQA")
    want = greedy(c, decoder_weights(c), [3, 8], 6)[2:]
    assert hx.train.generate(path, [3, 8], steps=6, temperature=0) == want


def test_a_seed_gives_the_same_tokens_and_calls_begin_anew(path: Path) -> None:
    made = hx.train.Generator(path)
    first = list(made([3, 8], seed=5))
    assert list(made([1, 2, 3], seed=5)) != first
    assert list(made([3, 8], seed=5)) == first == hx.train.generate(path, [3, 8], seed=5)
    assert len({tuple(made([3, 8], seed=seed, temperature=2.0)) for seed in range(8)}) > 1


def test_it_ends_at_a_stop_after_steps_and_where_the_row_is_full(path: Path) -> None:
    made = hx.train.Generator(path)
    whole = list(made([3, 8], temperature=0))
    assert len(whole) == SEQ - 2
    assert list(made([3, 8], temperature=0, steps=4)) == whole[:4]
    assert list(made([3, 8], temperature=0, steps=0)) == []
    assert list(made([0] * SEQ, temperature=0)) == []
    assert len(list(made([0] * (SEQ - 1), temperature=0))) == 1
    last = whole[3]
    assert list(made([3, 8], temperature=0, stop={last})) == whole[: whole.index(last)]
    assert max(made([3, 8], temperature=2.0, vocab=5)) < 5


def test_a_generation_that_a_newer_one_reset_is_refused(path: Path) -> None:
    made = hx.train.Generator(path)
    one, two = made([3]), made([4])
    next(one)
    next(two)
    with pytest.raises(hx.Error, match="a newer generation reset this cache"):
        next(one)
    assert next(two) >= 0


def test_tokens_are_drawn_of_the_likeliest_whose_shares_add_up_to_top_p() -> None:
    shares = np.array([0.05, 0.4, 0.1, 0.3, 0.15])
    logits = np.log(shares).astype(np.float32) * 1.5
    for top_p, kept in ((0.39, [1]), (0.6, [1, 3]), (0.8, [1, 3, 4]), (1.0, [0, 1, 2, 3, 4])):
        draw = Sampler(1.5, top_p, seed=3)
        counts = np.bincount([draw(logits) for _ in range(20_000)], minlength=5) / 20_000
        want = np.where(np.isin(np.arange(5), kept), shares, 0)
        np.testing.assert_allclose(counts, want / want.sum(), atol=0.015)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"prompt": []}, "prompt: got no tokens"),
        ({"prompt": [0] * (SEQ + 1)}, f"prompt: got {SEQ + 1} tokens, need at most the {SEQ}"),
        ({"prompt": [37]}, "prompt: got the id 37, need 0 to 36"),
        ({"prompt": [-1]}, "prompt: got the id -1"),
        ({"prompt": [0], "temperature": -1.0}, "temperature: got -1.0"),
        ({"prompt": [0], "temperature": float("nan")}, "temperature: got nan"),
        ({"prompt": [0], "top_p": 0.0}, "top_p: got 0.0"),
        ({"prompt": [0], "steps": -1}, "steps: got -1"),
        ({"prompt": [0], "vocab": 0}, "vocab: got 0"),
    ],
)
def test_bad_arguments_are_told_at_once(path: Path, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(hx.Error) as told:
        hx.train.Generator(path)(**arguments)
    assert words in str(told.value)


def test_a_temperature_near_0_is_like_0() -> None:
    logits = np.array([-3e38, 1.5, 2.5, 3e38, -2.0], np.float32)
    assert {Sampler(1e-310, 1.0, seed)(logits) for seed in range(5)} == {3}


def test_logits_that_are_not_finite_are_an_error() -> None:
    with pytest.raises(hx.Error, match="not finite"):
        Sampler(0.0, 0.9, 0)(np.array([1, np.nan], np.float32))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("length", [1, 2, 64, 65, 130, 203, 300, 320])
def test_a_prompt_in_blocks_gives_the_logits_of_its_tokens(name: str, length: int) -> None:
    """Over windows of 256 and of all positions, up to the last one."""
    c = replace(config(name), seq=320)
    weights = decoder_weights(c)
    made = Steps(c, weights, hx.Options(target="host", threads=2))
    ids = np.random.default_rng(length).integers(0, c.vocab, length).tolist()
    got = made.prompt(ids)
    want = logits_in_numpy(c, weights, np.array([ids]))[0, -1]
    assert np.linalg.norm(got - want) <= 1e-5 * np.linalg.norm(want)
    if length < c.seq:
        one = made.one(5, length)
        want = logits_in_numpy(c, weights, np.array([[*ids, 5]]))[0, -1]
        assert np.linalg.norm(one - want) <= 1e-5 * np.linalg.norm(want)


def test_blocks_take_all_tokens_and_little_padding() -> None:
    """Where the cache has room for padding, at most a tenth and two calls more than the tokens alone would take."""
    for tokens in range(1, 257):
        sizes = block_sizes(tokens, 512, 256)
        assert tokens <= sum(sizes) < tokens + sizes[-1]
        assert sum(sizes) + PASS * len(sizes) <= 1.1 * tokens + 3 * PASS
        exact = block_sizes(tokens, tokens, 256)
        assert sum(exact) == tokens
    assert block_sizes(200, 512, 256) == (192, 8)
    assert block_sizes(200, 512, 64) == (64, 64, 64, 8)


def test_a_long_text_is_the_likeliest_one_in_every_window() -> None:
    """With a cache that several programs read, from 200 tokens of a prompt on to where the room ends."""
    c = replace(config("GQA"), seq=300)
    weights = decoder_weights(c)
    made = Generator.__new__(Generator)
    made._begin(c, Steps(c, weights))
    prompt = np.random.default_rng(3).integers(0, c.vocab, 200).tolist()
    got = list(made(prompt, steps=200, temperature=0))
    assert len(got) == 100
    by_hand = Generator.of_weights(c, weights)  # token by token, over the whole cache
    assert list(by_hand(prompt, steps=200, temperature=0)) == got


def test_room_is_what_a_caller_asks_for(path: Path) -> None:
    made = Generator(path, context=6)
    assert made.config.seq == 6
    assert len(list(made([3, 8], steps=50, temperature=0))) == 4
    with pytest.raises(hx.Error, match="context: got 12, need 1 to the 11 of the model"):
        Generator(path, context=12)


def counts_of(draw: Sampler, logits: Array, seen: tuple[int, ...] = ()) -> Array:
    return np.bincount([draw(logits, seen) for _ in range(8000)], minlength=len(logits)) / 8000


def test_top_k_and_min_p_keep_the_likeliest() -> None:
    """As the definitions have it; top_p is of what top_k kept."""
    shares = np.array([0.05, 0.4, 0.1, 0.3, 0.15])
    logits = np.log(shares).astype(np.float32) * 1.5
    cases = (
        (Sampler(1.5, 1.0, 1, top_k=2), [1, 3]),
        (Sampler(1.5, 1.0, 1, top_k=9), [0, 1, 2, 3, 4]),
        (Sampler(1.5, 0.55, 1, top_k=2), [1]),  # 0.4 / 0.7
        (Sampler(1.5, 1.0, 1, min_p=0.3), [1, 3, 4]),
        (Sampler(1.5, 0.6, 1, min_p=0.3), [1, 3]),
        (Sampler(1.5, 1.0, 1, min_p=1.0), [1]),
    )
    for draw, kept in cases:
        want = np.where(np.isin(np.arange(5), kept), shares, 0)
        np.testing.assert_allclose(counts_of(draw, logits), want / want.sum(), atol=0.025)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("penalty", "want"), [(1e-320, 0), (1e-300, 0), (1e300, 2), (1e308, 2)])
def test_penalties_beyond_a_logit_s_range(penalty: float, want: int, temperature: float) -> None:
    """The token of the text is the likeliest for a tiny penalty; for a huge one the others are."""
    logits = np.array([3.0, 0.0, 2.0, -1.0], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Sampler(temperature, 0.5, 0, repetition_penalty=penalty)(logits, (0, 1, 3)) == want


def test_a_repetition_penalty_makes_tokens_of_the_text_less_likely() -> None:
    logits = np.array([2.0, 1.9, -1.0, -1.1], np.float32)
    assert Sampler(0.0, 1.0, 0, repetition_penalty=1.2)(logits, (0, 99)) == 1
    assert Sampler(0.0, 1.0, 0, repetition_penalty=1.2)(logits[2:], (0,)) == 1
    assert Sampler(0.0, 1.0, 0)(logits, (0,)) == 0
    punished = np.exp(np.array([2.0 / 1.3, 1.9, -1.3, -1.1]))
    got = counts_of(Sampler(1.0, 1.0, 3, repetition_penalty=1.3), logits, (0, 2))
    np.testing.assert_allclose(got, punished / punished.sum(), atol=0.025)
    assert logits[0] == 2.0


def test_tokens_of_prompt_and_text_are_penalised(path: Path) -> None:
    got = list(Generator(path)([3, 8], temperature=0, repetition_penalty=1e6))
    assert len({3, 8, *got}) == 2 + len(got)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"top_k": -1}, "top_k: got -1, need an integer from 0"),
        ({"min_p": 1.5}, "min_p: got 1.5, need a number from 0 to 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty: got 0.0, need a number above 0"),
    ],
)
def test_bad_limits_of_a_draw_are_told_at_once(path: Path, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(hx.Error, match=words):
        Generator(path)([3], **arguments)
