"""Image encoders by `hx.llm.load`: pixels as transformers' processors make them, vectors, logits, `hexane embed`."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hexane as hx
import image_encoders
import image_processors
from command import Cli, in_this_process
from hexane.feeds.resample import resized
from hexane.graph import Array
from hexane.llm.image_processor import load_image_processor
from in_16_bits import two_folders

RECORDED: dict[str, dict[str, Any]] = json.loads(image_encoders.RECORD.read_text())
PIXELS: dict[str, list[list[float]]] = json.loads(image_processors.RECORD.read_text())
SIDE = image_processors.SIDE
FIELDS = {"size": {"height": SIDE, "width": SIDE}, "do_center_crop": False}
CLOSE = 1e-5  # relative
# Outputs of the file's network that stand for an image.
VECTORS = {
    "vit": "pooler_output",
    "vit labels": None,
    "deit teacher": None,
    "clip": "pooler_output",
    "clip projection": "image_embeds",
    "siglip": "pooler_output",
}


def off(got: Array, want: Array) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def folder_of(name: str, tmp_path: Path, **fields: Any) -> Path:
    folder = image_encoders.write_folder(
        tmp_path / "model", name, dict(image_encoders.tensors(RECORDED[name]["shapes"]))
    )
    (folder / "preprocessor_config.json").write_text(json.dumps({**FIELDS, **fields}))
    return folder


def image(seed: int = 0, height: int = 20, width: int = 31) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return in_this_process(capsys)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    ("shape", "size"),
    [((37, 53), (14, 14)), ((14, 20), (60, 61)), ((30, 200), (50, 41)), ((5, 1), (7, 9)), ((13, 24), (12, 24))],
)
def test_resizing_gives_the_bytes_of_pillow(mode: str, shape: tuple[int, int], size: tuple[int, int]) -> None:
    """Columns first, as Pillow before 13 and torchvision do."""
    pillow = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'hexane[images]'")
    given, way = image(3, *shape), getattr(pillow.Resampling, mode.upper())
    height, width = size

    def in_pillow(array: Array) -> Array:
        return np.asarray(pillow.fromarray(array).resize((width, shape[0]), way).resize((width, height), way))

    assert np.array_equal(resized(given, height, width, mode), in_pillow(given))
    floats = given.astype(np.float32) / 255
    want = np.stack([in_pillow(floats[..., c]) for c in range(3)], -1)
    assert np.abs(resized(floats, height, width, mode) - want).max() < 1e-6


@pytest.mark.parametrize("name", PIXELS)
def test_pixels_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Within one of 255 steps: torchvision rounds its weights to fewer bits than Pillow."""
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(image_processors.fields(name)))
    processor = load_image_processor(tmp_path, "vit", 3, SIDE)
    step = processor.factor / np.array(processor.std)
    for shape, want in zip(image_processors.SHAPES, PIXELS[name], strict=True):
        got = processor(image_processors.image(shape), 3, "").reshape(-1)[:: image_processors.STEP]
        assert np.abs(got - want).max() <= step.max() * 1.001
        assert np.mean(np.abs(got - want) > step.max() / 2) < 0.1  # few differ at all


def test_every_processor_is_recorded() -> None:
    assert list(PIXELS) == list(image_processors.CASES)


def test_transformers_makes_the_recorded_pixels(tmp_path: Path) -> None:
    if any(importlib.util.find_spec(package) is None for package in ("torch", "torchvision", "transformers")):
        pytest.skip("torchvision is not installed: pip install torch torchvision transformers")
    file = tmp_path / "found.json"
    subprocess.run([sys.executable, image_processors.__file__, file], check=True, capture_output=True)
    for name, found in json.loads(file.read_text()).items():
        assert np.abs(np.array(found) - PIXELS[name]).max() <= 1e-5


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_are_outputs_of_the_network(name: str, tmp_path: Path) -> None:
    """Of ten images, of one, and of none: ten are a batch of eight and two alone."""
    folder = folder_of(name, tmp_path)
    model, net = hx.llm.load(folder, threads=1), hx.compile(folder, threads=1)
    images = [image(i) for i in range(10)]
    got = model.embed(images)
    assert got.dtype == np.float32
    if output := VECTORS[name]:
        assert off(got, net(pixel_values=model.pixels(images))[output]) <= CLOSE
    assert off(model.embed(images[3]), got[3]) <= CLOSE
    assert off(model.embed(np.stack(images[:2])), got[:2]) <= CLOSE
    assert model.embed([]).shape == (0, got.shape[1])
    assert np.linalg.norm(model.embed(images[1], normalize=True)) == pytest.approx(1, abs=1e-6)


def test_without_a_pooler_the_first_token_is_the_vector(tmp_path: Path) -> None:
    """The labels are a linear layer of it."""
    model = hx.llm.load(folder_of("vit labels", tmp_path), threads=1)
    head = image_encoders.tensors(RECORDED["vit labels"]["shapes"])
    want = model.embed(image()) @ head["classifier.weight"].T + head["classifier.bias"]
    assert off(model.logits(image()), want) <= CLOSE


def test_recorded_pixels_give_the_vectors_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = hx.llm.load(folder_of("clip projection", tmp_path), threads=1)
    given = image_encoders.pixels("clip projection")
    monkeypatch.setattr(model, "processor", lambda image, channels, where: image)
    want = np.array(RECORDED["clip projection"]["outputs"]["image_embeds"]).reshape(2, -1)
    assert off(model.embed(list(given)), want) <= CLOSE


def test_files_and_arrays_give_the_same_vector(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'hexane[images]'")
    model = hx.llm.load(folder_of("siglip", tmp_path), threads=1)
    array = image(2)
    pillow.fromarray(array).save(tmp_path / "a.png")
    want = model.embed(array)
    assert np.array_equal(model.embed(tmp_path / "a.png"), want)
    assert np.array_equal(model.embed([str(tmp_path / "a.png")])[0], want)
    small = array[:SIDE, :SIDE]  # no resizing, which rounds and clips bytes
    assert np.allclose(model.pixels(small.astype(np.float64) / 255), model.pixels(small), atol=1e-6)
    grey = array[..., 0]
    pillow.fromarray(grey).save(tmp_path / "grey.png")
    assert np.array_equal(model.embed(tmp_path / "grey.png"), model.embed(grey))
    assert np.array_equal(model.embed(grey[..., None]), model.embed(np.stack([grey] * 3, -1)))


def test_a_photo_is_turned_as_its_camera_says(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'hexane[images]'")
    model = hx.llm.load(folder_of("vit", tmp_path), threads=1)
    exif = pillow.Exif()
    exif[274] = 6  # turn by 90 degrees
    pillow.fromarray(image()).save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(model.embed(tmp_path / "a.png"), model.embed(np.rot90(image(), -1)))


def test_a_processor_may_stand_in_processor_config(tmp_path: Path) -> None:
    folder = folder_of("clip", tmp_path)
    want = hx.llm.load(folder, threads=1).embed(image())
    (folder / "preprocessor_config.json").unlink()
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": FIELDS}))
    assert np.array_equal(hx.llm.load(folder, threads=1).embed(image()), want)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"size": {"longest_edge": 14}},
            "size: got {'longest_edge': 14}, need a height and a width, or a shortest_edge",
        ),
        (
            {"size": {"height": 20, "width": 20}},
            "size: got {'height': 20, 'width': 20}, need the 14 x 14 of the network",
        ),
        ({"do_center_crop": True, "crop_size": 15}, "crop_size: got 15, need the 14 x 14 of the network"),
        ({"resample": 1}, "resample: got 1, need 2 (bilinear) or 3 (bicubic)"),
        ({"resample": [3]}, "resample: got [3], need"),
        ({"crop_pct": 0.9}, "crop_pct: got 0.9, need no such field"),
        ({"image_mean": [0.5, 0.5]}, "image_mean: got [0.5, 0.5], need 3 numbers"),
        ({"image_std": [0.5, 0, 0.5]}, "image_std: got [0.5, 0, 0.5], need numbers other than 0"),
        ({"image_std": [10**30, 1, 1]}, "image_std: got [1000000000000000000000000000000, 1, 1], need 3 numbers"),
        ({"rescale_factor": -1}, "rescale_factor: got -1, need a number above 0"),
        ({"do_resize": "yes"}, "do_resize: got 'yes', need true or false"),
        (
            {"image_processor_type": "ConvNextImageProcessor"},
            "image_processor_type: got 'ConvNextImageProcessor', need",
        ),
        (
            {"resample": 0, "do_pad": True},
            "do_pad: got True, need no such field, as it may change the numbers; resample",
        ),
    ],
)
def test_fields_that_change_the_numbers_are_named(fields: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(hx.Error) as error:
        hx.llm.load(folder_of("vit", tmp_path, **fields))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.full((9, 9, 3), 2.0), "got floats from 2 to 2, need 0 to 1, or pixels in uint8"),
        (np.full((9, 9, 3), np.nan), "got floats from nan to nan"),
        (np.zeros((9, 9, 3), np.int64), "got an array of int64, need uint8"),
        (np.zeros((3, 9, 9), np.uint8), "got an array of shape (3, 9, 9), need (height, width, 3)"),
        (np.zeros((0, 9, 3), np.uint8), "got an array of shape (0, 9, 3)"),
        ([7], "got int, need the path of an image"),
        (7, "got int, need paths of images, or arrays"),
        ("missing.png", "missing.png"),
    ],
)
def test_other_things_than_images_are_errors(given: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(hx.Error) as error:
        hx.llm.load(folder_of("vit", tmp_path), threads=1).embed(given)
    assert said in str(error.value)


def test_what_an_image_encoder_lacks_is_an_error(tmp_path: Path) -> None:
    folder = folder_of("siglip without head", tmp_path, size={"shortest_edge": SIDE})
    model = hx.llm.load(folder, threads=1)
    with pytest.raises(hx.Error, match="got a model without a vector of an image, need vision_use_head"):
        model.embed(image())
    with pytest.raises(hx.Error, match="got a model without labels, need a ForImageClassification"):
        model.logits(image())
    with pytest.raises(hx.Error, match=r"got an image that becomes \(14, 21\), need \(14, 14\): no crop_size"):
        model.pixels(image())
    with pytest.raises(hx.Error, match="compress: got 'int8' for an image encoder, need none"):
        hx.llm.load(folder, compress="int8")
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(hx.Error, match=r"got no preprocessor_config.json, need it"):
        hx.llm.load(folder)


def test_embed_prints_the_cosines_of_images(cli: Cli, tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'hexane[images]'")
    folder = folder_of("deit labels", tmp_path, image_processor_type="DeiTImageProcessor")
    files = [tmp_path / name for name in ("a.png", "b.png")]
    for i, file in enumerate(files):
        pillow.fromarray(image(i)).save(file)
    ended = cli("embed", folder, "--image", files[0], "--image", files[1], "-o", tmp_path / "out.npy")
    assert ended.code == 0, ended.err
    want = hx.llm.load(folder).embed(files)
    assert off(np.load(tmp_path / "out.npy"), want) <= CLOSE
    assert ended.out.splitlines()[0] == f"2 x 24, in {tmp_path / 'out.npy'}"
    cosine = want[0] @ want[1] / np.linalg.norm(want[0]) / np.linalg.norm(want[1])
    assert f"{float(cosine):.4f}" in ended.out
    found = json.loads(cli("embed", folder, "--image", files[0], "--json").out)
    assert found["images"] == [{"image": str(files[0]), "cosine": pytest.approx(1)}]
    assert "--image: got none" in cli("embed", folder).err
    assert "--text: got it for an image encoder" in cli("embed", folder, "--text", "a").err


@pytest.mark.parametrize("name", ["vit", "clip", "siglip"])
def test_a_folder_in_16_bits_computes_as_in_fp32(name: str, tmp_path: Path) -> None:
    short, wide = [hx.llm.load(one, threads=1) for one in two_folders(folder_of(name, tmp_path), ml_dtypes.bfloat16)]
    assert short.embed(image()).tobytes() == wide.embed(image()).tobytes()


def test_products_in_bf16_are_close(tmp_path: Path) -> None:
    folder = folder_of("vit", tmp_path)
    want, got = (hx.llm.load(folder, threads=1, dtype=dtype).embed(image()) for dtype in ("", "bf16"))
    assert 0 < off(got, want) < 0.02
