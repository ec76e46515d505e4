"""Image encoders in folders of Hugging Face: what transformers computes of them."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
import image_encoders
from hexane.graph import Array

RECORDED: dict[str, dict[str, Any]] = json.loads(image_encoders.RECORD.read_text())
CLOSE = 1e-5  # relative


def off(got: Array, want: Array) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def arrays_of(name: str) -> dict[str, Any]:
    return dict(image_encoders.tensors(RECORDED[name]["shapes"]))


def folder_of(name: str, tmp_path: Path, arrays: dict[str, Any] | None = None, **changes: Any) -> Path:
    return image_encoders.write_folder(tmp_path / "model", name, arrays or arrays_of(name), **changes)


def test_every_case_is_recorded() -> None:
    assert list(RECORDED) == list(image_encoders.CASES)


@pytest.mark.parametrize("name", image_encoders.CASES)
def test_outputs_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Of two images, and of one alone."""
    net = hx.compile(folder_of(name, tmp_path), threads=1)
    assert isinstance(net, hx.OpenModel)
    given, want = image_encoders.pixels(name), RECORDED[name]["outputs"]
    assert set(net.output_names) == set(want)
    for images in (given, given[1:]):
        made = net(pixel_values=images)
        found = dict(made) if isinstance(made, dict) else {net.output_names[0]: made}
        for key, numbers in want.items():
            rows = np.array(numbers).reshape(2, *found[key].shape[1:])[-len(images) :]
            assert off(found[key], rows) <= CLOSE, key


def test_transformers_computes_what_is_recorded(tmp_path: Path) -> None:
    if any(importlib.util.find_spec(package) is None for package in ("torch", "transformers")):
        pytest.skip("torch is not installed: pip install torch transformers")
    subprocess.run([sys.executable, image_encoders.__file__, tmp_path / "found.json"], check=True, capture_output=True)
    for name, found in json.loads((tmp_path / "found.json").read_text()).items():
        assert found["shapes"] == RECORDED[name]["shapes"]
        for key, numbers in found["outputs"].items():
            assert off(np.array(numbers), np.array(RECORDED[name]["outputs"][key])) <= CLOSE, (name, key)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"patch_size": 0}, "patch_size: got 0, need an integer from 1 on"),
        ({"image_size": 3}, "image_size: got 3, need at least the 4 of patch_size"),
        ({"image_size": [14, 14]}, "image_size: got [14, 14], need an integer"),
        ({"num_attention_heads": 5}, "num_attention_heads: got 5, need a divisor of the 24"),
        ({"hidden_act": "laplace"}, "hidden_act: got 'laplace', need 'gelu'"),
        ({"pooler_act": "relu"}, "pooler_act: got 'relu', need 'tanh'"),
        ({"layerscale_value": 0.1}, "layerscale_value: got 0.1, need no such field"),
        (
            {"architectures": ["ViTForMaskedImageModeling"]},
            "architectures: got ['ViTForMaskedImageModeling'], need one",
        ),
        ({"num_hidden_layers": 1 << 30}, "got 1073741824 layers and 40 tensors"),
        ({"num_hidden_layers": 3}, "got no tensor 'encoder.layer.2.attention.attention.query.weight'"),
        ({"num_hidden_layers": 1}, "got the tensor 'encoder.layer.1.attention.attention.key.bias'"),
        ({"image_size": 20}, "embeddings.position_embeddings: got float32 of shape (1, 10, 24), need floats of shape"),
        ({"qkv_bias": False}, "got the tensor 'encoder.layer.0.attention.attention.key.bias'"),
    ],
)
def test_fields_that_change_the_numbers_are_named(fields: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(hx.Error) as error:
        hx.compile(folder_of("vit", tmp_path, **fields), input_shapes={"pixel_values": (1, 3, 14, 14)})
    assert said in str(error.value)


def test_images_of_another_size_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(hx.Error, match="need a batch of 3x14x14"):
        hx.compile(folder_of("vit", tmp_path), input_shapes={"pixel_values": (1, 3, 16, 16)})


@pytest.mark.parametrize("name", ["vit labels", "deit teacher", "clip projection", "siglip"])
def test_the_engine_runs_all_in_one_part(name: str, tmp_path: Path) -> None:
    shapes = {"pixel_values": (1, 3, 14, 14)}
    report = hx.preflight(folder_of(name, tmp_path), target="M1", input_shapes=shapes)
    assert [one.device for one in report.segments] == ["ane"]
