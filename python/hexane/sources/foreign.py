"""Kinds of files that Hexane knows but does not read: what each is, and what to do with it. A kind is recognised by its
first bytes if it has some, else by its name."""

import struct
from collections.abc import Callable
from dataclasses import dataclass

from hexane.sources.encoder import has_weights, is_encoder
from hexane.sources.look import Seen

OF_TORCH = "Load it in Python and give hexane.from_torch(module, example), or export it with torch.onnx.export."
OF_TENSORFLOW = "Convert it to ONNX: python -m tf2onnx.convert"
OF_ONNX = "Give the ONNX file that it was made from."
IN_ARCHIVE = "Unpack it and give the model in it."
EXPORTED = (
    "`hexane generate` and `hexane train` take the Llama family; all commands take encoders such as BERT and ViT."
    " Export other networks to ONNX: optimum-cli export onnx --model {name} FOLDER"
)
AS_INPUT = "It may be an input of a model: --input NAME={name}"


@dataclass(frozen=True, slots=True)
class Foreign:
    """A kind of file that Hexane does not read. title: its words in a sentence, such as "a GGUF file". advice: what to
    do; {name} is the path, {kind} the model_type of a folder's config.json."""

    title: str
    advice: str
    matches: Callable[[Seen], bool]


def _magic(*starts: bytes, at: int = 0) -> Callable[[Seen], bool]:
    return lambda seen: seen.is_data and any(seen.start[at:].startswith(start) for start in starts)


def _named(*suffixes: str) -> Callable[[Seen], bool]:
    return lambda seen: seen.is_data and seen.suffix in suffixes


def _folder(*names: str, suffixes: tuple[str, ...] = ()) -> Callable[[Seen], bool]:
    """A folder that contains one of these names, or whose own name ends in one of the suffixes."""
    return lambda seen: seen.is_folder and (seen.suffix in suffixes or not seen.names.isdisjoint(names))


def _flatbuffer(identifier: bytes) -> Callable[[Seen], bool]:
    """A flatbuffer with this identifier, which comes after the offset of its root."""

    def matches(seen: Seen) -> bool:
        if not seen.is_data or seen.start[4:8] != identifier:
            return False
        return bool(struct.unpack_from("<I", seen.start)[0] < seen.size)

    return matches


def _zip(*endings: str) -> Callable[[Seen], bool]:
    """Recognises a zip with a file or folder whose name has one of these endings."""
    return lambda seen: (
        _is_zip(seen) and any(name.endswith(endings) or any(f"{e}/" in name for e in endings) for name in seen.names)
    )


_is_zip = _magic(b"PK\x03\x04", b"PK\x05\x06")


def _is_text(*starts: bytes) -> Callable[[Seen], bool]:
    """Recognises a text that begins with one of `starts` in any case; spaces and a byte order mark may come first."""
    return lambda seen: seen.is_data and seen.start.removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith(starts)


def _is_safetensors(seen: Seen) -> bool:
    """Recognises a file that begins with the 8-byte size of a JSON text, followed by the text."""
    if not seen.is_data or seen.start[8:9] != b"{":
        return False
    return bool(struct.unpack_from("<Q", seen.start)[0] <= seen.size - 8)


def _is_openvino(seen: Seen) -> bool:
    return seen.is_data and seen.suffix != ".plist" and b"<net " in seen.start and _is_text(b"<?xml", b"<net")(seen)


def _is_npz(seen: Seen) -> bool:
    return _is_zip(seen) and bool(seen.names) and all(name.endswith(".npy") for name in seen.names)


def _is_hugging_face(seen: Seen) -> bool:
    # A bundle of Core AI may have a config.json, too.
    bundle = not seen.names.isdisjoint({"main.mlirb", "metadata.json"})
    return _folder("config.json")(seen) and not bundle and not is_encoder(seen)


def _is_plain_text(seen: Seen) -> bool:
    """Recognises UTF-8 without control characters. The cut end of `start` may split a character."""
    if not seen.is_data or seen.suffix in (".mil", ".plist", ".hxp") or min(seen.start) < ord("\t"):
        return False
    text = seen.start.decode("utf-8", "replace")[: -1 if seen.size > len(seen.start) else None]
    return all(char.isprintable() or char.isspace() for char in text) and "\ufffd" not in text


def _is_plain_json(seen: Seen) -> bool:
    return seen.suffix not in (".mil", ".plist") and _is_text(b"{", b"[")(seen)


# The first matching row of this table decides: a row that looks into a zip comes before the row of all zips.
FOREIGN = (
    Foreign(
        "an empty file", "It was not written to its end: get it again.", lambda seen: seen.is_data and not seen.size
    ),
    Foreign(
        "a Git LFS pointer in place of the model",
        "Run `git lfs pull` in its repository.",
        _magic(b"version https://git-lfs.github.com/spec/"),
    ),
    Foreign(
        "an HTML page in place of the model",
        "Download it again by its direct link: on Hugging Face /resolve/ in place of /blob/, on GitHub the raw file.",
        _is_text(b"<!doctype html", b"<html"),
    ),
    Foreign("a model in the ORT format of ONNX Runtime", OF_ONNX, _flatbuffer(b"ORTM")),
    Foreign("an ExecuTorch program", "Give the torch module to hexane.from_torch.", _flatbuffer(b"ET12")),
    Foreign("a zip of a Core ML model", IN_ARCHIVE, _zip(".mlpackage", ".mlmodelc", ".mlmodel", "coremldata.bin")),
    Foreign("a zip of a Core AI asset", "Unpack it and give the folder .aimodel.", _zip(".aimodel", "main.mlirb")),
    Foreign("the program of a Core AI asset", "Give the folder NAME.aimodel that it lies in.", _magic(b"ML\xefR")),
    Foreign(
        "a GGUF file",
        "Export the network to ONNX, or give `hexane generate` its Hugging Face folder with config.json and"
        " safetensors.",
        _magic(b"GGUF"),
    ),
    Foreign(
        "a safetensors file, which has weights and no network",
        "Give its folder, with config.json, to `hexane generate`; hx.load_weights reads the weights; other networks"
        " have to be exported to ONNX.",
        _is_safetensors,
    ),
    Foreign("a program of torch.export (.pt2)", OF_TORCH, lambda seen: _is_zip(seen) and seen.suffix == ".pt2"),
    Foreign("a PyTorch file", OF_TORCH, _zip("data.pkl", "constants.pkl")),
    Foreign(
        "a Python pickle, as older PyTorch writes it",
        OF_TORCH,
        _magic(b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"),
    ),
    Foreign(
        "a Keras model (.keras)",
        f"Load it, write model.export(FOLDER), and then: {OF_TENSORFLOW} --saved-model FOLDER --output model.onnx",
        _zip("model.weights.h5"),
    ),
    Foreign(
        "an HDF5 file, as Keras writes it (.h5)",
        f"{OF_TENSORFLOW} --keras {{name}} --output model.onnx",
        _magic(b"\x89HDF\r\n\x1a\n"),
    ),
    Foreign(
        "a saved TensorFlow model",
        f"{OF_TENSORFLOW} --saved-model {{name}} --output model.onnx",
        _folder("saved_model.pb", "saved_model.pbtxt"),
    ),
    Foreign(
        "the graph of a saved TensorFlow model",
        f"{OF_TENSORFLOW} --saved-model FOLDER --output model.onnx, with the folder that it lies in",
        lambda seen: seen.path is not None and seen.path.name == "saved_model.pb",
    ),
    Foreign(
        "a frozen TensorFlow graph (.pb)",
        f"{OF_TENSORFLOW} --graphdef {{name}} --output model.onnx --inputs X:0 --outputs Y:0",
        lambda seen: _named(".pb")(seen) and seen.begins(b"\n"),
    ),
    Foreign("an OpenVINO model", OF_ONNX, _is_openvino),
    Foreign(
        "a Paddle model (.pdmodel)",
        "Convert it to ONNX: paddle2onnx --model_dir FOLDER --save_file model.onnx",
        _named(".pdmodel"),
    ),
    Foreign("a Caffe model", "Convert it to ONNX.", _named(".caffemodel", ".prototxt")),
    Foreign("a NumPy file of arrays", AS_INPUT, lambda seen: _magic(b"\x93NUMPY")(seen) or _is_npz(seen)),
    Foreign("a zip", IN_ARCHIVE, _is_zip),
    Foreign(
        "a compressed file",
        IN_ARCHIVE,
        _magic(b"\x1f\x8b", b"7z\xbc\xaf\x27\x1c", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00", b"BZh"),
    ),
    Foreign("a tar archive", IN_ARCHIVE, _magic(b"ustar", at=257)),
    Foreign("a picture", AS_INPUT, _magic(b"\x89PNG\r\n", b"\xff\xd8\xff")),
    Foreign("a file of JSON text", "Give the model itself.", _is_plain_json),
    Foreign("a text file", "Give the model itself.", _is_plain_text),
    Foreign(
        "a Hugging Face folder without safetensors",
        f"Hexane reads a folder's weights from safetensors. {EXPORTED}",
        lambda seen: _is_hugging_face(seen) and not has_weights(seen),
    ),
    Foreign(
        "a Hugging Face folder",
        f"Its config.json ({{kind}}) describes no encoder that Hexane reads. {EXPORTED}",
        _is_hugging_face,
    ),
)
