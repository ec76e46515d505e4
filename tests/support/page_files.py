"""What pages take from their reader: files by the names that the blocks have for them, and names in Python.

A page gets the files of FILES that its blocks name, and the names that its function in GIVEN returns.
"""

import concurrent.futures
import json
import shutil
import wave
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import clip_encoders
import encoders
import hexane as hx
import image_encoders
import speech_models
import tflite_networks
import tiny_llm
from command import Cli, save_model
from decoders import decoder_weights, llama2c_v0
from hexane.importers.onnx import registry
from hexane.train.decoder.config import STORIES
from page_blocks import blocks_of
from sentencepieces import TEXT, tokenizer_bin, vocabulary

ROOT = Path(__file__).parents[2]
RNG = np.random.default_rng


def image_net(path: Path, side: int | None = 32) -> None:
    """Two convolutions and the product `head`, each large enough to be compressed. side: of the image; None where any
    will do."""
    rng, node = RNG(0), helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", kernel_shape=[7, 7], pads=[3, 3, 3, 3], strides=[2, 2]),
        node("Relu", ["c1"], ["r1"], "relu1"),
        node("Conv", ["r1", "w2", "b2"], ["c2"], "conv2", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Relu", ["c2"], ["r2"], "relu2"),
        node("GlobalAveragePool", ["r2"], ["p"], "pool"),
        node("Flatten", ["p"], ["f"], "flatten"),
        node("Gemm", ["f", "w3", "b3"], ["y"], "head", transB=1),
    ]
    shapes = {"w1": (32, 3, 7, 7), "w2": (64, 32, 3, 3), "w3": (64, 64)}
    constants = [(name, rng.uniform(-0.2, 0.2, shape).astype(np.float32)) for name, shape in shapes.items()]
    constants += [(f"b{name[1:]}", np.zeros(shape[0], np.float32)) for name, shape in shapes.items()]
    image = (1, 3, side or "height", side or "width")
    save_model(path, nodes, [("x", TensorProto.FLOAT, image)], [("y", TensorProto.FLOAT, (1, 64))], constants)


def named_net(path: Path) -> None:
    """With the names of PyTorch's ResNets, for 8 images."""
    node, rng = helper.make_node, RNG(0)
    nodes = [
        node("Conv", ["images", "layer2.weight"], ["c"], kernel_shape=[3, 3], strides=[4, 4]),
        node("GlobalAveragePool", ["c"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "fc.weight", "fc.bias"], ["logits"], transB=1),
    ]
    shapes = {"layer2.weight": (16, 3, 3, 3), "fc.weight": (10, 16), "fc.bias": (10,)}
    constants = [(name, rng.normal(0, 0.2, shape).astype(np.float32)) for name, shape in shapes.items()]
    ports = [("images", TensorProto.FLOAT, (8, 3, 32, 32))], [("logits", TensorProto.FLOAT, (8, 10))]
    save_model(path, nodes, *ports, constants)


def image(seed: int = 0) -> np.ndarray:
    return RNG(seed).standard_normal((1, 3, 32, 32)).astype(np.float32)


def pixels(path: Path, side: int = 32) -> None:
    picture = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'hexane[images]'")
    picture.fromarray(RNG(0).integers(0, 256, (side, side, 3), dtype=np.uint8)).save(path)


def folder_of_arrays(path: Path) -> None:
    path.mkdir()
    for i in range(3):
        np.save(path / f"{i}.npy", image(i))


def photos(path: Path) -> None:
    path.mkdir()
    for i in range(3):
        pixels(path / f"{i}.png")


def network(path: Path, cli: Cli, source: str = "image.onnx", *options: str) -> None:
    image_net(Path(source))
    image_net(Path("decode-of-it.onnx"))
    ended = cli("emit", source, "-o", path, "--also", "decode=decode-of-it.onnx", *options)
    assert ended.code == 0, ended.err


def resized(shapes: dict[str, list[int]], sizes: dict[int, int]) -> dict[str, list[int]]:
    """Shapes of a recorded model with other sizes."""
    return {name: [sizes.get(size, size) for size in shape] for name, shape in shapes.items()}


def recorded(module: Any, name: str) -> dict[str, list[int]]:
    shapes: dict[str, list[int]] = json.loads(module.RECORD.read_text())[name]["shapes"]
    return shapes


def words_tokenizer(path: Path, words: list[str], first: int, last: int) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install 'hexane[train]'")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab={w: i for i, w in enumerate(words)}, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.post_processor = tokenizers.processors.BertProcessing((words[last], last), (words[first], first))
    made.save(str(path))


def text_encoder(path: Path) -> None:
    shapes = resized(recorded(encoders, "bert"), {24: 384, 40: 64})
    shapes["embeddings.position_embeddings.weight"] = [512, 384]
    sizes = {"hidden_size": 384, "intermediate_size": 64, "num_attention_heads": 12, "max_position_embeddings": 512}
    encoders.write_folder(path, "bert", encoders.tensors(shapes), **sizes)
    letters = [chr(c) for c in range(97, 123)]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{c}" for c in letters[:6])]
    (path / "vocab.txt").write_text("\n".join(pieces) + "\n")


def image_encoder(path: Path) -> None:
    shapes = resized(recorded(image_encoders, "vit labels"), {24: 768, 40: 64})
    for name in shapes:
        if name.endswith("position_embeddings"):
            shapes[name] = [1, 197, 768]
        elif name.endswith("projection.weight"):
            shapes[name] = [768, 3, 16, 16]
        elif name.startswith("classifier"):
            shapes[name] = [1000, *shapes[name][1:]]
    sizes = {"hidden_size": 768, "intermediate_size": 64, "num_attention_heads": 12, "image_size": 224}
    labels = {str(i): f"label {i}" for i in range(1000)}
    arrays = image_encoders.tensors(shapes)
    image_encoders.write_folder(path, "vit labels", arrays, patch_size=16, id2label=labels, **sizes)
    (path / "preprocessor_config.json").write_text(json.dumps({"size": {"height": 224, "width": 224}}))


def text_image_encoder(path: Path) -> None:
    shapes = resized(recorded(clip_encoders, "clip"), {20: 512})
    shapes["vision_model.embeddings.position_embedding.weight"] = [50, 36]
    shapes["vision_model.embeddings.patch_embedding.weight"] = [36, 3, 32, 32]
    own = clip_encoders.CASES["clip"]
    vision = {**own["vision_config"], "image_size": 224, "patch_size": 32}
    arrays = clip_encoders.tensors(shapes)
    clip_encoders.write_folder(path, "clip", arrays, vision_config=vision, projection_dim=512)
    words = [f"w{i}" for i in range(clip_encoders.VOCAB)]
    words[3:6] = ["a", "tide", "cat"]
    words_tokenizer(path / "tokenizer.json", words, 2, clip_encoders.END)
    (path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 16, "pad_token": "w1"}))
    (path / "preprocessor_config.json").write_text(json.dumps({"size": {"shortest_edge": 224}, "crop_size": 224}))


def speech_model(path: Path) -> None:
    """With a window of 30 s, as published ones."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install 'hexane[train]'")
    shapes = recorded(speech_models, "whisper")
    shapes["model.encoder.embed_positions.weight"] = [1500, 24]
    speech_models.write_folder(path, "whisper", speech_models.tensors(shapes), max_source_positions=1500)
    features = {**speech_models.features_config("whisper"), "chunk_length": 30}
    (path / "preprocessor_config.json").write_text(json.dumps(features))
    marks = {**speech_models.LANGUAGES, **speech_models.TASKS, "<|endoftext|>": speech_models.END}
    words = {f"\u0120w{i}": i for i in range(speech_models.VOCAB) if i not in marks.values()}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab=words, unk_token="\u0120w0"))
    made.decoder = tokenizers.decoders.ByteLevel()
    fields = json.loads(made.to_str())
    said = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    pairs = sorted(marks.items(), key=lambda pair: pair[1])
    fields["added_tokens"] = [{"id": i, "content": name, **said} for name, i in pairs]
    (path / "tokenizer.json").write_text(json.dumps(fields))


def sound(path: Path) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(speech_models.RATE)
        file.writeframes((speech_models.sound(8000) * 32767).astype("<i2").tobytes())


@cache
def small_decoder() -> hx.train.LlamaConfig:
    return hx.train.LlamaConfig(vocab=len(vocabulary()[0]), dim=32, hidden=48, layers=1, heads=4, seq=256)


def decoder(path: Path) -> None:
    path.write_bytes(llama2c_v0(small_decoder(), decoder_weights(small_decoder())))


def tokenizer(path: Path) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install 'hexane[train]'")
    path.write_bytes(tokenizer_bin(*vocabulary()))


def tokens(path: Path) -> None:
    ids = RNG(0).integers(259, small_decoder().vocab, 20_000)
    hx.train.save_tokens(path, [ids], vocab=small_decoder().vocab)


def conversations(path: Path) -> None:
    one = {"messages": [{"role": "user", "content": "What is a tide?"}, {"role": "assistant", "content": "The sea."}]}
    path.write_text(f"{json.dumps(one)}\n" * 64)


def digits(path: Path) -> None:
    """examples/digits, and an image for it."""
    path.mkdir(parents=True)
    shutil.copy(ROOT / "examples" / "digits" / "digits.onnx", path)
    with np.load(ROOT / "examples" / "digits" / "held_out.npz") as arrays:
        np.save(path / "image.npy", arrays["images"][:1].astype(np.float32).reshape(1, 1, 8, 8))


def quantised_tflite(path: Path) -> None:
    """An int8 network with the signatures `main` and `decode`."""
    net = tflite_networks.Network(0)
    tflite_networks.image_classification(net)
    maps = {
        side: [{"name": f"{side}{i}", "tensor_index": one} for i, one in enumerate(net.m.graph[side])]
        for side in ("inputs", "outputs")
    }
    net.m.signatures = [{"signature_key": key, "subgraph_index": 0, **maps} for key in ("main", "decode")]
    path.write_bytes(net.m.tobytes())


# Files in the order in which they are made, by the names that pages give them.
FILES: dict[str, Callable[[Path, Cli], object]] = {
    "examples/digits": lambda path, cli: digits(path),
    "MODEL.onnx": lambda path, cli: image_net(path),
    "net.onnx": lambda path, cli: image_net(path),
    "model.onnx": lambda path, cli: image_net(path),
    "optimised.onnx": lambda path, cli: image_net(path),
    "prompt.onnx": lambda path, cli: image_net(path),
    "extend.onnx": lambda path, cli: image_net(path),
    "decode.onnx": lambda path, cli: image_net(path),
    "open.onnx": lambda path, cli: image_net(path, side=None),
    "resnet.onnx": lambda path, cli: named_net(path),
    "encoder.onnx": lambda path, cli: named_net(path),
    "x.npy": lambda path, cli: np.save(path, image()),
    "x.npz": lambda path, cli: np.savez(path, x=image()),
    "batch.npz": lambda path, cli: np.savez(path, x=image()),
    "inputs.npz": lambda path, cli: np.savez(path, x=np.stack([image(i) for i in range(3)])),
    "photo.png": lambda path, cli: pixels(path),
    "tide.png": lambda path, cli: pixels(path),
    "sea.jpg": lambda path, cli: pixels(path),
    "photos": lambda path, cli: photos(path),
    "folder": lambda path, cli: folder_of_arrays(path),
    "classes.txt": lambda path, cli: path.write_text("".join(f"class {i}\n" for i in range(64))),
    "net.aimodel": network,
    "old.aimodel": network,
    "Net.mlpackage": network,
    "Net.tflite": lambda path, cli: quantised_tflite(path),
    "SmolLM2-135M-Instruct": lambda path, cli: tiny_llm.write(path, seq=2048),
    "all-MiniLM-L6-v2": lambda path, cli: text_encoder(path),
    "vit-base-patch16-224": lambda path, cli: image_encoder(path),
    "clip-vit-base-patch32": lambda path, cli: text_image_encoder(path),
    "whisper-tiny": lambda path, cli: speech_model(path),
    "tide.wav": lambda path, cli: sound(path),
    "stories15M.bin": lambda path, cli: decoder(path),
    "tokenizer.bin": lambda path, cli: tokenizer(path),
    "tokens.bin": lambda path, cli: tokens(path),
    "stories.txt": lambda path, cli: path.write_text(TEXT * 200),
    "data.jsonl": lambda path, cli: conversations(path),
}


def short_trainings(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A step for 250 of the page, a small decoder by the name of a large one, and sweeps in threads, without errors."""
    fit, sweep = hx.train.Trainer.fit, hx.train.sweep

    def short_fit(self: Any, batches: Any, steps: int, **more: Any) -> Any:
        return fit(self, batches, max(1, steps // 250), **more)

    def sweep_without_errors(*arguments: Any, **more: Any) -> Any:
        found = sweep(*arguments, **more)
        assert not [one.traceback for one in found if one.error]
        return found

    sizes = {name: getattr(small_decoder(), name) for name in ("vocab", "dim", "hidden", "layers", "heads", "seq")}
    monkeypatch.setitem(STORIES, "stories15M", sizes)  # type: ignore[arg-type]
    monkeypatch.setattr(hx.train.Trainer, "fit", short_fit)
    monkeypatch.setattr(hx.train, "sweep", sweep_without_errors)
    monkeypatch.setattr(concurrent.futures, "ProcessPoolExecutor", lambda n, mp_context: ThreadPoolExecutor(n))
    return {"__name__": "__main__"}


def without_mod(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The page shows how `Mod` is registered."""
    monkeypatch.setattr(registry, "_registered", registry._registered - {("Mod", None)})
    monkeypatch.setitem(registry.ONNX_OPS, "Mod", registry.ONNX_OPS["Mod"])
    return {}


def quantised(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    image_net(Path("float.onnx"))
    hx.quantize_model("float.onnx", [{"x": image()}]).save("model.onnx")
    header = Path("CMSIS-NN/Include/arm_nnfunctions.h")
    header.parent.mkdir(parents=True)
    header.touch()
    return {}


def drivers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Functions of the reader's program in C."""
    lines = ("#include <stdint.h>", "int report(const char*, const char*);", "void fill(void*, uint32_t);")
    lines += (
        "void use(const void*, uint32_t);",
        "int camera_read_lines(int32_t, int32_t, void*);",
        "int classify(void);",
    )
    return {"given.h": "\n".join(lines) + "\n"}


def of_ranks(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    try:
        from mpi4py import MPI  # noqa: F401
    except (ImportError, RuntimeError):  # the package, or the library that it loads
        pytest.skip("no MPI: install mpi4py, and openmpi-bin or another MPI")
    return short_trainings(monkeypatch)


GIVEN: dict[str, Callable[[pytest.MonkeyPatch], dict[str, Any]]] = {
    "docs/contributing.md": without_mod,
    "docs/runtime.md": drivers,
    "docs/runtime/cmsis-nn.md": quantised,
    "docs/commands.md": short_trainings,
    **{f"docs/training/{name}.md": short_trainings for name in ("command", "decoders", "trainer")},
    "docs/training/machines.md": of_ranks,
}


def give(page: str, text: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Writes the files that the blocks of the page name, and returns the names that they take from the reader."""
    blocks = "\n".join(block.text for block in blocks_of(text) if not block.not_run)
    given = GIVEN[page](monkeypatch) if page in GIVEN else {}
    for name, write in FILES.items():
        if name in blocks and not Path(name).exists():
            write(Path(name), cli)
    return given
