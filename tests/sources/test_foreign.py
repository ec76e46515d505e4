"""Kinds of files that Hexane knows and does not read: each is named, with what to do."""

import io
import json
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import hexane as hx
from command import in_this_process
from hexane import sources
from hexane.sources.foreign import FOREIGN
from onnx_models import model, node


def zipped(*names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, b"content")
    return file.getvalue()


def flatbuffer(identifier: bytes) -> bytes:
    """The offset of the root, the identifier, and more than that."""
    return struct.pack("<I", 28) + identifier + bytes(200)


def safetensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(8)


def arrays(*names: str) -> bytes:
    file = io.BytesIO()
    np.savez(file, **{name: np.zeros(3, np.float32) for name in names})
    return file.getvalue()


def array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros(3))
    return file.getvalue()


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
PAGE = b"\n<!DOCTYPE html>\n<html><head><title>Hugging Face</title></head></html>"
TAR = b"model/data".ljust(257, b"\0") + b"ustar\x0000" + bytes(300)

# name of the file, its bytes, what it is, what to do
FILES: dict[str, tuple[str, bytes, str, str]] = {
    "empty": ("net.onnx", b"", "an empty file", "get it again"),
    "empty text": ("net.mil", b"", "an empty file", "get it again"),
    "lfs": ("net.onnx", LFS, "a Git LFS pointer", "git lfs pull"),
    "lfs of a netplist": ("net.plist", LFS, "a Git LFS pointer", "git lfs pull"),
    "page": ("net.onnx", PAGE, "an HTML page", "/resolve/ in place of /blob/"),
    "page after a mark": ("net.onnx", b"\xef\xbb\xbf<HTML lang=en>", "an HTML page", "direct link"),
    "ort": ("net.ort", flatbuffer(b"ORTM"), "the ORT format", "Give the ONNX file"),
    "executorch": ("net.pte", flatbuffer(b"ET12"), "an ExecuTorch program", "hexane.from_torch"),
    "zip of a package": ("n.zip", zipped("n.mlpackage/Manifest.json"), "a zip of a Core ML model", "Unpack it"),
    "zip of an asset": ("n.zip", zipped("n.aimodel/main.mlirb"), "a zip of a Core AI asset", "Unpack it"),
    "program of an asset": ("main.mlirb", b"ML\xefR\x0dMLIR" + bytes(90), "the program of a Core AI asset", "the folder"),
    "gguf": ("net.gguf", b"GGUF" + struct.pack("<IQQ", 3, 2, 5) + bytes(60), "a GGUF file", "hexane generate"),
    "safetensors": ("net.safetensors", safetensors(), "a safetensors file, which has weights", "hx.load_weights"),
    "safetensors of another name": ("net.bin", safetensors(), "a safetensors file", "hexane generate"),
    "pt": ("net.pt", zipped("net/data.pkl", "net/data/0", "net/version"), "a PyTorch file", "hexane.from_torch"),
    "pth": ("net.pth", zipped("archive/data.pkl", "archive/byteorder"), "a PyTorch file", "torch.onnx.export"),
    "bin": ("pytorch_model.bin", zipped("pytorch_model/data.pkl"), "a PyTorch file", "torch.onnx.export"),
    "torchscript": ("net.pt", zipped("net/constants.pkl", "net/code/a.py"), "a PyTorch file", "hexane.from_torch"),
    "pt2": ("net.pt2", zipped("net/models/model.json", "net/version"), "a program of torch.export", "from_torch"),
    "pickle": ("net.pth", pickle.dumps({"weight": [0.5, 1.5]}, protocol=2), "a Python pickle", "hexane.from_torch"),
    "newer pickle": ("net.pkl", pickle.dumps({"weight": [0.5]}, protocol=5), "a Python pickle", "hexane.from_torch"),
    "keras": ("net.keras", zipped("metadata.json", "config.json", "model.weights.h5"), "a Keras model", "tf2onnx"),
    "h5": ("net.h5", b"\x89HDF\r\n\x1a\n" + bytes(100), "an HDF5 file", "tf2onnx.convert --keras"),
    "pb": ("frozen.pb", b"\n\x2f\n\x01x\x12\x0bPlaceholder" + bytes(40), "a frozen TensorFlow graph", "--graphdef"),
    "saved_model.pb": ("saved_model.pb", b"\x08\x01\x12\x20" + bytes(40), "the graph of a saved TensorFlow model", "--saved-model"),
    "openvino": ("net.xml", b'<?xml version="1.0"?>\n<net name="n" version="11">', "an OpenVINO model", "ONNX file"),
    "paddle": ("inference.pdmodel", b"\n\x10" + bytes(60), "a Paddle model", "paddle2onnx"),
    "caffe": ("net.caffemodel", b"\n\x10" + bytes(60), "a Caffe model", "to ONNX"),
    "npz": ("in.npz", arrays("x", "y"), "a NumPy file", "--input NAME="),
    "npy": ("in.npy", array(), "a NumPy file", "--input NAME="),
    "zip": ("net.zip", zipped("net.onnx"), "a zip", "Unpack it"),
    "damaged zip": ("net.zip", zipped("net.onnx")[:40], "a zip", "Unpack it"),
    "empty zip": ("net.zip", zipped(), "a zip", "Unpack it"),
    "gz": ("net.onnx.gz", b"\x1f\x8b\x08\x00" + bytes(40), "a compressed file", "Unpack it"),
    "tar": ("net.tar", TAR, "a tar archive", "Unpack it"),
    "png": ("cat.png", b"\x89PNG\r\n\x1a\n" + bytes(40), "a picture", "--input NAME="),
    "text": ("notes.txt", "the größte network\n".encode(), "a text file", "the model itself"),
    "json": ("config.json", b'{"architectures": ["LlamaForCausalLM"]}', "a file of JSON text", "the model itself"),
}  # fmt: skip

# name of the folder, names in it, what it is, what to do
FOLDERS: dict[str, tuple[str, tuple[str, ...], str, str]] = {
    "hugging face": ("llama", ("config.json", "model.safetensors"), "a Hugging Face folder", "hexane generate"),
    "exported": ("llama", ("config.json", "model.onnx"), "a Hugging Face folder without safetensors", "optimum-cli"),
    "saved model": ("net", ("saved_model.pb", "variables"), "a saved TensorFlow model", "tf2onnx.convert --saved-model"),
    "with models": ("nets", ("a.onnx", "b.onnx"), "a folder", "such as a.onnx, b.onnx in it"),
    "empty": ("nets", (), "a folder", "need an ONNX model, a Core ML package"),
}  # fmt: skip


def expect(path: Path, what: str, advice: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(hx.UnsupportedError) as raised:
        hx.compile(path)
    text = str(raised.value)
    assert text.startswith(f"[compile] {path}: got ")
    assert what in text
    assert advice in text
    assert (
        ", need an ONNX model, a Core ML package (.mlpackage), a TFLite model (.tflite), MIL text (.mil), a netplist"
        " (.plist), a Core AI asset (.aimodel) or the Hugging Face folder of an encoder" in text
    )
    ended = in_this_process(capsys)("check", path, "--target", "h13")
    assert (ended.code, ended.out, ended.err) == (1, "", f"error: {text.replace('[compile]', '[check]')}\n")


@pytest.mark.parametrize("kind", FILES)
def test_a_file_of_a_known_kind_is_named(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, data, what, advice = FILES[kind]
    (tmp_path / name).write_bytes(data)
    expect(tmp_path / name, what, advice, capsys)


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_of_a_known_kind_is_named(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, inside, what, advice = FOLDERS[kind]
    folder = tmp_path / name
    folder.mkdir()
    for one in inside:
        (folder / one).write_bytes(b"{}")
    expect(folder, what, advice, capsys)


@pytest.mark.parametrize(
    ("config", "said"),
    [('{"model_type": "llama"}', "model_type 'llama'"), ("{}", "no model_type"), ("{", "not readable")],
)
def test_a_hugging_face_folder_is_told_its_kind(config: str, said: str, tmp_path: Path) -> None:
    """The folder has safetensors, so that nothing is missing from it."""
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "model.safetensors").write_bytes(safetensors())
    with pytest.raises(hx.UnsupportedError) as raised:
        hx.compile(tmp_path)
    assert f"Its config.json ({said}) describes no encoder that Hexane reads. `hexane generate`" in str(raised.value)


@pytest.mark.parametrize(
    ("command", "compiled"), [("info", ", a plan (.hxp), a .hwx or .e5 file or"), ("run", ", a plan (.hxp) or")]
)
def test_a_command_that_opens_compiled_programs_lists_them(
    command: str, compiled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("notes\n")
    for path in (tmp_path, tmp_path / "notes.txt"):
        ended = in_this_process(capsys)(command, path)
        assert f"a Core AI asset (.aimodel){compiled} the Hugging Face folder of an encoder" in ended.err


def test_every_kind_has_a_case(tmp_path: Path) -> None:
    found = set()
    for number, (name, data, _, _) in enumerate(FILES.values()):
        path = tmp_path / str(number) / name
        path.parent.mkdir()
        path.write_bytes(data)
        found.add(first_kind(path))
    for number, (name, inside, _, _) in enumerate(FOLDERS.values()):
        folder = tmp_path / f"folder {number}" / name
        folder.mkdir(parents=True)
        for one in inside:
            (folder / one).write_bytes(b"{}")
        found.add(first_kind(folder))
    assert {kind.title for kind in FOREIGN} - found == set()


def first_kind(path: Path) -> str:
    from hexane.sources.look import look

    seen = look(path, "test")
    return next((kind.title for kind in FOREIGN if kind.matches(seen)), "")


@pytest.mark.parametrize("kind", ["safetensors", "pt", "lfs", "gguf", "empty"])
def test_bytes_of_a_known_kind_are_named(kind: str) -> None:
    _, data, what, _ = FILES[kind]
    with pytest.raises(hx.UnsupportedError, match=rf"\[compile\] model: got {what}"):
        hx.compile(data)


@pytest.mark.parametrize("producer", ["TFL3", "ORTM", "{", "PK", "GGUF", "<html>"])
def test_an_onnx_model_is_none_of_them_whatever_its_producer_is_called(producer: str) -> None:
    proto = model([node("Relu", "x", "y")], {"x": np.zeros((2, 3), np.float32)}, ["y"])
    proto.producer_name = producer
    assert sources.form_of(proto.SerializeToString()) == "onnx"
    del proto.opset_import[:]
    proto.opset_import.append(helper.make_opsetid("", 17))
    assert hx.compile(proto.SerializeToString()).inputs[0].shape == (2, 3)


def test_a_file_of_no_known_kind_says_what_it_may_be(tmp_path: Path) -> None:
    data = np.random.default_rng(5).integers(0, 256, 204448).astype(np.uint8).tobytes()
    (tmp_path / "net.onnx").write_bytes(b"\xff" + data)
    with pytest.raises(hx.Error, match="got 204449 bytes of no kind that Hexane knows, need ONNX, TFLite"):
        hx.compile(tmp_path / "net.onnx")


@pytest.mark.parametrize("name", ["net.onnx", "net.mil", "net.hxp"])
def test_a_pipe_is_refused_and_not_waited_for(name: str, tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / name)
    with pytest.raises(hx.Error, match="got no regular file, need the model itself"):
        hx.compile(tmp_path / name)
