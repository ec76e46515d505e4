"""Files as inputs: which dtypes are converted, and what images and sounds become."""

import contextlib
import struct
import wave
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import hexane as hx
from hexane.dtypes import dtype
from hexane.feeds import Feeds, InputPort, Preprocess
from hexane.feeds.images import read_image
from hexane.feeds.ports import converted
from hexane.feeds.preprocess import parse_preprocess
from hexane.feeds.sounds import read_sound, read_wav

Image = pytest.importorskip("PIL.Image", reason="Pillow, which reads images, is not installed")


@pytest.mark.parametrize(
    ("array", "to"),
    [
        (np.array([1.5, -65504, np.inf, np.nan]), "fp32"),
        (np.array([1.5, 250.25], np.float16), "fp32"),
        (np.array([1.5, 250.25], ">f4"), "fp32"),
        (np.array([1.5, 65504], ">f8"), "fp16"),
        (np.array([0, 255], np.uint8), "fp32"),
        (np.array([-(2**24), 2**24, 2**40, 2**62]), "fp32"),
        (np.array([2**63, 2**64 - 2**11], np.uint64), "fp64"),
        (np.array([True, False]), "fp16"),
        (np.array([1.5, -2], ml_dtypes.bfloat16), "fp32"),
        (np.array([1.5, -2], np.float32), "bf16"),
        (np.array([0, 49151]), "int32"),
        (np.array([3, 4], ">i8"), "int64"),
        (np.zeros((0, 3)), "fp32"),
    ],
)
def test_a_dtype_is_converted_where_no_number_is_lost(array: np.ndarray, to: str) -> None:
    got = converted(array, dtype(to))
    assert got is not None
    assert got.dtype == dtype(to).numpy
    assert [float(x) for x in got.flat] == pytest.approx([float(x) for x in array.flat], rel=1e-7, nan_ok=True)
    if array.dtype.kind in "iub":
        assert [int(x) for x in got.flat] == [int(x) for x in array.flat]


@pytest.mark.parametrize(
    ("array", "to"),
    [
        (np.array([1e39]), "fp32"),
        (np.array([70000.0], np.float32), "fp16"),
        (np.array([2**24 + 1]), "fp32"),
        (np.array([2**53 + 1]), "fp64"),
        (np.array([2**64 - 1], np.uint64), "fp32"),
        (np.array([65519]), "fp16"),
        (np.array([70000]), "fp16"),
        (np.array([2**31]), "int32"),
        (np.array([-1]), "uint8"),
        (np.array([1.0]), "int64"),
        (np.array([1j]), "fp32"),
        (np.array([1]), "bool"),
    ],
)
def test_a_dtype_that_does_not_hold_the_numbers_is_refused(array: np.ndarray, to: str) -> None:
    assert converted(array, dtype(to)) is None


def save_image(path: Path, color: tuple[int, ...], size: tuple[int, int] = (4, 2), mode: str = "RGB") -> Path:
    Image.new(mode, size, color if len(color) > 1 else color[0]).save(path)
    return path


def port(*shape: int | str, kind: str = "fp32") -> InputPort:
    return InputPort("x", shape, dtype(kind))


@pytest.mark.parametrize("name", ["a.png", "a.jpg"])
def test_pixels_are_preprocessed_as_asked(tmp_path: Path, name: str) -> None:
    """(x - mean) * scale of pixels from 0 to 255, as Caffe and PaddlePaddle have it; else x / 255."""
    path = save_image(tmp_path / name, (120, 120, 120))
    how = parse_preprocess(["mean=123.7,116.3,103.5 scale=0.017", "layout=nchw"])
    want = (120 - np.array([123.7, 116.3, 103.5])) * 0.017
    got = read_image(port(1, 3, 2, 4), path, how)
    assert (got.shape, got.dtype) == ((1, 3, 2, 4), np.float32)
    np.testing.assert_allclose(got[0, :, 0, 0], want, rtol=1e-5)
    np.testing.assert_allclose(read_image(port(1, 3, 2, 4), path, Preprocess()), 120 / 255, rtol=1e-6)


def test_channels_are_where_the_shape_or_the_layout_has_them(tmp_path: Path) -> None:
    path = save_image(tmp_path / "a.png", (10, 20, 30))
    raw = parse_preprocess(["scale=1"])
    np.testing.assert_array_equal(read_image(port(1, 2, 4, 3), path, raw)[0, 0, 0], [10, 20, 30])
    np.testing.assert_array_equal(read_image(port(1, "c", "h", "w"), path, raw)[0, :, 0, 0], [10, 20, 30])
    last = parse_preprocess(["scale=1", "layout=nhwc"])
    assert read_image(port(1, "h", "w", "c"), path, last).shape == (1, 2, 4, 3)
    pixels = read_image(port(1, 2, 4, 3, kind="uint8"), path, Preprocess())
    assert (pixels.dtype, pixels[0, 0, 0].tolist()) == (np.uint8, [10, 20, 30])


@pytest.mark.parametrize(("mode", "color"), [("L", (90,)), ("RGBA", (90, 90, 90, 255)), ("P", (90,)), ("1", (0,))])
def test_images_of_a_folder_get_the_size_and_channels_of_the_input(
    tmp_path: Path, mode: str, color: tuple[int, ...]
) -> None:
    save_image(tmp_path / "a.png", color, (31, 17), mode)
    (feed,) = Feeds(tmp_path, (port(1, 3, 8, 6),), how=parse_preprocess(["scale=1"]))
    assert feed["x"].shape == (1, 3, 8, 6)
    assert np.ptp(feed["x"]) == 0
    if mode in ("L", "RGBA"):
        assert feed["x"].max() == 90


def save_wav(path: Path, samples: np.ndarray, width: int) -> Path:
    """samples: [frames, channels] as integers of so many bytes."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(samples.shape[1])
        file.setsampwidth(width)
        file.setframerate(16000)
        raw = samples + 128 if width == 1 else samples
        file.writeframes(b"".join(int(x).to_bytes(width, "little", signed=width > 1) for x in raw.flat))
    return path


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_samples_are_from_minus_1_to_1(tmp_path: Path, width: int) -> None:
    full = 2 ** (8 * width - 1)
    numbers = np.array([[0], [full // 2], [-full], [-full // 4]])
    path = save_wav(tmp_path / "a.wav", numbers, width)
    np.testing.assert_array_equal(read_sound(port(1, "n"), path, Preprocess()), [[0, 0.5, -1, -0.25]])
    np.testing.assert_array_equal(read_sound(port(1, 1, 6), path, Preprocess()), [[[0, 0.5, -1, -0.25, 0, 0]]])
    np.testing.assert_array_equal(read_sound(port(2), path, Preprocess()), [0, 0.5])


def test_channels_of_a_sound_are_averaged_for_an_input_of_one(tmp_path: Path) -> None:
    path = save_wav(tmp_path / "a.wav", np.array([[8192, 16384], [-8192, 0]]), 2)
    np.testing.assert_array_equal(read_sound(port(1, 2, 2), path, Preprocess()), [[[0.25, -0.25], [0.5, 0]]])
    np.testing.assert_array_equal(read_sound(port(1, 2), path, Preprocess()), [[0.375, -0.125]])
    with pytest.raises(hx.Error, match="got a wav, need a floating port of samples"):
        read_sound(port(1, 3, 4, 4), path, Preprocess())
    with pytest.raises(hx.Error, match="got 2 channels of samples"):
        read_sound(port(1, 80, 3000), path, Preprocess())


def wav_bytes(code: int, bits: int, data: bytes, size: int | None = None, extensible: bool = False) -> bytes:
    """By the definition of RIFF, with a part before the samples that readers skip."""
    kind = struct.pack("<HHIIHH", 0xFFFE if extensible else code, 1, 16000, 2000 * bits, bits // 8, bits)
    if extensible:
        kind += struct.pack("<HHIH", 22, bits, 4, code) + bytes.fromhex("000000001000800000aa00389b71")
    skipped = struct.pack("<4sI", b"LIST", 3) + b"abc\0"
    parts = struct.pack("<4sI", b"fmt ", len(kind)) + kind + skipped
    parts += struct.pack("<4sI", b"data", len(data) if size is None else size) + data
    return struct.pack("<4sI4s", b"RIFF", 4 + len(parts), b"WAVE") + parts


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize("kind", ["<i2", "<i4", "<f4", "<f8"])
def test_wav_files_of_integers_and_floats_are_read(tmp_path: Path, kind: str, extensible: bool) -> None:
    """ffmpeg and DAWs write extensible formats; a file from a pipe says that its data are endless."""
    held = np.array([0, 0.5, -1, -0.25])
    data = (held if "f" in kind else held * 2.0 ** (8 * int(kind[2]) - 1)).astype(kind).tobytes()
    for size in (None, 0xFFFFFFFF):
        path = tmp_path / "a.wav"
        path.write_bytes(wav_bytes(3 if "f" in kind else 1, 8 * int(kind[2]), data, size, extensible))
        samples, rate = read_wav(path, "[test]")
        assert rate == 16000
        np.testing.assert_array_equal(samples[:, 0], held.astype(np.float32))


@pytest.mark.parametrize(("code", "bits"), [(1, 40), (1, 0), (1, 64), (3, 16), (7, 8), (85, 16)])
def test_wav_files_of_other_samples_are_errors(tmp_path: Path, code: int, bits: int) -> None:
    (tmp_path / "a.wav").write_bytes(wav_bytes(code, bits, bytes(80)))
    with pytest.raises(hx.Error, match=rf"PCM samples: got 1 channels of kind {code} with {bits} bits.*ffmpeg"):
        read_wav(tmp_path / "a.wav", "[test]")


def test_damaged_wav_files_are_errors_or_sounds(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "a.wav"
    for extensible in (False, True):
        whole = wav_bytes(3, 32, rng.standard_normal(40).astype("<f4").tobytes(), extensible=extensible)
        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            with contextlib.suppress(hx.Error):
                read_wav(path, "[test]")
        for _ in range(2000):
            changed = bytearray(whole)
            for place in rng.integers(0, 80, 3):
                changed[place] = int(rng.integers(256))
            path.write_bytes(changed)
            with contextlib.suppress(hx.Error):
                read_wav(path, "[test]")


def test_a_folder_is_read_in_the_order_of_names_without_hidden_files(tmp_path: Path) -> None:
    for i in (2, 1):
        np.save(tmp_path / f"{i}.npy", np.full((3, 4), i))
    np.savez(tmp_path / "3.npz", x=np.full((1, 4), 3.0))
    (tmp_path / "._1.npy").write_bytes(b"of another system")
    (tmp_path / "labels.txt").write_text("cat")
    feeds = list(Feeds(tmp_path, (port(1, 4),)).named())
    assert [(name, feed["x"].flat[0]) for name, feed in feeds] == [
        *((f"1.npy, input {i}", 1) for i in range(3)),
        *((f"2.npy, input {i}", 2) for i in range(3)),
        ("3.npz", 3),
    ]
    assert {feed["x"].dtype for _, feed in feeds} == {np.dtype(np.float32)}


def test_an_image_is_of_the_input_that_takes_images(tmp_path: Path) -> None:
    """Paddle's detectors have the size of the image as an input of its own."""
    save_image(tmp_path / "a.png", (10, 20, 30))
    size = InputPort("im_shape", (1, 2), dtype("fp32"))
    scale = np.ones((1, 2), np.float32)
    (feed,) = Feeds(tmp_path, (size, port(1, 3, 2, 4)), fixed={"im_shape": scale})
    assert sorted(feed) == ["im_shape", "x"]
    with pytest.raises(hx.Error, match=r"a.png: got the arrays x, need im_shape, x"):
        list(Feeds(tmp_path, (size, port(1, 3, 2, 4))))
    (feed,) = Feeds(tmp_path, (size, port(1, 3, 2, 4)), partial=True)
    assert list(feed) == ["x"]
    np.save(tmp_path / "b.npy", scale)
    with pytest.raises(hx.Error, match=r"b.npy: got a file that may be of im_shape, x, need .npz files"):
        list(Feeds(tmp_path, (size, port(1, 3, 2, 4)), partial=True))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mean=1", "got a mean without a scale"),
        ("std=1", "got 'std=1', need mean, scale and layout"),
        ("scale=x", "got 'scale=x', need a number"),
        ("scale=1 scale=2", "got scale twice"),
        ("layout=hw", "got 'layout=hw'"),
    ],
)
def test_what_is_no_preprocessing_is_refused(text: str, words: str) -> None:
    with pytest.raises(hx.Error, match=words):
        parse_preprocess([text])


def test_preprocessing_is_for_images_and_sounds(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((1, 4), np.float32))
    with pytest.raises(hx.Error, match="got --preprocess for arrays, need images or sounds"):
        Feeds(tmp_path, (port(1, 4),), how=parse_preprocess(["scale=1"]))
