"""Text encoders in folders of Hugging Face: what transformers computes of them."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import encoders
import hexane as hx
from hexane import sources
from hexane.graph import Array

RECORDED: dict[str, dict[str, Any]] = json.loads(encoders.RECORD.read_text())
CLOSE = 1e-5  # relative


def off(got: Array, want: Array) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def arrays_of(name: str) -> dict[str, Any]:
    return dict(encoders.tensors(RECORDED[name]["shapes"]))


def folder_of(name: str, tmp_path: Path, arrays: dict[str, Any] | None = None, **changes: Any) -> Path:
    return encoders.write_folder(tmp_path / "model", name, arrays or arrays_of(name), **changes)


def wanted(name: str, count: int) -> dict[str, Array]:
    outputs = RECORDED[name]["outputs"]
    return {key.split(" ")[0]: np.array(one) for key, one in outputs.items() if key.endswith(f" of {count}")}


def run(net: Any, given: dict[str, Array]) -> dict[str, Array]:
    """The outputs by name, of models of one output too."""
    found = net(**given)
    return dict(found) if isinstance(found, dict) else {net.output_names[0]: found}


def compared(name: str, count: int, named: dict[str, Array]) -> dict[str, float]:
    found = {}
    for key, want in wanted(name, count).items():
        rows = encoders.real(name, count, np.asarray(named[key]))
        rows = rows[::4] if rows.size > 300 else rows
        found[key] = off(rows.reshape(-1), want)
    return found


def test_every_case_is_recorded() -> None:
    assert list(RECORDED) == list(encoders.CASES)


@pytest.mark.parametrize("name", encoders.CASES)
def test_outputs_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Of a batch with padding behind a text, and in front of one."""
    net = hx.compile(folder_of(name, tmp_path), threads=1)
    assert isinstance(net, hx.OpenModel)
    for count in (encoders.COUNT, *([encoders.LONG[name]] if name in encoders.LONG else [])):
        found = compared(name, count, run(net, encoders.inputs(name, count)))
        assert set(found) == set(net.output_names)
        assert max(found.values()) <= CLOSE, found


def test_transformers_computes_what_is_recorded(tmp_path: Path) -> None:
    if any(importlib.util.find_spec(package) is None for package in ("torch", "transformers")):
        pytest.skip("torch is not installed: pip install torch transformers")
    subprocess.run([sys.executable, encoders.__file__, tmp_path / "found.json"], check=True, capture_output=True)
    for name, found in json.loads((tmp_path / "found.json").read_text()).items():
        assert found["shapes"] == RECORDED[name]["shapes"]
        for key, numbers in found["outputs"].items():
            assert off(np.array(numbers), np.array(RECORDED[name]["outputs"][key])) <= CLOSE, (name, key)


def with_pooling(folder: Path, mode: str, normalized: bool = False, **files: Any) -> Path:
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalized else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [{"path": paths[i], "type": f"sentence_transformers.models.{kind}"} for i, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False, f"pooling_mode_{mode}": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 24, **modes}))
    for name, fields in files.items():
        (folder / f"{name}.json").write_text(json.dumps(fields))
    return folder


POOLED = {
    "cls_token": lambda rows: rows[0],
    "mean_tokens": lambda rows: rows.mean(0),
    "max_tokens": lambda rows: rows.max(0),
    "mean_sqrt_len_tokens": lambda rows: rows.sum(0) / np.sqrt(len(rows)),
}


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("mode", POOLED)
def test_a_text_is_pooled_as_its_folder_says(mode: str, normalized: bool, tmp_path: Path) -> None:
    """From the numbers of a text alone, without padding."""
    folder = folder_of("bert", tmp_path)
    given = {name: array[:2] for name, array in encoders.inputs("bert").items()}
    alone = hx.compile(folder, threads=1)
    net = hx.compile(with_pooling(folder, mode, normalized), threads=1)
    assert net.output_names == ("sentence_embedding", "last_hidden_state")
    got = run(net, given)["sentence_embedding"]
    assert got.shape == (2, 24)
    for i, count in enumerate((encoders.COUNT, encoders.COUNT - 5)):
        states = run(alone, {name: array[i : i + 1, :count] for name, array in given.items()})["last_hidden_state"]
        want = POOLED[mode](states[0])
        want = want / np.linalg.norm(want) if normalized else want
        assert off(got[i], want) <= CLOSE


def test_inputs_without_types_have_the_type_0(tmp_path: Path) -> None:
    net = hx.compile(folder_of("bert", tmp_path), threads=1)
    given = encoders.inputs("bert")
    zeros = np.zeros_like(given["token_type_ids"])
    plain = run(net, {name: given[name] for name in ("input_ids", "attention_mask")})
    typed = run(net, {**given, "token_type_ids": zeros})
    assert all(off(plain[name], typed[name]) <= CLOSE for name in typed)
    assert off(plain["pooler_output"], run(net, given)["pooler_output"]) > 1e-2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_of_16_bits_are_those_numbers_in_fp32(dtype: str, tmp_path: Path) -> None:
    import ml_dtypes

    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    few = {name: array.astype(kind) for name, array in arrays_of("bert").items()}
    given = encoders.inputs("bert")
    got = run(hx.compile(folder_of("bert", tmp_path, few), threads=1), given)
    wide = {name: array.astype(np.float32) for name, array in few.items()}
    want = run(hx.compile(folder_of("bert", tmp_path, wide), threads=1), given)
    assert all(np.array_equal(got[name], want[name]) for name in want)


def test_files_of_the_first_programs_are_read(tmp_path: Path) -> None:
    """Their layer norms have gamma and beta; tied weights are stored twice; positions are a tensor."""
    arrays = arrays_of("bert masked")
    old = {}
    for name, array in arrays.items():
        old[name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")] = array
    old["cls.predictions.decoder.weight"] = arrays["bert.embeddings.word_embeddings.weight"]
    old["cls.seq_relationship.weight"] = np.ones((2, 24), np.float32)
    old["bert.embeddings.position_ids"] = np.arange(40)[None]
    net = hx.compile(folder_of("bert masked", tmp_path, old), threads=1)
    found = compared("bert masked", encoders.COUNT, run(net, encoders.inputs("bert masked")))
    assert max(found.values()) <= CLOSE


HARMLESS = {
    "hidden_dropout_prob": 0.3,
    "classifier_dropout": 0.2,
    "gradient_checkpointing": True,
    "transformers_version": "5.0",
    "pooler_type": "first_token_transform",
    "position_embedding_type": "absolute",
}


def test_fields_that_change_no_number_are_ignored(tmp_path: Path) -> None:
    net = hx.compile(folder_of("bert", tmp_path, **HARMLESS), threads=1)
    assert max(compared("bert", encoders.COUNT, run(net, encoders.inputs("bert"))).values()) <= CLOSE


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type: got 'relative_key', need 'absolute'"),
        ({"is_decoder": True}, "is_decoder: got True, need False"),
        ({"hidden_act": "laplace"}, "hidden_act: got 'laplace', need 'gelu'"),
        ({"embedding_size": 12}, "embedding_size: got 12 in a field that is not known here"),
        ({"architectures": ["BertForMultipleChoice"]}, "architectures: got ['BertForMultipleChoice']"),
        ({"num_attention_heads": 5}, "num_attention_heads: got 5, need a divisor of the 24"),
        ({"num_hidden_layers": True}, "num_hidden_layers: got True, need an integer"),
        ({"num_hidden_layers": 1 << 30}, "got 1073741824 layers and 55 tensors"),
        ({"num_hidden_layers": 4}, "got no tensor 'encoder.layer.3.attention.self.query.weight'"),
        ({"num_hidden_layers": 2}, "got the tensor 'encoder.layer.2.attention.output.LayerNorm.bias'"),
        ({"vocab_size": 36}, "embeddings.word_embeddings.weight: got float32 of shape (37, 24), need shape (36, 24)"),
        ({"layer_norm_eps": 0}, "layer_norm_eps: got 0, need a number above 0"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings: got False, need True"),
        ({"hidden_act": 3, "is_decoder": True}, "is_decoder: got True, need False"),
    ],
)
def test_fields_that_change_the_numbers_are_named(fields: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(hx.Error) as error:
        hx.compile(folder_of("bert", tmp_path, **fields), input_shapes={"input_ids": (1, 8)})
    assert said in str(error.value)


def test_a_head_that_is_not_the_embedding_is_an_error(tmp_path: Path) -> None:
    arrays = arrays_of("bert masked")
    arrays["cls.predictions.decoder.weight"] = arrays["bert.embeddings.word_embeddings.weight"] + 1
    with pytest.raises(hx.Error, match="got another than the embedding, need a tied one"):
        hx.compile(folder_of("bert masked", tmp_path, arrays), input_shapes={"input_ids": (1, 8)})


@pytest.mark.parametrize("shape", [(1, 41), (0, 4), (1, 0)])
def test_more_tokens_than_positions_are_an_error(shape: tuple[int, int], tmp_path: Path) -> None:
    with pytest.raises(hx.Error, match="need a batch from 1 on and 1 to 40 tokens"):
        hx.compile(folder_of("bert", tmp_path), input_shapes={"input_ids": shape})


@pytest.mark.parametrize(
    ("mode", "files", "said"),
    [
        ("lasttoken", {}, "pooling: got pooling_mode_lasttoken, need one of mean"),
        ("mean_tokens", {"sentence_bert_config": {"max_seq_length": 0}}, "max_seq_length: got 0"),
        ("mean_tokens", {"config_sentence_transformers": {"default_prompt_name": "q"}}, "default_prompt_name: got 'q'"),
        (
            "mean_tokens",
            {"modules": [{"type": "x.Transformer"}, {"type": "x.Dense"}]},
            "got the modules Transformer, D",
        ),
        ("mean_tokens", {"modules": {}}, "need a list of modules"),
    ],
)
def test_poolings_that_are_not_known_are_named(mode: str, files: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(hx.Error) as error:
        hx.compile(with_pooling(folder_of("bert", tmp_path), mode, **files), input_shapes={"input_ids": (1, 8)})
    assert said in str(error.value)


def test_a_signature_is_read_without_the_weights_where_the_config_says_all(tmp_path: Path) -> None:
    opened = sources.open(with_pooling(folder_of("bert", tmp_path), "cls_token"))
    (tmp_path / "model" / "model.safetensors").write_bytes(b"")
    found = opened.function().signature
    assert [one.name for one in found.inputs] == ["input_ids", "attention_mask"]
    assert [one.name for one in found.optional] == ["token_type_ids"]


def test_the_engine_runs_all_but_ids_and_tables_in_one_part(tmp_path: Path) -> None:
    for name in ("bert", "distilbert labels", "roberta", "mpnet"):
        report = hx.preflight(folder_of(name, tmp_path), target="M1", input_shapes={"input_ids": (1, 16)})
        assert [one.device for one in report.segments].count("ane") == 1
        on_host = {one.op for one in report.entries if one.verdict in ("host", "oversize", "rejected")}
        assert on_host <= {"gather", "not_equal", "cast", "cumsum", "mul", "add"}, on_host
