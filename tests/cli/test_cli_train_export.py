"""`hexane train --export DIR`: a folder of Hugging Face with the other files of the model that it was trained from."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
import tiny_llm
from command import Cli

pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install 'hexane[train]'")
ONE = ("--seq", 32, "--steps", 2, "--accumulate", 1, "--threads", 1)
END = tiny_llm.VOCAB - 2  # <|im_end|>


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tiny_llm.write(tmp_path / "model")
    fields = json.loads((folder / "config.json").read_text())
    fields |= {"bos_token_id": 95, "eos_token_id": 95, "torch_dtype": "bfloat16", "use_cache": True, "seed": None}
    (folder / "config.json").write_text(json.dumps(fields))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [END], "temperature": 0.5}))
    return folder


@pytest.fixture
def data(tmp_path: Path, model: Path) -> Path:
    known = hx.train.load_tokenizer(model / "tokenizer.json")
    hx.train.save_tokens(tmp_path / "t.bin", [known.encode("the cat sat " * 9)], vocab=known.vocab, tokenizer=known)
    return tmp_path / "t.bin"


@pytest.mark.parametrize("options", [(), ("--lora", 2)])
def test_the_models_files_go_along(cli: Cli, model: Path, data: Path, tmp_path: Path, options: tuple[object]) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    ended = cli("train", "--data", data, "--model", model, *ONE, *options, "-o", run, "--export", out)
    assert ended.code == 0, ended.err
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (out / name).read_bytes() == (model / name).read_bytes()
    was, now = (json.loads((folder / "config.json").read_text()) for folder in (model, out))
    assert now == {**was, "torch_dtype": "float32"}
    config, weights = hx.train.read_llama(out)
    first, before = hx.train.read_llama(model)
    assert config == first
    assert any(not np.array_equal(before[name], weights[name]) for name in weights)
    for generator in (out, *(() if options else (run,))):
        answer = cli("generate", generator, "--chat", "--prompt", "hi", "--steps", 3)
        assert answer.code == 0, answer.err
    if options:
        assert (run / "adapter" / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()
        assert not (run / "adapter" / "config.json").exists()


def test_a_run_that_goes_on_has_the_files_of_a_model_that_moved(
    cli: Cli, model: Path, data: Path, tmp_path: Path
) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    cli("train", "--data", data, "--model", model, *ONE, "-o", run)
    shutil.rmtree(model)
    ended = cli("train", "--data", data, "--resume", "-o", run, "--export", out, "--threads", 1)
    assert ended.code == 0, ended.err
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == [END]
    assert hx.train.read_llama(out)[0].seq == 320


def test_a_new_model_has_the_tokenizer_of_its_run(cli: Cli, model: Path, data: Path, tmp_path: Path) -> None:
    sizes = ("--dim", 8, "--hidden", 8, "--layers", 1, "--heads", 1, "--vocab", tiny_llm.VOCAB)
    given = ("--tokenizer", model / "tokenizer.json", "--export", tmp_path / "out", "-o", tmp_path / "run")
    ended = cli("train", "--data", data, *sizes, *ONE, *given)
    assert ended.code == 0, ended.err
    assert cli("generate", tmp_path / "out", "--prompt", "hi", "--steps", 3).code == 0


def test_a_tokenizer_that_is_given_stays_that_of_the_run(cli: Cli, model: Path, data: Path, tmp_path: Path) -> None:
    """The same one in other bytes: a run that goes on with it must find it."""
    given = tmp_path / "given.json"
    given.write_text(json.dumps(json.loads((model / "tokenizer.json").read_text())))
    assert given.read_bytes() != (model / "tokenizer.json").read_bytes()
    for options in (("--model", model), ("--resume",)):
        ended = cli("train", "--data", data, *options, *ONE, "--tokenizer", given, "-o", tmp_path / "run")
        assert ended.code == 0, ended.err
    assert (tmp_path / "run" / "tokenizer.json").read_bytes() == given.read_bytes()


def test_another_format_has_no_other_files(tmp_path: Path, model: Path) -> None:
    config, weights = hx.train.read_llama(model)
    with pytest.raises(hx.Error, match=r"like: got it with 'llama2\.c-v0', need 'hugging-face'"):
        hx.train.save_llama(tmp_path / "a.bin", config, weights, format="llama2.c-v0", like=model)


def test_fields_that_the_format_cannot_keep_become_its_own(tmp_path: Path, model: Path) -> None:
    """A model of other sizes than the config.json it is said to be like."""
    config = hx.train.LlamaConfig(vocab=tiny_llm.VOCAB, dim=8, hidden=8, layers=1, heads=1, seq=16, rope="half")
    weights = {name: np.ones(shape, np.float32) for name, shape in config.shapes().items()}
    hx.train.save_llama(tmp_path / "out", config, weights, format="hugging-face", like=model)
    fields = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (fields["hidden_size"], fields["eos_token_id"], fields["max_position_embeddings"]) == (8, 95, 320)
    assert hx.train.read_llama(tmp_path / "out")[1].keys() == weights.keys()
