"""`hexane train --lora`: adapters on a model that stays as it is."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from command import Cli
from decoders import decoder_weights, llama2c_v0, logits_in_numpy
from hexane.runtime.states import read_states, write_states
from hexane.train.decoder.lora import array_of
from training_logs import read_log

VOCAB, SEQ = 40, 16
COMMON = ("--accumulate", 2, "--threads", 1, "--lr", 1e-2, "--seq", SEQ)


def small() -> hx.train.LlamaConfig:
    return hx.train.LlamaConfig(vocab=VOCAB, dim=32, hidden=48, layers=2, heads=4, kv_heads=2, seq=SEQ)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Each id is mostly followed by the next one."""
    rng = np.random.default_rng(4)
    steps = np.where(rng.random(4000) < 0.9, 1, rng.integers(0, VOCAB, 4000))
    path = tmp_path / "tokens.bin"
    (np.cumsum(steps) % VOCAB).astype("<u2").tofile(path)
    return path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "base.bin"
    path.write_bytes(llama2c_v0(small(), decoder_weights(small())))
    return path


def test_adapters_are_trained_and_the_model_stays(cli: Cli, data: Path, base: Path, tmp_path: Path) -> None:
    before, run = base.read_bytes(), tmp_path / "run"
    options = (*COMMON, "--lora", 4, "--lora-alpha", 6, "--lora-targets", "q,k,v,gate", "--steps", 80)
    ended = cli("train", "--data", data, "--model", base, *options, "-o", run, "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert base.read_bytes() == before
    assert (found["adapter"], found["model"]) == (str(run / "adapter"), None)
    assert not (run / "model.bin").exists()
    losses = [entry["loss"] for entry in read_log(run)]
    assert np.mean(losses[-20:]) < np.mean(losses[:20]) - 0.5
    config, weights = hx.train.read_llama(base)
    lora, adapters = hx.train.read_adapter(run / "adapter", config, weights)
    assert lora == hx.train.Lora(4, 6.0, ("q", "k", "v", "gate"))
    states = read_states(run / "checkpoint.hxc")
    parts = {"", ".m", ".v", ".grad"}
    assert states.keys() == {"notes", "step", "calls"} | {f"{name}{part}" for name in adapters for part in parts}
    for name, array in adapters.items():
        np.testing.assert_array_equal(states[name], array, err_msg=name)
    of_checkpoint = hx.train.read_adapter(run / "checkpoint.hxc", config, weights)
    assert of_checkpoint[0] == lora
    for name, array in of_checkpoint[1].items():
        np.testing.assert_array_equal(adapters[name], array, err_msg=name)


def test_the_first_loss_is_that_of_the_model(cli: Cli, data: Path, base: Path, tmp_path: Path) -> None:
    for name, options in (("one", ("--lora", 2)), ("two", ())):
        cli("train", "--data", data, "--model", base, *COMMON, *options, "--steps", 1, "-o", tmp_path / name)
    assert read_log(tmp_path / "one")[0]["loss"] == read_log(tmp_path / "two")[0]["loss"]


def test_a_run_that_goes_on_is_that_of_one_run(cli: Cli, data: Path, base: Path, tmp_path: Path) -> None:
    options = ("--schedule", "constant", "--warm-up", 3)
    first = ("train", "--data", data, "--model", base, *COMMON, "--lora", 3, *options)
    cli(*first, "--steps", 9, "-o", tmp_path / "whole")
    cli(*first, "--steps", 4, "-o", tmp_path / "parts")
    ended = cli("train", "--data", data, "--threads", 1, "--steps", 9, "--resume", "-o", tmp_path / "parts")
    assert ended.code == 0, ended.err
    assert read_log(tmp_path / "parts") == read_log(tmp_path / "whole")
    one, other = (read_states(tmp_path / name / "checkpoint.hxc") for name in ("parts", "whole"))
    assert one.keys() == other.keys()
    for name in one.keys() - {"notes"}:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        whole, parts = ((tmp_path / run / "adapter" / name).read_bytes() for run in ("whole", "parts"))
        assert whole == parts


@pytest.mark.parametrize("form", ["merged.bin", "merged"])
def test_export_writes_the_model_with_its_adapters(cli: Cli, data: Path, base: Path, tmp_path: Path, form: str) -> None:
    run = tmp_path / "run"
    options = (*COMMON, "--lora", 3, "--steps", 5, "--export", tmp_path / form)
    ended = cli("train", "--data", data, "--model", base, *options, "-o", run)
    assert ended.code == 0, ended.err
    config, weights = hx.train.read_llama(base)
    merged = hx.train.merge_adapters(config, weights, *hx.train.read_adapter(run / "adapter", config, weights))
    found, arrays = hx.train.read_llama(tmp_path / form)
    tokens = np.arange(SEQ)[None]
    want = logits_in_numpy(config, merged, tokens)
    np.testing.assert_allclose(logits_in_numpy(found, arrays, tokens), want, rtol=1e-6, atol=1e-6)
    generator = hx.train.Generator(base, lora=run / "checkpoint.hxc", options=hx.Options(target="host", threads=1))
    np.testing.assert_allclose(np.stack(list(generator.logits(range(SEQ)))), want[0], rtol=1e-4, atol=1e-4)


def refused(cli: Cli, *words: Any) -> str:
    ended = cli(*words)
    assert ended.code == 1, ended.out
    assert "Traceback" not in ended.err
    return ended.err


def test_what_cannot_be_is_refused(cli: Cli, data: Path, base: Path, tmp_path: Path) -> None:
    def error(*options: Any) -> str:
        return refused(cli, "train", "--data", data, *COMMON, *options, "--steps", 1, "-o", tmp_path / "run")

    assert "--lora: got no --model, need --model with the file" in error("--lora", 4)
    assert "--lora: got --model stories15M, a new one" in error("--lora", 4, "--model", "stories15M")
    assert "rank: got 17, need at most 16: k_proj is (16, 32)" in error("--lora", 17, "--model", base)
    assert "targets: got 'w', need some of q_proj" in error("--lora", 4, "--lora-targets", "q,w", "--model", base)
    assert "alpha: got -1.0, need a number above 0" in error("--lora", 4, "--lora-alpha", -1, "--model", base)
    assert "--lora-alpha: got it without --lora" in error("--lora-alpha", 4, "--model", base)
    assert cli("train", "--data", data, "--model", base, "--lora", 0).code == 2
    assert not (tmp_path / "run" / "checkpoint.hxc").exists()


def test_a_run_goes_on_with_its_own_base_and_adapters(cli: Cli, data: Path, base: Path, tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other.bin"
    first = ("train", "--data", data, *COMMON, "--steps", 2)
    cli(*first, "--model", base, "--lora", 3, "-o", run)
    cli(*first, "--model", base, "-o", tmp_path / "full")
    weights = decoder_weights(small())
    weights["model.layers.1.mlp.up_proj.weight"][5, 7] += 1e-4
    other.write_bytes(llama2c_v0(small(), weights))

    def error(*options: Any) -> str:
        return refused(cli, *first, "--resume", *options)

    assert "got a base model whose weights have the SHA-256" in error("--model", other, "-o", run)
    assert "rank of the adapters: got 4, need 3: the checkpoint's" in error("--lora", 4, "-o", run)
    assert "alpha of the adapters: got 5.0, need 6.0" in error("--lora-alpha", 5, "-o", run)
    assert "targets of the adapters: got q_proj, need q_proj,k_proj" in error("--lora-targets", "q", "-o", run)
    assert "got a checkpoint of all weights with --lora" in error("--lora", 3, "-o", tmp_path / "full")
    moved = tmp_path / "moved.bin"
    os.rename(base, moved)
    assert f"got no base model {base}" in error("-o", run)
    ended = cli(*first, "--resume", "--model", moved, "--lora", 3, "-o", run)
    assert ended.code == 0, ended.err
    fields = json.loads((run / "adapter" / "adapter_config.json").read_text())
    assert fields["base_model_name_or_path"] == str(moved)


def test_a_checkpoint_of_adapters_is_no_model(cli: Cli, data: Path, base: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    cli("train", "--data", data, "--model", base, *COMMON, "--lora", 3, "--steps", 1, "-o", run)
    with pytest.raises(hx.Error, match=r"got a checkpoint of adapters alone, need their base model, .*base\.bin"):
        hx.train.read_llama(run / "checkpoint.hxc")
    states = dict(read_states(run / "checkpoint.hxc"))
    notes = json.loads(states["notes"].tobytes())
    for change, text in (
        ({"rank": 4}, r"got float32 of shape \(3, 32\), need float32 of shape \(4, 32\)"),
        ({"rank": 0}, "rank: got 0"),
        ({"base": "base.bin"}, "a note about adapters that is damaged"),
        ({"targets": [["q"]]}, "targets: got"),
        ({"version": 2}, "a note about adapters of another form"),
    ):
        changed = json.dumps({**notes, "lora": {**notes["lora"], **change}}).encode()
        write_states(tmp_path / "other.hxc", {**states, "notes": np.frombuffer(changed, np.uint8)})
        config, weights = hx.train.read_llama(base)
        with pytest.raises(hx.Error, match=text):
            hx.train.read_adapter(tmp_path / "other.hxc", config, weights)
    whole = (run / "checkpoint.hxc").read_bytes()
    (run / "checkpoint.hxc").write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    err = refused(cli, "train", "--data", data, "--steps", 2, "--threads", 1, "--resume", "-o", run)
    assert "got bytes that do not fit the checksum" in err


def wide() -> hx.train.LlamaConfig:
    """With matrices that are large enough for an encoding."""
    return hx.train.LlamaConfig(vocab=128, dim=64, hidden=96, layers=1, heads=4, kv_heads=4, seq=SEQ)


@pytest.fixture
def wide_base(tmp_path: Path) -> Path:
    path = tmp_path / "wide.bin"
    path.write_bytes(llama2c_v0(wide(), decoder_weights(wide())))
    return path


@pytest.mark.parametrize("mode", ["int8", "blockwise4:b32", "palette4"])
def test_a_run_on_a_base_in_few_bits_goes_on_and_is_exported(
    cli: Cli, data: Path, wide_base: Path, tmp_path: Path, mode: str
) -> None:
    first = ("train", "--data", data, "--model", wide_base, *COMMON, "--lora", 3, "--compress", mode)
    first = (*first, "--schedule", "constant", "--warm-up", 3)
    cli(*first, "--steps", 6, "-o", tmp_path / "whole", "--export", tmp_path / "merged.bin")
    cli(*first, "--steps", 4, "-o", tmp_path / "parts")
    ended = cli("train", "--data", data, "--threads", 1, "--steps", 6, "--resume", "-o", tmp_path / "parts")
    assert ended.code == 0, ended.err
    assert read_log(tmp_path / "parts") == read_log(tmp_path / "whole")
    # The adapters are those of the base as its file has it.
    config, weights = hx.train.read_llama(wide_base)
    lora, adapters = hx.train.read_adapter(tmp_path / "whole" / "adapter", config, weights)
    hx.train.Generator(wide_base, lora=tmp_path / "whole" / "adapter", options=hx.Options(target="host", threads=1))
    # The model is written with the numbers that it was trained on.
    model = hx.train.llama(config, weights=weights, lora=lora, compress=mode)
    base = {name: array_of(tensor) for name, tensor in model.frozen.items()}
    want = hx.train.merge_adapters(config, base, lora, adapters)
    got = hx.train.read_llama(tmp_path / "merged.bin")[1]
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)
    assert (got["model.layers.0.mlp.up_proj.weight"] != weights["model.layers.0.mlp.up_proj.weight"]).any()


def test_an_encoding_that_cannot_be_is_refused(cli: Cli, data: Path, wide_base: Path, tmp_path: Path) -> None:
    def error(*options: Any) -> str:
        words = ("train", "--data", data, "--model", wide_base, *COMMON, "--steps", 1, "-o", tmp_path / "run")
        return refused(cli, *words, *options)

    assert "--compress: got it without --lora, need adapters" in error("--compress", "int8")
    assert "compress: got 'auto', need int8" in error("--lora", 3, "--compress", "auto")
    assert "as palette4:g12, need int8" in error("--lora", 3, "--compress", "palette4:g12")
    assert "compress: got 'int8' for M4, need the host" in error("--lora", 3, "--compress", "int8", "--target", "M4")
    assert not (tmp_path / "run").exists()
    cli("train", "--data", data, "--model", wide_base, *COMMON, "--lora", 3, "--steps", 1, "-o", tmp_path / "kept")
    more = ("train", "--data", data, "--threads", 1, "--steps", 2, "--resume", "-o", tmp_path / "kept")
    assert "compress: got int8, need none: the checkpoint's" in refused(cli, *more, "--compress", "int8")
