"""Whisper in folders of Hugging Face: what transformers computes of its encoder and its decoder."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
import speech_models
from command import Cli, in_this_process
from hexane.graph import Array

RECORDED: dict[str, dict[str, Any]] = json.loads(speech_models.RECORD.read_text())
CLOSE = 1e-5  # relative
FEATURES = {"input_features": (1, 80, 100)}


def off(got: Array, want: Array) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def arrays_of(name: str) -> dict[str, Any]:
    return dict(speech_models.tensors(RECORDED[name]["shapes"]))


def folder_of(name: str, tmp_path: Path, arrays: dict[str, Any] | None = None, **changes: Any) -> Path:
    return speech_models.write_folder(tmp_path / "model", name, arrays or arrays_of(name), **changes)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return in_this_process(capsys)


def test_every_case_is_recorded() -> None:
    assert list(RECORDED) == list(speech_models.CASES)


@pytest.mark.parametrize("name", speech_models.CASES)
def test_states_and_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Of two windows together, and of one alone."""
    folder, features, ids = folder_of(name, tmp_path), speech_models.features(name), speech_models.ids()
    encoder, decoder = hx.compile(folder, threads=1), hx.compile(f"{folder}#decoder", threads=1)
    states = np.array(RECORDED[name]["states"], np.float32).reshape(2, 50, 24)
    logits = np.array(RECORDED[name]["logits"]).reshape(2, 7, speech_models.VOCAB)
    for some in (slice(0, 2), slice(1, 2)):
        found = encoder(input_features=features[some])
        assert off(found, states[some]) <= CLOSE
        assert off(decoder(decoder_input_ids=ids[some], encoder_hidden_states=found), logits[some]) <= CLOSE


def test_transformers_computes_what_is_recorded(tmp_path: Path) -> None:
    if any(importlib.util.find_spec(package) is None for package in ("torch", "transformers")):
        pytest.skip("torch is not installed: pip install torch transformers")
    subprocess.run([sys.executable, speech_models.__file__, tmp_path / "found.json"], check=True, capture_output=True)
    for name, found in json.loads((tmp_path / "found.json").read_text()).items():
        want = RECORDED[name]
        assert (found["shapes"], found["texts"]) == (want["shapes"], want["texts"])
        for key in ("states", "logits"):
            assert off(np.array(found[key]), np.array(want[key])) <= CLOSE, (name, key)


def test_a_folder_of_the_model_without_its_head_has_the_same_numbers(tmp_path: Path) -> None:
    """Names of tensors without `model.`, architectures with Model at the end."""
    arrays = {name.removeprefix("model."): array for name, array in arrays_of("whisper").items()}
    net = hx.compile(folder_of("whisper", tmp_path, arrays, architectures=["WhisperModel"]), threads=1)
    states = np.array(RECORDED["whisper"]["states"], np.float32).reshape(2, 50, 24)
    assert off(net(input_features=speech_models.features("whisper")), states) <= CLOSE


def test_a_tied_head_may_be_stored_and_has_to_be_the_embedding(tmp_path: Path) -> None:
    arrays = arrays_of("whisper")
    arrays["proj_out.weight"] = arrays["model.decoder.embed_tokens.weight"].copy()
    hx.compile(folder_of("whisper", tmp_path, arrays), input_shapes=FEATURES)
    arrays["proj_out.weight"][0, 0] += 1
    with pytest.raises(hx.Error, match=r"proj_out\.weight: got another than the embedding, need tie_word_embeddings"):
        hx.compile(folder_of("whisper", tmp_path, arrays), input_shapes=FEATURES)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"d_model": 0}, "d_model: got 0, need an integer from 1 on"),
        ({"encoder_layers": [2]}, "encoder_layers: got [2], need an integer"),
        ({"decoder_attention_heads": 5}, "decoder_attention_heads: got 5, need a divisor of the 24 of d_model"),
        ({"activation_function": "laplace"}, "activation_function: got 'laplace', need 'gelu'"),
        ({"adapter": 3}, "adapter: got 3, need no such field"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder: got False, need True"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings: got 'yes', need True or False"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: got {'bits': 4}, need None"),
        ({"architectures": ["WhisperForAudioClassification"]}, "need one name that ends in ForConditionalGeneration"),
        ({"encoder_layers": 1 << 30}, "got 1073741824 layers and 89 tensors"),
        ({"decoder_layers": 3}, "got no tensor 'decoder.layers.2.self_attn.q_proj.weight'"),
        ({"decoder_layers": 1}, "got the tensor 'decoder.layers.1"),
        ({"max_source_positions": 51}, "encoder.embed_positions.weight: got float32 of shape (50, 24), need floats"),
        ({"tie_word_embeddings": False}, "got no tensor 'proj_out.weight'"),
    ],
)
def test_fields_that_change_the_numbers_are_named(fields: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(hx.Error) as error:
        hx.compile(folder_of("whisper", tmp_path, **fields), input_shapes=FEATURES)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("function", "shapes", "said"),
    [
        ("main", {"input_features": (1, 80, 99)}, r"got \(1, 80, 99\), need 1x80x100"),
        ("main", {"input_features": (80, 100)}, r"got \(80, 100\), need batchx80x100"),
        ("main", {"input_features": (0, 80, 100)}, r"got \(0, 80, 100\)"),
        ("main", {"x": (1, 80, 100)}, "need the shape of input_features"),
        ("decoder", {"decoder_input_ids": (1, 91)}, "1 to 90 tokens"),
        ("decoder", {"decoder_input_ids": (2, 4), "encoder_hidden_states": (1, 50, 24)}, "need 2x50x24"),
        ("encoder", {}, "got the function 'encoder', need one of main, decoder"),
    ],
)
def test_other_shapes_are_errors(function: str, shapes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(hx.Error, match=said):
        hx.compile(f"{folder_of('whisper', tmp_path)}#{function}", input_shapes=shapes)


@pytest.mark.parametrize("half", ["", "#decoder"])
def test_commands_take_the_folder(half: str, cli: Cli, tmp_path: Path) -> None:
    folder = f"{folder_of('whisper', tmp_path)}{half}"
    shape = "decoder_input_ids:1x4" if half else "input_features:1x80x100"
    shapes = ["--input-shape", shape]
    for command in (
        ["info"],
        ["run", *shapes],
        ["check", *shapes, "--target", "M1"],
        ["estimate", *shapes, "--target", "M1"],
    ):
        ended = cli(command[0], folder, *command[1:])
        assert ended.code in (0, 3), ended.err + ended.out  # 3: check has advice
        assert half or command[0] != "info" or f"--input-shape {shape}" in ended.out
        assert (f"also    {folder}#decoder\n" in ended.out) is (not half and command[0] == "info")
    for command in (
        ["compile", "-o", tmp_path / "out.hxp"],
        ["emit", "--target", "M1", "-o", tmp_path / "out.mlpackage"],
    ):
        ended = cli(command[0], folder, *shapes, *command[1:])
        assert ended.code == 0, ended.err


@pytest.mark.parametrize("half", ["", "#decoder"])
def test_the_engine_runs_the_layers_in_one_part(half: str, tmp_path: Path) -> None:
    """The look-up of tokens is the CPU's."""
    shapes = {"decoder_input_ids": (1, 4)} if half else FEATURES
    report = hx.preflight(f"{folder_of('whisper', tmp_path)}{half}", target="M1", input_shapes=shapes)
    devices = [one.device for one in report.segments]
    assert devices.count("ane") == 1
    assert half or devices == ["ane"]
