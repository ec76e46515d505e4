"""CLIP and SigLIP in folders of Hugging Face, with texts and images: what transformers computes of them."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clip_encoders
import hexane as hx
from clip_encoders import SIDE
from command import Cli, in_this_process
from hexane.graph import Array

RECORDED: dict[str, dict[str, Any]] = json.loads(clip_encoders.RECORD.read_text())
BOTH = [name for name in clip_encoders.CASES if clip_encoders.has_both(name)]
CLOSE = 1e-5  # relative


def off(got: Array, want: Array) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def folder_of(name: str, tmp_path: Path, without: str = "", **changes: Any) -> Path:
    arrays = dict(clip_encoders.tensors(RECORDED[name]["shapes"]))
    arrays.pop(without, None)
    return clip_encoders.write_folder(tmp_path / "model", name, arrays, **changes)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return in_this_process(capsys)


def test_every_case_is_recorded() -> None:
    assert list(RECORDED) == list(clip_encoders.CASES)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", clip_encoders.CASES)
def test_outputs_are_those_of_transformers(name: str, masked: bool, tmp_path: Path) -> None:
    net, want = hx.compile(folder_of(name, tmp_path), threads=1), RECORDED[name]["outputs"]
    assert isinstance(net, hx.OpenModel)
    made = net(**clip_encoders.inputs(name, masked))
    assert {*net.output_names} == {key for key in want if " " not in key and not key.endswith("features")}
    seen = clip_encoders.ids()[1] == 1 if masked else np.ones((3, clip_encoders.COUNT), bool)
    for key, got in made.items():
        numbers = np.array(want[f"{key}{' masked' * masked}"]).reshape(got.shape)
        if key == "last_hidden_state":
            got, numbers = got[seen], numbers[seen]
        assert off(got, numbers) <= CLOSE, key


@pytest.mark.parametrize("name", BOTH)
def test_each_half_is_a_function(name: str, tmp_path: Path) -> None:
    folder, want = folder_of(name, tmp_path), RECORDED[name]["outputs"]
    given = clip_encoders.inputs(name, False)
    texts = hx.compile(f"{folder}#texts", threads=1)(input_ids=given["input_ids"])
    images = hx.compile(f"{folder}#images", threads=1)(pixel_values=given["pixel_values"])
    for made, key in ((texts, "text_embeds"), (images, "image_embeds")):
        own = made[key] if key in made else made["pooler_output"]
        numbers = np.array(want[key.replace("embeds", "features")]).reshape(own.shape)
        assert off(own, numbers) <= CLOSE


def test_transformers_computes_what_is_recorded(tmp_path: Path) -> None:
    if any(importlib.util.find_spec(package) is None for package in ("torch", "transformers")):
        pytest.skip("torch is not installed: pip install torch transformers")
    subprocess.run([sys.executable, clip_encoders.__file__, tmp_path / "found.json"], check=True, capture_output=True)
    for name, found in json.loads((tmp_path / "found.json").read_text()).items():
        assert found["shapes"] == RECORDED[name]["shapes"]
        for key, numbers in found["outputs"].items():
            assert off(np.array(numbers), np.array(RECORDED[name]["outputs"][key])) <= CLOSE, (name, key)


def test_an_old_folder_of_clip_has_its_fields_twice(tmp_path: Path) -> None:
    """And the second ones count, as in transformers."""
    text = clip_encoders.CASES["clip"]["text_config"]
    folder = folder_of("clip", tmp_path, text_config_dict=text, text_config={**text, "hidden_act": "relu"})
    net, given = hx.compile(folder, threads=1), clip_encoders.inputs("clip", False)
    got = net(**given)["logits_per_text"]
    assert off(got, np.array(RECORDED["clip"]["outputs"]["logits_per_text"]).reshape(got.shape)) <= CLOSE


def half(name: str, **fields: Any) -> dict[str, Any]:
    return {name: {**clip_encoders.CASES["clip"][name], **fields}}


@pytest.mark.parametrize(
    ("name", "fields", "said"),
    [
        ("clip", half("text_config", hidden_act="laplace"), "text_config: hidden_act: got 'laplace', need 'gelu'"),
        ("clip", half("text_config", layers=3), "text_config: layers: got 3, need no such field"),
        ("clip", half("text_config", eos_token_id=[1, 2]), "eos_token_id: got [1, 2], need an integer from 0 on"),
        ("clip", half("text_config", num_attention_heads=5), "num_attention_heads: got 5, need a divisor of the 24"),
        ("clip", half("vision_config", patch_size=0), "vision_config: patch_size: got 0, need an integer from 1 on"),
        ("clip", half("text_config", vocab_size=38), "token_embedding.weight: got float32 of shape (37, 24)"),
        ("clip", half("text_config", num_hidden_layers=1 << 30), "got 1073741824 layers and 37 tensors"),
        ("clip", {"text_config": [3]}, "text_config: got [3], need an object"),
        ("clip", {"architectures": ["CLIPForImageClassification"]}, "need CLIPModel"),
        ("clip", {"adapter": 3}, "adapter: got 3, need no such field"),
        ("siglip", {"text_config_dict": {"a": 3}}, "text_config_dict: got {'a': 3}, need no such field"),
        (
            "clip text",
            {"architectures": ["CLIPTextEncoder"]},
            "need one name that ends in Model or ModelWithProjection",
        ),
    ],
)
def test_fields_that_change_the_numbers_are_named(name: str, fields: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(hx.Error) as error:
        hx.compile(folder_of(name, tmp_path, **fields), input_shapes={"input_ids": (1, 4)})
    assert said in str(error.value)


def test_tensors_that_are_missing_are_named(tmp_path: Path) -> None:
    for name in ("logit_scale", "text_projection.weight", "text_model.final_layer_norm.bias"):
        with pytest.raises(hx.Error, match=name.rpartition("text_model.")[2]):
            hx.compile(folder_of("clip", tmp_path, without=name), input_shapes={"input_ids": (1, 4)})


def test_other_shapes_are_errors(tmp_path: Path) -> None:
    folder = folder_of("clip text", tmp_path)
    for shape, said in (((1, 17), "1 to 16 tokens"), ((4,), "need batch and tokens")):
        with pytest.raises(hx.Error, match=said):
            hx.compile(folder, input_shapes={"input_ids": shape})
    with pytest.raises(hx.Error, match="got the function 'image', need one of main, texts, images"):
        hx.compile(f"{folder_of('clip', tmp_path)}#image")
    with pytest.raises(hx.Error, match="need a batch of 3x12x12"):
        hx.compile(folder_of("clip", tmp_path), input_shapes={"input_ids": (1, 4), "pixel_values": (1, 3, 9, 9)})


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_commands_take_the_folder(name: str, cli: Cli, tmp_path: Path) -> None:
    folder = folder_of(name, tmp_path)
    shapes = ["--input-shape", "input_ids:2x8", "--input-shape", f"pixel_values:1x3x{SIDE}x{SIDE}"]
    for command in (["info"], ["run", *shapes], ["check", *shapes, "--target", "M1"]):
        ended = cli(command[0], folder, *command[1:])
        assert ended.code in (0, 3), ended.err + ended.out  # 3: check has advice
        assert command[0] != "info" or f"also    {folder}#texts\nalso    {folder}#images\n" in ended.out
        assert command[0] != "info" or "--input-shape input_ids:1x16 " in ended.out  # CLIP takes 77 tokens, SigLIP 64
    written = cli("compile", folder, *shapes, "-o", tmp_path / "out.hxp")
    assert written.code == 0, written.err
    ended = cli("run", f"{folder}#texts", "--input-shape", "input_ids:2x8")
    assert ended.code == 0, ended.err


@pytest.mark.parametrize("name", ["clip", "siglip", "clip text"])
def test_the_engine_runs_the_layers_in_one_part(name: str, tmp_path: Path) -> None:
    """The look-up of tokens and the place of the end are the CPU's."""
    shapes = {"input_ids": (2, 8)} | ({"pixel_values": (1, 3, SIDE, SIDE)} if clip_encoders.has_both(name) else {})
    report = hx.preflight(folder_of(name, tmp_path), target="M1", input_shapes=shapes)
    assert [one.device for one in report.segments].count("ane") == 1
