"""Decoders in GGUF files: the same models as their folders of Hugging Face."""

import json
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import families
import gguf_writer
import hexane as hx
from decoders import logits_in_numpy, rates_in_numpy
from hexane.build import Tensor
from hexane.graph import Array
from hexane.train.decoder.files import read_stored
from hexane.train.decoder.formats import end_ids, family_of

RECORDED: dict[str, dict[str, Any]] = json.loads(families.RECORD.read_text())
# By what llama.cpp's converter writes for them. GGUF cannot say another scale of Gemma's scores than that of a head.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama linear": ("llama", {}, {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    "llama dynamic": ("llama", {}, {}),
    "llama llama3": ("llama", {}, {"rope.scaling.finetuned": False}),
    "llama yarn": (
        "llama",
        {},
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64},
    ),
    "mistral": ("llama", {}, {}),
    "qwen2 yarn": (
        "qwen2",
        {},
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.yarn_beta_fast": 16.0,
        },
    ),
    "qwen3": ("qwen3", {}, {}),
    "phi3": ("phi3", {}, {"rope.scaling.original_context_length": 256}),
    "phi3 longrope": (
        "phi3",
        {},
        {"rope.scaling.original_context_length": 256, "context_length": 1024, "rope.scaling.attn_factor": 1.118034},
    ),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 4}, {}),
    "gemma": ("gemma", {}, {}),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 8}, {}),
    "gemma3": (
        "gemma3",
        {"query_pre_attn_scalar": 12},
        {
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
            "rope.freq_base_swa": 100.0,
            "attention.sliding_window_pattern": 3,
        },
    ),
    "gpt2": ("gpt2", {}, {}),
}


def off(got: Array, want: Array) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def folder_of(name: str, tmp_path: Path, changes: dict[str, Any]) -> Path:
    folder = families.write_folder(tmp_path / "model", name, families.tensors(RECORDED[name]["shapes"]))
    (folder / "config.json").write_text(json.dumps({**families.config_fields(name), **changes}))
    return folder


def as_gguf(path: Path, folder: Path, architecture: str, more: dict[str, Any], kind: str = "F32") -> Path:
    config, weights = hx.train.read_llama(folder)
    tensors = gguf_writer.tensors_of(architecture, config, weights, kind)
    if config.scaling is not None and config.scaling.kind == "llama3":
        plain = rates_in_numpy(config.theta, config.head_dim, None)
        factors = np.array(plain) / rates_in_numpy(config.theta, config.head_dim, config.scaling)
        tensors.append(("rope_freqs.weight", "F32", factors))
    if config.scaling is not None and config.scaling.kind == "factors":
        fields = json.loads((folder / "config.json").read_text())["rope_scaling"]
        tensors += [(f"rope_factors_{n}.weight", "F32", np.array(fields[f"{n}_factor"])) for n in ("long", "short")]
    metadata = gguf_writer.metadata_of(architecture, config)
    metadata |= {f"{architecture}.{key}": value for key, value in more.items()}
    return gguf_writer.write(path, metadata, tensors)


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_folder(name: str, tmp_path: Path) -> None:
    architecture, changes, more = CASES[name]
    folder = folder_of(name, tmp_path, changes)
    file = as_gguf(tmp_path / "model.gguf", folder, architecture, more)
    made = hx.train.Generator(file, options=hx.Options(target="host", threads=1))
    *_, last = made.logits(families.prompt())
    config, weights = hx.train.read_llama(folder)
    assert off(last, logits_in_numpy(config, weights, np.array([families.prompt()]))[0, -1]) <= 1e-5
    if not changes:
        assert off(last, np.array(RECORDED[name]["logits"])) <= 1e-5
    assert family_of(file) == config_type(folder)


def config_type(folder: Path) -> str:
    kind: str = json.loads((folder / "config.json").read_text())["model_type"]
    return "llama" if kind == "mistral" else kind


@pytest.mark.parametrize("name", ["llama linear", "gpt2", "phi3"])
def test_weights_are_those_of_the_folder_bit_for_bit(name: str, tmp_path: Path) -> None:
    architecture, changes, more = CASES[name]
    folder = folder_of(name, tmp_path, changes)
    config, weights = hx.train.read_llama(as_gguf(tmp_path / "m", folder, architecture, more))
    want_config, want = hx.train.read_llama(folder)
    if config.rope == "interleaved":
        config, weights = hx.train.with_rope(config, weights, "half")
    assert config == want_config
    for one, array in want.items():
        np.testing.assert_array_equal(weights[one], array)


SIZES = {"vocab": 96, "dim": 64, "hidden": 96, "layers": 2, "heads": 4, "kv_heads": 2, "seq": 64}


def decoded(kind: str, array: Array) -> Array:
    """By ggml's formulas, number by number of a block."""
    data = np.frombuffer(gguf_writer.encoded(kind, array), np.uint8)
    if kind in ("F32", "F16"):
        return data.view("<f4" if kind == "F32" else "<f2").astype(np.float32).reshape(array.shape)
    if kind == "BF16":
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(array.shape)
    found = []
    for block in data.reshape(array.size // 32, -1):
        d = np.float32(block[:2].view("<f2")[0])
        if kind == "Q8_0":
            found += [d * np.float32(q) for q in block[2:].view(np.int8)]
            continue
        offset = kind.endswith("_1")
        m = np.float32(block[2:4].view("<f2")[0]) if offset else np.float32(0)
        high = int.from_bytes(block[4 if offset else 2 :][:4].tobytes(), "little") if kind[1] == "5" else 0
        low = block[-16:]
        for i in range(32):
            q = int(low[i % 16] >> (4 if i >= 16 else 0) & 15) | (high >> i & 1) << 4
            found.append(d * np.float32(q if offset else q - (1 << (int(kind[1]) - 1))) + m)
    return np.array(found, np.float32).reshape(array.shape)


@pytest.mark.parametrize("kind", [kind for kind in gguf_writer.KINDS if kind != "Q6_K"])
def test_every_kind_has_the_numbers_of_its_formula(kind: str, tmp_path: Path) -> None:
    config = hx.train.LlamaConfig(**SIZES, rope="half", tied=False)  # type: ignore[arg-type]
    weights = {n: np.random.default_rng(3).normal(0, 0.2, s).astype(np.float32) for n, s in config.shapes().items()}
    tensors = gguf_writer.tensors_of("qwen2", config, weights, kind)
    tensors += [
        (f"blk.{i}.attn_{n}.bias", "F32", np.zeros(s)) for i in range(2) for n, s in (("q", 64), ("k", 32), ("v", 32))
    ]
    file = gguf_writer.write(tmp_path / "m.gguf", gguf_writer.metadata_of("qwen2", config), tensors)
    _, got = hx.train.read_llama(file)
    _, stored = read_stored(file)
    for name, array in weights.items():
        want = decoded(kind, array) if array.ndim == 2 else array
        np.testing.assert_array_equal(got[name], want)
        one = stored[name]
        assert isinstance(one, Tensor) == (array.ndim == 2 and kind in ("Q8_0", "Q5_0", "Q4_0")), name
        if isinstance(one, Tensor):
            integers, scales = (v.node.data for v in one.value.node.inputs if v is not None)
            assert integers is not None
            assert scales is not None
            np.testing.assert_array_equal(np.repeat(scales, 32, 1) * integers, want)


def test_ids_that_end_a_text_are_those_of_the_metadata(tmp_path: Path) -> None:
    file = gguf_writer.write(
        tmp_path / "m.gguf", {"tokenizer.ggml.eos_token_id": 7, "tokenizer.ggml.eot_token_id": 9}, []
    )
    assert end_ids(file) == {7, 9}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf")
    return as_gguf(path / "m.gguf", folder_of("llama dynamic", path, {}), "llama", {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": "mamba"}, "general.architecture: got 'mamba', need one of llama, "),
        ({"llama.expert_count": 8}, "llama.expert_count: got 8, need 0"),
        ({"llama.attention.key_length_mla": 64}, "llama.attention.key_length_mla, which are not known here"),
        ({"llama.rope.dimension_count": 4}, "llama.rope.dimension_count: got 4, need the 8 channels of a head"),
        ({"llama.block_count": 1 << 30}, "layers and"),
        ({"llama.block_count": 3}, "got the tensors blk.3."),
        ({"llama.attention.head_count": 0}, "num_attention_heads: got 0, need at least 1|need a divisor"),
        ({"llama.attention.head_count": 8}, "got the shape|need"),
        ({"llama.rope.scaling.type": "longrope"}, "need linear or yarn with a factor"),
        ({"llama.embedding_length": "32"}, "llama.embedding_length: got '32', need int"),
        ({"llama.feed_forward_length": [56, 56, 56, 40]}, "llama.feed_forward_length: got"),
        ({"llama.attention.layer_norm_rms_epsilon": -1.0}, "rms_norm_eps: got -1.0, need a number above 0"),
        ({"split.count": 3}, "got one of 3 parts"),
    ],
)
def test_what_is_not_known_is_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = folder_of("llama dynamic", tmp_path, {})
    config, weights = hx.train.read_llama(folder)
    metadata = {**gguf_writer.metadata_of("llama", config), **changes}
    file = gguf_writer.write(tmp_path / "m.gguf", metadata, gguf_writer.tensors_of("llama", config, weights))
    with pytest.raises(hx.Error, match=message):
        hx.train.read_llama(file)


def test_a_file_that_ends_early_is_an_error_wherever_it_ends(small: Path, tmp_path: Path) -> None:
    data = small.read_bytes()
    for end in [*range(8, 2500, 7), len(data) // 2, len(data) - 1]:
        (tmp_path / "m.gguf").write_bytes(data[:end])
        with pytest.raises(hx.Error, match=r"got a file of|need them inside|need no overlap"):
            hx.train.read_llama(tmp_path / "m.gguf")


def test_damaged_bytes_are_errors_or_other_numbers_and_nothing_else(small: Path, tmp_path: Path) -> None:
    data, rng = small.read_bytes(), np.random.default_rng(5)
    for _ in range(300):
        broken = bytearray(data)
        for at in rng.integers(4, 3000, 3):
            broken[at] = rng.integers(0, 256)
        (tmp_path / "m.gguf").write_bytes(broken)
        with suppress(hx.Error):
            hx.train.read_llama(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("at", "form", "number", "message"),
    [
        (4, "<I", 1, "got version 1, need version 2 or 3"),
        (4, ">I", 3, "need little-endian numbers"),
        (8, "<Q", 1 << 60, "need at most 1048576 each"),
        (16, "<Q", 1 << 60, "need at most 1048576 each"),
        (24, "<Q", 1 << 62, "name of metadata 0: got a text of 4611686018427387904 bytes"),
    ],
)
def test_counts_and_versions_are_checked(
    at: int, form: str, number: int, message: str, small: Path, tmp_path: Path
) -> None:
    data = bytearray(small.read_bytes())
    struct.pack_into(form, data, at, number)
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(hx.Error, match=message):
        hx.train.read_llama(tmp_path / "m.gguf")


def test_tensors_that_share_bytes_are_refused(tmp_path: Path) -> None:
    """A small file would become many arrays."""
    data = gguf_writer.write(tmp_path / "m.gguf", {}, [(f"t{i}", "F32", np.ones(1000)) for i in range(8)]).read_bytes()
    for i in range(8):
        at = data.index(gguf_writer.text(f"t{i}")) + 8 + 2 + 4 + 8 + 4
        data = data[:at] + bytes(8) + data[at + 8 :]
    (tmp_path / "m.gguf").write_bytes(data[: len(data) - 7 * 4000])
    with pytest.raises(hx.Error, match="need no overlap"):
        hx.train.read_llama(tmp_path / "m.gguf")


def test_tensors_that_overlap_are_an_error(small: Path, tmp_path: Path) -> None:
    data = bytearray(small.read_bytes())
    at = data.index(b"blk.0.attn_norm.weight") + len("blk.0.attn_norm.weight")
    axes = int.from_bytes(data[at : at + 4], "little")
    struct.pack_into("<Q", data, at + 4 + 8 * axes + 4, 0)
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(hx.Error, match="need no overlap"):
        hx.train.read_llama(tmp_path / "m.gguf")
