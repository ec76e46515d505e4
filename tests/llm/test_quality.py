"""Encodings of a language model are judged by how well it predicts a text."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
import tiny_llm
from command import in_this_process
from decoders import decoder_weights, logits_in_numpy
from hexane.build import Tensor
from hexane.llm import quality
from hexane.llm.facts import perplexities
from hexane.llm.quality import calibration_ids
from hexane.ops.encodings import encoding_of
from hexane.train.decoder.generate import Steps
from hexane.train.text import load_tokenizer


def write(folder: Path, scale: float, **changes: Any) -> Path:
    """scale: of the weights of products. With smaller ones tokens are less sure."""
    tiny_llm.write(folder, **changes)
    c = tiny_llm.config(**changes)
    weights = {n: a * (scale if a.ndim == 2 else 1) for n, a in decoder_weights(c).items()}
    made = hx.train.save_llama
    for name in ("model.safetensors", "config.json"):
        (folder / name).rename(folder.parent / name)
    made(folder / "new", c, {n: a.astype(np.float32) for n, a in weights.items()}, format="hugging-face")
    for one in (folder / "new").iterdir():
        one.rename(folder / one.name)
    (folder / "new").rmdir()
    return folder


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("quality") / "calm", 0.4)


@pytest.fixture(scope="module")
def own_text(calm: Path) -> Path:
    """What the model writes itself: it predicts that better than any other weights do."""
    model, text = hx.llm.load(calm, threads=1), ""
    for seed in range(40):
        text += model.generate("The", temperature=0.3, top_p=1.0, seed=seed, steps=60).text()
        if len(text) > 300:
            break
    path = calm.parent / "own.txt"
    path.write_text(text)
    return path


def in_numpy(folder: Path, ids: list[int]) -> float:
    config, weights = hx.train.read_llama(folder)
    rows = logits_in_numpy(config, weights, np.array([ids[:-1]]))[0]
    shares = rows - rows.max(1, keepdims=True)
    shares -= np.log(np.exp(shares).sum(1, keepdims=True))
    return float(np.exp(-shares[np.arange(len(ids) - 1), ids[1:]].mean()))


def test_perplexity_is_that_of_the_definition(calm: Path) -> None:
    ids = calibration_ids(load_tokenizer(calm / "tokenizer.json")).measured
    assert len(ids) == 256
    found = perplexities(calm, threads=1, encodings=("none", "int8", "palette2"))
    assert found["none"] == pytest.approx(in_numpy(calm, ids), rel=1e-4)
    assert found["int8"] == pytest.approx(found["none"], rel=0.02)
    assert abs(found["palette2"] - found["none"]) > abs(found["int8"] - found["none"])


def test_a_context_shorter_than_the_text_is_measured_in_parts(tmp_path: Path) -> None:
    folder = write(tmp_path / "short", 0.4, seq=40)
    ids = calibration_ids(load_tokenizer(folder / "tokenizer.json")).measured
    parts = [ids[at : at + 41] for at in range(0, 255, 40)]
    want = np.exp(sum(np.log(in_numpy(folder, part)) * (len(part) - 1) for part in parts) / 255)
    assert perplexities(folder, threads=1, encodings=["none"])["none"] == pytest.approx(want, rel=1e-4)


def test_an_encoding_that_changes_the_text_needs_force(calm: Path, own_text: Path) -> None:
    for asked in ("palette1", hx.Compression("palette1")):
        with pytest.raises(hx.Error, match=r"got 'palette1' with a perplexity of .*, need at most 1.1 times"):
            hx.llm.load(calm, compress=asked, threads=1, calibration=own_text)
    forced = hx.llm.load(calm, compress="palette1", threads=1, calibration=own_text, force=True)
    assert forced.quality is None


def bits_of(model: hx.llm.LanguageModel) -> dict[str, int]:
    stored = model._steps.weights
    return {name: encoding_of(w.value).bits for name, w in stored.items() if isinstance(w, Tensor)}


def test_auto_takes_the_fewest_bits_that_keep_the_text(calm: Path) -> None:
    model = hx.llm.load(calm, compress="auto", threads=1)
    assert model.quality is not None
    assert model.quality.perplexity <= 1.02 * model.quality.plain
    bits = bits_of(model)
    assert bits.pop("model.embed_tokens.weight") == 8
    assert set(bits.values()) == {4}
    again = perplexities(calm, threads=1, encodings=["none"])["none"]
    assert model.quality.plain == pytest.approx(again, rel=1e-6)


def test_auto_keeps_weights_where_every_encoding_changes_the_text(
    calm: Path, own_text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quality, "CLOSE", 0.5)
    model = hx.llm.load(calm, compress="auto", threads=1, calibration=own_text)
    assert model.quality is not None
    assert model.quality.encoding == "auto: none"
    assert bits_of(model) == {}


def test_a_head_of_its_own_has_8_bits(tmp_path: Path) -> None:
    bits = bits_of(hx.llm.load(write(tmp_path / "m", 0.4, tied=False), compress="auto", threads=1))
    assert (bits["lm_head.weight"], bits["model.embed_tokens.weight"]) == (8, 8)


@pytest.mark.parametrize(
    ("text", "message"), [("", "got 0 tokens, need a text of at least 2"), (b"\xff\xfe", "need text in UTF-8")]
)
def test_a_calibration_that_is_no_text_is_an_error(text: Any, message: str, calm: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(hx.Error, match=message):
        hx.llm.load(calm, compress="auto", calibration=tmp_path / "text")


def test_commands_judge_encodings(calm: Path, own_text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hexane = in_this_process(capsys)
    asked = ("generate", calm, "--prompt", "The", "--steps", 2, "--calibration", own_text, "--threads", 1, "--compress")
    ended = hexane(*asked, "palette1")
    assert ended.code != 0
    assert "--force" in ended.err
    assert hexane(*asked, "palette1", "--force").code == 0
    ended = hexane(*asked, "auto")
    assert ended.code == 0
    assert "[generate] auto: " in ended.err
    found = json.loads(hexane("llm", calm, "--perplexity", "--threads", 1, "--json").out)["perplexity"]
    assert list(found) == ["none", "int8", "blockwise8:b32", "blockwise4:b32", "palette4"]
    assert "perplexity" in hexane("llm", calm, "--perplexity", "--threads", 1).out


def planted(seed: int, **changes: Any) -> tuple[hx.train.LlamaConfig, dict[str, Any]]:
    """A decoder whose norms have a few channels that are much larger than the others, as trained ones have."""
    config = tiny_llm.config(dim=128, hidden=256, **changes)
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in config.shapes().items():
        numbers = rng.standard_normal(shape)
        weights[name] = np.exp(numbers) if "norm" in name else 0.3 * numbers / np.sqrt(shape[-1])
    return config, {name: array.astype(np.float32) for name, array in weights.items()}


@pytest.mark.parametrize("mode", ["blockwise4:b32", "blockwise8:b32"])
def test_scales_that_are_fitted_to_a_text_keep_other_texts_better(mode: str) -> None:
    ratios = []
    for seed in range(8):
        config, weights = planted(seed)
        rng = np.random.default_rng(seed + 10)
        text, other = (rng.integers(0, config.vocab, count).tolist() for count in (512, 128))
        want = logits_in_numpy(config, weights, np.array([other]))[0]

        options = hx.Options(target="host", threads=1, compress=mode)
        rows = (np.array(list(Steps(config, weights, options, text=fit).rows(other))) for fit in ([], text))
        plain, fitted = (float(np.linalg.norm(one - want)) for one in rows)
        ratios.append(fitted / plain)
    assert np.exp(np.mean(np.log(ratios))) < 0.97, ratios


def test_a_text_shorter_than_a_block_of_tokens_fits_scales_too() -> None:
    config, weights = planted(0, seq=24)
    options = hx.Options(target="host", threads=1, compress="blockwise4:b32")
    plain, fitted = (Steps(config, weights, options, text=text).weights for text in ((), (5, 6, 7, 8, 9)))
    name = "model.layers.0.self_attn.q_proj.weight"
    scales = [encoding_of(w[name].value).decode().node.data for w in (plain, fitted)]
    assert (scales[0] != scales[1]).any()
    int8 = hx.Options(target="host", threads=1, compress="int8")
    assert Steps(config, weights, int8, text=(5, 6, 7, 8, 9)).net is not None  # no blocks, nothing to fit


def test_a_calibration_file_fits_scales(calm: Path, own_text: Path) -> None:
    """Its first 256 tokens are measured, the next ones are fitted to."""
    ids = calibration_ids(load_tokenizer(calm / "tokenizer.json"), own_text)
    assert len(ids.measured) == 256
    assert ids.others
    name = "model.layers.0.mlp.down_proj.weight"

    def stored(**options: Any) -> Any:
        model = hx.llm.load(calm, compress="blockwise8:b32", threads=1, **options)
        return encoding_of(model._steps.weights[name].value).decode().node.data

    assert (stored(calibration=own_text) != stored()).any()
    np.testing.assert_array_equal(stored(), stored(force=True))


@pytest.mark.parametrize("seq", [1, 64])
def test_a_text_of_one_token_fits_scales_too(seq: int) -> None:
    """Of a context of one token, or of a text with one token more than are measured."""
    config, weights = planted(0, seq=seq)
    options = hx.Options(target="host", threads=1, compress="blockwise4:b32")
    plain, fitted = (Steps(config, weights, options, text=text).weights for text in ((), (5,)))
    name = "model.layers.0.self_attn.q_proj.weight"
    scales = [encoding_of(w[name].value).decode().node.data for w in (plain, fitted)]
    assert (scales[0] != scales[1]).any()


@pytest.mark.parametrize("number", [np.inf, np.nan, 3e38])
@pytest.mark.parametrize("asked", ["int8", "auto"])
def test_weights_without_finite_logits_are_not_judged(number: float, asked: str) -> None:
    """An infinite perplexity is not within 1.1 times another one."""
    config, weights = planted(0, seq=64)
    weights["model.norm.weight"][3] = number
    text = quality.Calibration(list(range(20)), [])
    with pytest.raises(hx.Error, match="got weights that give logits with inf or NaN before any compression"):
        quality.judged(config, weights, hx.Options(threads=1), hx.Compression(asked), text)
