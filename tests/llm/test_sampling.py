"""Tokens are drawn as the folder's generation_config.json says."""

import json
from pathlib import Path
from typing import Any

import pytest

import tiny_llm
from command import in_this_process
from hexane.errors import Error
from hexane.llm import load
from hexane.llm.sampling import OPENAI, Sampling, sampling_of

OWN = Sampling(0.8, 0.9, 0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({}, OWN),
        ({"temperature": 0.3}, OWN),  # transformers takes the likeliest token without do_sample
        ({"do_sample": False, "repetition_penalty": 1.2}, OWN._replace(repetition_penalty=1.2)),
        ({"do_sample": True}, Sampling(1.0, 1.0, 50, 0.0, 1.0)),
        (
            {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05},
            Sampling(0.7, 0.8, 20, 0.0, 1.05),
        ),
        ({"do_sample": True, "temperature": 0.6, "top_k": 0, "min_p": 0.1}, Sampling(0.6, 1.0, 0, 0.1, 1.0)),
        ({"do_sample": True, "top_p": None}, Sampling(1.0, 1.0, 50, 0.0, 1.0)),
    ],
)
def test_fields_of_the_file(tmp_path: Path, fields: dict[str, Any], want: Sampling) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(fields))
    assert sampling_of(tmp_path) == want


def test_a_folder_without_the_file_has_hexane_s_own(tmp_path: Path) -> None:
    assert sampling_of(tmp_path) == OWN
    assert sampling_of(tmp_path, OPENAI) == Sampling(1.0, 1.0, 0, 0.0, 1.0)


def test_a_server_keeps_the_penalty_of_a_file_without_do_sample(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"repetition_penalty": 1.2, "temperature": 0.3}')
    assert sampling_of(tmp_path, OPENAI) == OPENAI._replace(repetition_penalty=1.2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "got list, need an object"),
        ("{", "cannot be read"),
        ('{"do_sample": true, "top_p": "high"}', "top_p: got 'high', need a number"),
        ('{"repetition_penalty": true}', "repetition_penalty: got True, need a number"),
        ('{"do_sample": true, "top_k": Infinity}', "top_k: got inf, need a finite number"),
        ('{"do_sample": true, "top_k": NaN}', "top_k: got nan, need a finite number"),
        ('{"do_sample": true, "top_k": 2.7}', "top_k: got 2.7, need an integer"),
        ('{"do_sample": true, "temperature": 1%s}' % ("0" * 400), "temperature: got inf, need a finite number"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(Error, match=said):
        sampling_of(tmp_path)


def test_a_model_draws_so_and_options_of_the_call_come_first(tmp_path: Path) -> None:
    folder = tiny_llm.write(tmp_path / "tiny")
    fields = {"do_sample": True, "temperature": 60.0, "top_k": 7, "top_p": 1.0, "repetition_penalty": 1.3}
    plain = load(folder, threads=1)
    assert plain.sampling == OWN
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields if file.is_file() else fields))
    model = load(folder, threads=1)
    chosen = {name: value for name, value in fields.items() if name != "do_sample"}
    text = model.generate("abc", steps=24, seed=3).text()
    assert text == plain.generate("abc", steps=24, seed=3, **chosen).text()
    assert text != plain.generate("abc", steps=24, seed=3).text()
    likeliest = plain.generate("abc", steps=24, temperature=0, repetition_penalty=1.3).text()
    assert model.generate("abc", steps=24, temperature=0).text() == likeliest


def test_the_command_does_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli, folder = in_this_process(capsys), tiny_llm.write(tmp_path / "tiny")
    options = ("generate", folder, "--prompt", "abc", "--steps", 20, "--json")
    asked = json.loads(cli(*options, "--temperature", 60, "--top-p", 1.0, "--top-k", 7).out)["text"]
    (folder / "generation_config.json").write_text(
        json.dumps({"do_sample": True, "temperature": 60, "top_p": 1.0, "top_k": 7})
    )
    assert json.loads(cli(*options).out)["text"] == asked
