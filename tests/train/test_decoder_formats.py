"""Decoders from files and into files: formats as they are published, round trips, and damaged files."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import hexane as hx
from decoders import (
    EMBEDDING,
    HEAD,
    ane_checkpoint,
    decoder_weights,
    llama2c_v0,
    llama2c_v1,
    llama2c_v2,
    logits_in_numpy,
    write,
)
from hexane.graph import Array
from hexane.train.decoder import formats
from hexane.train.decoder.formats import ane_trainer, hugging_face
from hexane.train.decoder.formats.llama2c_q8_0 import quantised

SMALL = {"vocab": 37, "dim": 32, "hidden": 48, "layers": 2, "heads": 4, "seq": 11}
CONFIGS: dict[str, dict[str, Any]] = {"tied": {}, "own head": {"kv_heads": 2, "tied": False}}


def config(**changes: Any) -> hx.train.LlamaConfig:
    return hx.train.LlamaConfig(**{**SMALL, **changes})


def same(one: dict[str, Array], other: dict[str, Array]) -> bool:
    return list(one) == list(other) and all(one[n].tobytes() == other[n].tobytes() for n in one)


def logits(model: hx.train.Llama, tokens: Array) -> Array:
    found: Array = hx.compile(hx.graph({"logits": model.logits}))(tokens=tokens.astype(np.int32))
    return found


def off(got: Array, want: Array) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def moments(c: hx.train.LlamaConfig) -> tuple[dict[str, Array], dict[str, Array]]:
    return decoder_weights(c, 2), decoder_weights(c, 3)


def hugging_face_fields(c: hx.train.LlamaConfig, **changes: Any) -> dict[str, Any]:
    fields = {"model_type": "llama", "vocab_size": c.vocab, "hidden_size": c.dim, "intermediate_size": c.hidden}
    fields |= {"num_hidden_layers": c.layers, "num_attention_heads": c.heads, "num_key_value_heads": c.kv_heads}
    fields |= {"max_position_embeddings": c.seq, "rms_norm_eps": c.epsilon, "rope_theta": c.theta}
    fields |= {"tie_word_embeddings": c.tied, "hidden_act": "silu", "rope_scaling": None, "bos_token_id": 1}
    return {**fields, **changes}


def hugging_face_folder(folder: Path, c: hx.train.LlamaConfig, w: dict[str, Array], **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(w, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(hugging_face_fields(c, **changes)))
    return folder


# ---- files as they are published ----


@pytest.mark.parametrize("name", CONFIGS)
def test_llama2c_in_fp32_reads(name: str, tmp_path: Path) -> None:
    c = config(**CONFIGS[name])
    w = decoder_weights(c)
    for path in (write(tmp_path / "v0.bin", llama2c_v0(c, w)), write(tmp_path / "v1.bin", llama2c_v1(c, w))):
        found, arrays = hx.train.read_llama(path)
        assert found == c
        assert same(arrays, {n: w[n] for n in arrays})
        assert set(arrays) == set(w)


@pytest.mark.parametrize("name", CONFIGS)
def test_llama2c_quantised_reads(name: str, tmp_path: Path) -> None:
    c = config(**CONFIGS[name])
    data, meant = llama2c_v2(c, decoder_weights(c), 16)
    found, arrays = hx.train.read_llama(write(tmp_path / "v2.bin", data))
    assert found == c
    assert same(arrays, {n: meant[n] for n in arrays})


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_of_a_file_are_those_of_numpy(name: str, tmp_path: Path) -> None:
    c = config(**CONFIGS[name])
    w = decoder_weights(c)
    tokens = np.random.default_rng(4).integers(0, c.vocab, (2, 7))
    want = logits_in_numpy(c, w, tokens)
    files = [write(tmp_path / "v0.bin", llama2c_v0(c, w)), write(tmp_path / "v1.bin", llama2c_v1(c, w))]
    for path in files:
        assert off(logits(hx.train.load_llama(path, batch=2, seq=7), tokens), want) < 1e-5
    half = replace(c, rope="half")
    model = hx.train.load_llama(hugging_face_folder(tmp_path / "hf", half, w), batch=2, seq=7)
    assert model.config == replace(half, seq=7)
    assert off(logits(model, tokens), logits_in_numpy(half, w, tokens)) < 1e-5


def test_a_file_of_the_shape_of_stories15M_has_the_logits_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    f = torch.nn.functional
    c = hx.train.LlamaConfig.named("stories15M")
    rng = np.random.default_rng(5)
    w = {n: (rng.normal(0, 0.05, s) + (len(s) == 1)).astype(np.float32) for n, s in c.shapes().items()}
    path = write(tmp_path / "stories15M.bin", llama2c_v0(c, w))
    assert path.stat().st_size == 4 * (7 + 15_191_712 + 256 * 48)
    tokens = rng.integers(0, c.vocab, (1, 24))
    p = {n: torch.tensor(a.astype(np.float64)) for n, a in w.items()}
    turn = torch.polar(
        torch.ones(()).double(),
        torch.outer(torch.arange(24).double(), 10000 ** -(torch.arange(0, 48, 2, dtype=torch.float64) / 48)),
    )

    def heads(y: Any) -> Any:
        return y.unflatten(-1, (-1, 48)).transpose(1, 2)

    def rotated(y: Any) -> Any:
        return torch.view_as_real(torch.view_as_complex(y.unflatten(-1, (-1, 2)).contiguous()) * turn).flatten(-2)

    x = p[EMBEDDING][torch.tensor(tokens)]
    for i in range(c.layers):
        own = {
            n.split(".", 3)[3].removesuffix(".weight"): t for n, t in p.items() if n.startswith(f"model.layers.{i}.")
        }
        h = f.rms_norm(x, (c.dim,), own["input_layernorm"], 1e-5)
        q, k, v = (heads(h @ own[f"self_attn.{n}_proj"].T) for n in "qkv")
        a = f.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        x = x + a.transpose(1, 2).flatten(2) @ own["self_attn.o_proj"].T
        h = f.rms_norm(x, (c.dim,), own["post_attention_layernorm"], 1e-5)
        x = x + (f.silu(h @ own["mlp.gate_proj"].T) * (h @ own["mlp.up_proj"].T)) @ own["mlp.down_proj"].T
    want = (f.rms_norm(x, (c.dim,), p["model.norm.weight"], 1e-5) @ p[EMBEDDING].T).numpy()
    got = logits(hx.train.load_llama(path, seq=24), tokens)
    assert off(got, want) < 1e-5
    assert off(want, logits_in_numpy(replace(c, seq=24), w, tokens)) < 1e-12


@pytest.mark.parametrize(
    ("version", "changes"),
    [
        (2, {"rope": "none"}),
        (4, {"residual": 0.5}),
        (4, {"residual": 0.5, "kv_heads": 2, "head_dim": 12}),
    ],
)
def test_checkpoints_of_trainers_on_the_engine_read_and_write_back(
    version: int, changes: dict[str, Any], tmp_path: Path
) -> None:
    c = config(**changes)
    w = decoder_weights(c)
    data = ane_checkpoint(c, w, *moments(c), version)
    path = write(tmp_path / "checkpoint.bin", data)
    found = ane_trainer.read_checkpoint(path)
    assert (found.version, found.config) == (version, c)
    assert (found.training["step"], found.training["adam_steps"]) == (7, 5)
    assert found.training["loss"] == 2.5
    ane_trainer.write_checkpoint(tmp_path / "again.bin", found)
    assert (tmp_path / "again.bin").read_bytes() == data

    # The trainer's own forward pass: query head h reads key head h mod kv_heads.
    tokens = np.random.default_rng(4).integers(0, c.vocab, (1, 7))
    as_trained = SimpleNamespace(**{n: getattr(c, n) for n in c.__slots__}, key_of=lambda head: head % c.kv_heads)
    want = logits_in_numpy(as_trained, w, tokens)
    assert off(logits(hx.train.load_llama(path, seq=7), tokens), want) < 1e-5


def test_a_folder_in_shards_and_in_bf16_reads(tmp_path: Path) -> None:
    import ml_dtypes

    c = config(kv_heads=2, rope="half", tied=False)
    w = {n: a.astype(ml_dtypes.bfloat16) for n, a in decoder_weights(c).items()}
    one = hugging_face_folder(tmp_path / "one", c, w)
    want = {n: a.astype(np.float32) for n, a in w.items()}
    found, arrays = hx.train.read_llama(one)
    assert found == c
    assert same(arrays, want)

    hugging_face._write(tmp_path / "shards", c, want, shard_bytes=20_000)
    assert len(list((tmp_path / "shards").glob("model-*-of-*.safetensors"))) > 2
    assert same(hx.train.read_llama(tmp_path / "shards")[1], want)


def test_a_config_of_newer_transformers_reads(tmp_path: Path) -> None:
    c = config(rope="half", theta=5e5)
    rope = {"rope_theta": 5e5, "rope_type": "default"}
    folder = hugging_face_folder(tmp_path / "hf", c, decoder_weights(c), rope_parameters=rope)
    fields = json.loads((folder / "config.json").read_text())
    del fields["rope_theta"]
    (folder / "config.json").write_text(json.dumps(fields))
    assert hx.train.read_llama(folder)[0] == c


# ---- round trips ----

WRITABLE = {
    "llama2.c-v0": {},
    "llama2.c-v1": {},
    "llama2.c-q8_0": {},
    "ane-trainer-v2": {"rope": "none"},
    "ane-trainer-v4": {"residual": 0.5},
    "hugging-face": {},
}


def test_every_format_has_a_round_trip() -> None:
    assert set(WRITABLE) == set(formats.FORMATS)


@pytest.mark.parametrize("format", WRITABLE)
@pytest.mark.parametrize("changes", [{}, {"kv_heads": 2}, {"tied": False}])
def test_what_was_written_reads_the_same(format: str, changes: dict[str, Any], tmp_path: Path) -> None:
    if format.startswith("ane-trainer") and not changes.get("tied", True):
        pytest.skip("the head is the embedding")
    if format == "ane-trainer-v2" and "kv_heads" in changes:
        pytest.skip("as many key heads as query heads")
    c = config(**{**WRITABLE[format], **changes})
    w = decoder_weights(c)
    if format == "llama2.c-q8_0":
        w = llama2c_v2(c, w, 16)[1]
    hx.train.save_llama(tmp_path / "one", c, w, format=format)
    found, arrays = hx.train.read_llama(tmp_path / "one")
    assert found == replace(c, rope="half" if format == "hugging-face" else c.rope)
    assert same(hx.train.with_rope(found, arrays, c.rope)[1], w)
    hx.train.save_llama(tmp_path / "two", found, arrays, format=format)
    assert same(hx.train.read_llama(tmp_path / "two")[1], arrays)
    if format != "hugging-face":
        assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()


def test_written_files_are_those_that_are_published(tmp_path: Path) -> None:
    c = config(kv_heads=2, tied=False)
    w = decoder_weights(c)
    hx.train.save_llama(tmp_path / "v1", c, w, format="llama2.c-v1")
    assert (tmp_path / "v1").read_bytes() == llama2c_v1(c, w)
    hx.train.save_llama(tmp_path / "v2", c, w, format="llama2.c-q8_0")
    assert (tmp_path / "v2").read_bytes() == llama2c_v2(c, w, 16)[0]
    hx.train.save_llama(tmp_path / "v0", c, w, format="llama2.c-v0")
    got, want = (tmp_path / "v0").read_bytes(), llama2c_v0(c, w)
    angles = 4 * c.seq * c.head_dim
    end = len(want) - 4 * c.vocab * c.dim
    assert got[: end - angles] == want[: end - angles]
    assert got[end:] == want[end:]
    np.testing.assert_allclose(*(np.frombuffer(d[end - angles : end], "<f4") for d in (got, want)), atol=1e-7)


def test_files_of_one_order_are_written_in_the_other(tmp_path: Path) -> None:
    c = config(rope="half", kv_heads=2)
    w = decoder_weights(c)
    hx.train.save_llama(tmp_path / "v1", c, w, format="llama2.c-v1")
    tokens = np.random.default_rng(4).integers(0, c.vocab, (1, 7))
    model = hx.train.load_llama(tmp_path / "v1", seq=7)
    assert model.config.rope == "interleaved"
    assert off(logits(model, tokens), logits_in_numpy(c, w, tokens)) < 1e-5


def test_quantised_rows_stay_what_they_are() -> None:
    rng = np.random.default_rng(6)
    integers = rng.integers(-127, 128, (20_000, 8)).astype(np.int8)
    integers[:, 0] = 127
    integers[0] = 0
    scales = (10.0 ** rng.uniform(-6, 3, 20_000)).astype(np.float32)
    groups = integers * scales[:, None]
    found, kept = quantised(groups)
    assert np.array_equal(found, integers)
    assert np.array_equal(found * kept[:, None], groups)
    assert np.array_equal(kept[1:], scales[1:])


PUBLISHED: dict[str, dict[str, Any]] = {
    "SmolLM2": {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"dtype": "q4"}},
    "rewritten by transformers": {
        "_model_name_or_path": "x",
        "_attn_implementation_autoset": True,
        "is_decoder": False,
    },
    "DeepSeek's distilled": {"_attn_implementation": "sdpa", "unsloth_fixed": True, "unsloth_version": "2025.1.6"},
    "of an older transformers": {
        "do_sample": True,
        "top_k": 50,
        "length_penalty": 1.0,
        "pruned_heads": {},
        "top_p": 0.9,
    },
    "Mistral without a window": {"model_type": "mistral", "sliding_window": None},
    "Mistral whose window has all tokens": {"model_type": "mistral"},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_fields_that_change_no_logit_are_ignored(name: str, tmp_path: Path) -> None:
    c = config()
    w = decoder_weights(c)
    plain, _ = hx.train.read_llama(hugging_face_folder(tmp_path / "plain", c, w))
    found, arrays = hx.train.read_llama(hugging_face_folder(tmp_path / "other", c, w, **PUBLISHED[name]))
    assert found == plain
    assert all(np.array_equal(arrays[k], w[k]) for k in w)


# ---- what is refused ----


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            r"rope_scaling: low_freq_factor: got None, need a number above 0; .*high_freq_factor: got None",
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "beta": 3}},
            r"rope_parameters: beta: got 3 in a field",
        ),
        (
            {"rope_scaling": {"type": "mrope", "mrope_section": [1, 1]}},
            r"rope_scaling: got .*, need a rope_type of default",
        ),
        ({"model_type": "mistral", "sliding_window": -4}, r"sliding_window: got -4, need a number of tokens, or none"),
        ({"attention_bias": 1}, r"attention_bias: got 1, need true or false"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor: got 0.5, need 1"),
        ({"rope_interleaved": True}, r"rope_interleaved: got True in a field that is not known"),
        ({"pruned_heads": {"0": [1]}}, r"pruned_heads: got"),
        ({"model_type": "mamba"}, r"model_type: got 'mamba', need one of llama, mistral, ministral, qwen2"),
        ({"hidden_act": "xielu"}, r"hidden_act: got 'xielu', need 'silu' or"),
        (
            {"attention_sinks": 4, "is_causal": False, "hidden_size": "32"},
            r"hidden_size: got '32', .*is_causal: got False.*attention_sinks: got 4 in a field",
        ),
        ({"quantization_config": {"bits": 4}}, r"got weights that an unknown method quantised \(quantization_config\)"),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            r"weights that gptq quantised .*, or a GGUF file",
        ),
        ({"compression_config": {"quant_method": "compressed-tensors"}}, r"weights that compressed-tensors quantised"),
        ({"logit_softcapping": 30.0}, r"logit_softcapping: got 30.0 in a field that is not known here"),
        ({"num_hidden_layers": 2_000_000_000}, r"got 2000000000 layers and 20 tensors, need 18000000002 tensors"),
        ({"num_hidden_layers": 10**30}, r"layers: got 10"),
        ({"hidden_size": "32"}, r"hidden_size: got '32', need an integer"),
        ({"rope_theta": 10**400}, r"rope_theta: got 1000.*, need a number above 0"),
        ({"tie_word_embeddings": 1}, r"tie_word_embeddings: got 1, need true or false"),
        ({"intermediate_size": 47}, r"gate_proj.weight: got float32 of shape \(48, 32\), need shape \(47, 32\)"),
        ({"num_key_value_heads": 0}, r"num_key_value_heads: got 0, need at least 1"),
    ],
)
def test_configs_of_other_models_are_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    c = config(rope="half")
    with pytest.raises(hx.Error, match=message):
        hx.train.read_llama(hugging_face_folder(tmp_path / "hf", c, decoder_weights(c), **changes))


def test_a_tied_head_that_is_another_array_is_refused(tmp_path: Path) -> None:
    c = config(rope="half")
    w = decoder_weights(c)
    assert set(hx.train.read_llama(hugging_face_folder(tmp_path / "hf", c, {**w, HEAD: w[EMBEDDING]}))[1]) == set(w)
    with pytest.raises(hx.Error, match=r"tie_word_embeddings: got true and a lm_head.weight that is not the embedding"):
        hx.train.read_llama(hugging_face_folder(tmp_path / "hf", c, {**w, HEAD: w[EMBEDDING] + 1}))


@pytest.mark.parametrize(
    ("format", "changes", "message"),
    [
        ("llama2.c-v1", {"theta": 5e5}, r"theta: got 500000.0, need 10000.0: the format cannot store another"),
        ("llama2.c-v0", {"rope": "none"}, r"rope: got 'none', need a model with rotary positions"),
        ("llama2.c-q8_0", {"head_dim": 12}, r"head_dim: got 12 for 4 heads, need dim 32 divided by heads"),
        ("llama2.c-v1", {"residual": 0.5}, r"residual: got 0.5, need 1.0"),
        ("hugging-face", {"residual": 0.5, "norm": "layer"}, r"residual=0.5, norm=.layer., need one of llama"),
        ("ane-trainer-v2", {}, r"rope: got 'interleaved', need 'none'"),
        ("ane-trainer-v4", {"residual": 0.5, "tied": False}, r"tied: got False, need True"),
        ("gguf", {}, r"format: got 'gguf', need one of llama2.c-v0"),
    ],
)
def test_models_that_a_format_cannot_say_are_refused(
    format: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    c = config(**changes)
    with pytest.raises(hx.Error, match=message):
        hx.train.save_llama(tmp_path / "model", c, decoder_weights(c), format=format)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_where_that_fails(tmp_path: Path) -> None:
    c = config()
    w = decoder_weights(c)
    bad = {**w, "model.norm.weight": w["model.norm.weight"].astype(np.float64)}
    for format in ("llama2.c-v0", "hugging-face"):
        with pytest.raises(hx.Error, match=r"model.norm.weight: got float64"):
            hx.train.save_llama(tmp_path / "model", c, bad, format=format)
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(hx.Error, match="file"):
            hx.train.save_llama(tmp_path / "file" / "model", c, w, format=format)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "own").write_bytes(b"own")
    with pytest.raises(hx.Error, match="got a path that exists, need the name of a new folder"):
        hx.train.save_llama(tmp_path / "folder", c, w, format="hugging-face")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


def test_rows_longer_than_the_models_are_refused(tmp_path: Path) -> None:
    c = config()
    path = write(tmp_path / "v1.bin", llama2c_v1(c, decoder_weights(c)))
    with pytest.raises(hx.Error, match=r"seq: got 12, need an integer from 1 to the model's 11"):
        hx.train.load_llama(path, seq=12)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"need one of llama2.c-v0, .*; read as llama2.c-v0: sizes: got a file of 0 bytes, need 28"),
        (b"abc", r"got a file of no known format"),
        (struct.pack("<7i", *[2**31 - 1] * 7), r"read as llama2.c-v0: head_dim: got 1, need an even number"),
        (
            struct.pack("<7i", 64, 64, 2**31 - 1, 1, 1, 64, 64),
            r"got a file of 28 bytes, need \d+ for its sizes, dim 64",
        ),
        (struct.pack("<7i", 64, 64, 1, 1, 1, -(2**31), 64), r"no known format"),
        (struct.pack("<7i", 64, -1, 1, 1, 1, 64, 64), r"hidden: got -1, need at least 1"),
        (struct.pack("<Ii", 0x616B3432, 1) + bytes(248), r"dim: got 0, need at least 1"),
        (
            struct.pack("<Ii7iB", 0x616B3432, 1, 8, 8, 1, 1, 1, 8, 8, 7) + bytes(300),
            r"flag of the head: got 7, need 0 or 1",
        ),
        (
            struct.pack("<Ii7iBi", 0x616B3432, 2, 8, 8, 1, 1, 1, 8, 8, 1, 3) + bytes(300),
            r"group size: got 3, need a divisor",
        ),
        (struct.pack("<Ii7iBi", 0x616B3432, 2, 8, 8, 1, 1, 1, 8, 8, 1, 0) + bytes(300), r"group size: got 0"),
        (struct.pack("<Ii", 0x424C5A54, 4), r"header: got a file of 8 bytes, need 96"),
        (struct.pack("<Ii", 0x424C5A54, 2) + bytes(88), r"layers: got 0, need at least 1"),
    ],
)
def test_damaged_headers_are_named(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(hx.Error, match=message):
        hx.train.read_llama(write(tmp_path / "model.bin", data))


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(hx.Error, match=r"missing.bin: No such file or directory, need a readable model"):
        hx.train.read_llama(tmp_path / "missing.bin")
    with pytest.raises(hx.Error, match=r"need a file inside the model's folder"):
        hx.train.read_llama(tmp_path)
    with pytest.raises(hx.Error, match=r"got no regular file"):
        hx.train.read_llama("/dev/zero")


def files() -> dict[str, bytes]:
    c, none = config(kv_heads=2), config(rope="none")
    w, shared = decoder_weights(c), config(kv_heads=2, residual=0.5)
    return {
        "v0": llama2c_v0(c, w),
        "v1": llama2c_v1(c, w),
        "v2": llama2c_v2(c, w, 16)[0],
        "trainer 2": ane_checkpoint(none, decoder_weights(none), *moments(none), 2),
        "trainer 4": ane_checkpoint(shared, decoder_weights(shared), *moments(shared), 4),
    }


@pytest.mark.parametrize("name", files())
@pytest.mark.parametrize("seed", range(3))
def test_damaged_files_are_errors_and_nothing_else(name: str, seed: int, tmp_path: Path) -> None:
    data = files()[name]
    rng = np.random.default_rng(seed)
    path = tmp_path / "model.bin"
    refused = 0
    for _ in range(60):
        kind = rng.integers(4)
        changed = bytearray(data)
        if kind == 0:
            del changed[rng.integers(len(data)) :]
        elif kind == 1:
            changed += bytes(int(rng.integers(1, 9)))
        elif kind == 2:  # a size
            at = 4 * int(rng.integers(0, 24))
            changed[at : at + 4] = int(rng.choice([0, 1, 2, 3, 2**31 - 1, 2**31, 2**32 - 1, 65536, 255])).to_bytes(
                4, "little"
            )
        else:
            for at in rng.integers(0, 96, 4):
                changed[at] = int(rng.integers(256))
        try:
            found, arrays = hx.train.read_llama(write(path, bytes(changed)))
        except hx.Error:
            refused += 1
        else:  # such as another learning rate, or another seq in a file that does not hold tables of it
            assert {n: a.shape for n, a in arrays.items()} == found.shapes()
    assert refused > 20


@pytest.mark.parametrize("seed", range(3))
def test_damaged_folders_are_errors_and_nothing_else(seed: int, tmp_path: Path) -> None:
    c = config(rope="half")
    rng = np.random.default_rng(seed)
    folder = hugging_face_folder(tmp_path / "hf", c, decoder_weights(c))
    good = {name: (folder / name).read_bytes() for name in ("config.json", "model.safetensors")}
    for _ in range(60):
        for name, data in good.items():
            (folder / name).write_bytes(data)
        name = str(rng.choice(list(good)))
        changed = bytearray(good[name])
        if rng.integers(2):
            del changed[rng.integers(len(changed)) :]
        else:
            for at in rng.integers(0, min(len(changed), 400), 3):
                changed[at] = int(rng.integers(256))
        (folder / name).write_bytes(bytes(changed))
        try:
            found, arrays = hx.train.read_llama(folder)
        except hx.Error:
            continue
        assert {n: a.shape for n, a in arrays.items()} == found.shapes()
