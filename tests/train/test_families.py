"""Decoders of other families than Llama's, in folders of Hugging Face: what transformers computes of them."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import families
import hexane as hx
from decoders import logits_in_numpy
from hexane.graph import Array

RECORDED: dict[str, dict[str, Any]] = json.loads(families.RECORD.read_text())


def off(got: Array, want: Array) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def folder_of(name: str, tmp_path: Path) -> Path:
    return families.write_folder(tmp_path / "model", name, families.tensors(RECORDED[name]["shapes"]))


def test_every_case_is_recorded() -> None:
    assert list(RECORDED) == list(families.CASES)


@pytest.mark.parametrize("name", families.CASES)
def test_logits_and_200_likeliest_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    made = hx.train.Generator(folder_of(name, tmp_path), options=hx.Options(target="host", threads=1))
    *_, last = made.logits(families.prompt())
    assert off(last, np.array(RECORDED[name]["logits"])) <= 1e-5
    got = list(made(families.prompt(), steps=families.STEPS, temperature=0, stop=()))
    assert got == RECORDED[name]["tokens"]


@pytest.mark.parametrize("name", families.CASES)
def test_logits_of_whole_rows_are_those_of_the_definition(name: str, tmp_path: Path) -> None:
    """By NumPy in fp64, and transformers at the last token."""
    config, weights = hx.train.read_llama(folder_of(name, tmp_path))
    model = hx.train.load_llama(tmp_path / "model", seq=families.PROMPT)
    tokens = np.array([families.prompt()], np.int32)
    got = hx.compile(hx.graph({"logits": model.logits}))(tokens=tokens)
    assert off(got, logits_in_numpy(config, weights, tokens)) <= 1e-5
    assert off(got[0, -1], np.array(RECORDED[name]["logits"])) <= 1e-5


def test_transformers_computes_what_is_recorded(tmp_path: Path) -> None:
    if any(importlib.util.find_spec(package) is None for package in ("torch", "transformers")):
        pytest.skip("torch is not installed: pip install torch transformers")
    subprocess.run([sys.executable, families.__file__, tmp_path / "found.json"], check=True, capture_output=True)
    for name, found in json.loads((tmp_path / "found.json").read_text()).items():
        assert found["shapes"] == RECORDED[name]["shapes"]
        assert found["tokens"] == RECORDED[name]["tokens"], name
        assert off(np.array(found["logits"]), np.array(RECORDED[name]["logits"])) <= 1e-5, name


GRADIENTS = (
    "llama dynamic",
    "mistral",
    "qwen3",
    "phi3 longrope",
    "smollm3",
    "granite",
    "gemma2",
    "gemma3",
    "gpt2",
    "gpt_neox",
)


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.filterwarnings("default")
def test_gradients_are_the_slopes_of_the_loss(name: str, tmp_path: Path) -> None:
    """Of each weight along one direction, by differences in fp64."""
    config, weights = hx.train.read_llama(folder_of(name, tmp_path))
    config, rng = replace(config, seq=16), np.random.default_rng(3)
    tokens, labels = (rng.integers(0, config.vocab, (1, config.seq)).astype(np.int32) for _ in range(2))

    def loss(changed: dict[str, Array]) -> float:
        logits = logits_in_numpy(config, changed, tokens)[0]
        sums = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) + logits.max(-1)
        return float((sums - logits[np.arange(config.seq), labels[0]]).mean())

    model = hx.train.llama(config, weights=weights, checkpoints=True)
    made = hx.grad(model.loss, list(model.params.values()))
    found = hx.compile(hx.graph({"loss": model.loss, **dict(zip(model.params, made, strict=True))}))(
        tokens=tokens, labels=labels
    )
    assert abs(float(found["loss"]) - loss(weights)) < 1e-5 * loss(weights)
    wide = {key: array.astype(np.float64) for key, array in weights.items()}
    for key in [*list(wide)[:20], *list(wide)[-3:]]:
        gradient = found[key].astype(np.float64)
        size = np.linalg.norm(gradient)
        if size < 1e-7:  # the bias of keys moves all scores of a query alike
            continue
        step = gradient / size * 1e-5
        slope = (loss({**wide, key: wide[key] + step}) - loss({**wide, key: wide[key] - step})) / 2e-5
        assert abs(slope - size) < 2e-4 * size, key


PUBLISHED_NAMES = {
    "gpt2": lambda name: name.removeprefix("transformer."),
    "gpt_neox": lambda name: "embed_out.weight" if name == "lm_head.weight" else name,
    "gemma3 with images": lambda name: (
        "language_model.model." + name.removeprefix("model.language_model.")
        if name.startswith("model.language_model.")
        else name.removeprefix("model.")
    ),
}
BUFFERS = {
    "gpt2": ("h.0.attn.bias", "h.0.attn.masked_bias"),
    "gpt_neox": ("gpt_neox.layers.1.attention.masked_bias", "gpt_neox.layers.0.attention.rotary_emb.inv_freq"),
}


@pytest.mark.parametrize("name", PUBLISHED_NAMES)
def test_older_files_have_other_names_and_buffers(name: str, tmp_path: Path) -> None:
    arrays = families.tensors(RECORDED[name]["shapes"])
    _, want = hx.train.read_llama(families.write_folder(tmp_path / "new", name, arrays))
    old = {PUBLISHED_NAMES[name](key): array for key, array in arrays.items()}
    old |= {key: np.ones((1, 1, 4, 4), np.float32) for key in BUFFERS.get(name, ())}
    _, got = hx.train.read_llama(families.write_folder(tmp_path / "old", name, old))
    assert all(np.array_equal(got[key], array) for key, array in want.items())


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["phi3", "gpt2", "gemma3"])
def test_narrow_weights_in_shards_are_widened_once(name: str, kind: str, tmp_path: Path) -> None:
    import ml_dtypes
    from safetensors.numpy import save_file

    dtype = ml_dtypes.bfloat16 if kind == "bfloat16" else np.float16
    arrays = {key: a.astype(dtype) for key, a in families.tensors(RECORDED[name]["shapes"]).items()}
    _, want = hx.train.read_llama(
        families.write_folder(tmp_path / "one", name, {key: a.astype(np.float32) for key, a in arrays.items()})
    )
    folder = families.write_folder(tmp_path / "shards", name, arrays)
    (folder / "model.safetensors").unlink()
    files = {key: f"model-{i % 3 + 1:05}-of-00003.safetensors" for i, key in enumerate(arrays)}
    for file in set(files.values()):
        save_file({key: arrays[key] for key in arrays if files[key] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    _, got = hx.train.read_llama(folder)
    assert all(np.array_equal(got[key], array) and got[key].dtype == np.float32 for key, array in want.items())


def test_weights_in_fp32_are_held_once(tmp_path: Path) -> None:
    """Each has memory of its own, which ends with it, and little more than its numbers need."""
    _, weights = hx.train.read_llama(folder_of("qwen3", tmp_path))
    roots = {id(root): root for root in map(_root, weights.values())}
    assert sum(root.nbytes for root in roots.values()) < 1.05 * sum(array.nbytes for array in weights.values())


def _root(array: Array) -> Any:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


WRITTEN = [name for name in families.CASES if not name.startswith("gpt")]


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_reads_the_same(name: str, tmp_path: Path) -> None:
    config, weights = hx.train.read_llama(folder_of(name, tmp_path))
    hx.train.save_llama(tmp_path / "again", config, weights, format="hugging-face")
    found, arrays = hx.train.read_llama(tmp_path / "again")
    assert found == config
    assert all(np.array_equal(arrays[key], weights[key]) for key in weights)


@pytest.mark.parametrize("format", ["llama2.c-v0", "llama2.c-v1", "llama2.c-q8_0", "ane-trainer-v4", "hugging-face"])
def test_a_format_that_cannot_say_a_family_refuses_it(format: str, tmp_path: Path) -> None:
    config, weights = hx.train.read_llama(folder_of("gpt2", tmp_path))
    with pytest.raises(hx.Error, match=r"need"):
        hx.train.save_llama(tmp_path / "again", config, weights, format=format)
    config, weights = hx.train.read_llama(folder_of("mistral", tmp_path))
    if format != "hugging-face":
        with pytest.raises(hx.Error, match=r"\w+: got .*the format cannot store another"):
            hx.train.save_llama(
                tmp_path / "again", replace(config, theta=10000.0, epsilon=1e-5), weights, format=format
            )


@pytest.mark.parametrize("name", ["gemma3", "llama llama3", "qwen2"])
def test_a_checkpoint_keeps_the_family(name: str, tmp_path: Path) -> None:
    from hexane.train.decoder.checkpoint import _config, decoder_notes

    config, _ = hx.train.read_llama(folder_of(name, tmp_path))
    assert _config(json.loads(json.dumps(decoder_notes(config))), "x") == config


def test_other_files_of_weights_next_to_the_model_are_not_read(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    folder = folder_of("mistral", tmp_path)
    want = hx.train.read_llama(folder)[1]
    save_file({"layers.0.attention.wq.weight": np.ones((2, 2), np.float32)}, folder / "consolidated.safetensors")
    assert hx.train.read_llama(folder)[1].keys() == want.keys()


def test_the_other_order_of_rotated_channels_is_the_same_model(tmp_path: Path) -> None:
    """With biases, head norms, and a part of the channels."""
    tokens = np.array([families.prompt()], np.int32)
    for name in ("qwen2", "qwen3", "gpt_neox"):
        config, weights = hx.train.read_llama(folder_of(name, tmp_path))
        other, permuted = hx.train.with_rope(config, weights, "interleaved")
        assert off(logits_in_numpy(other, permuted, tokens), logits_in_numpy(config, weights, tokens)) < 1e-12


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("qwen2 yarn", {"rope_theta": 1.0}, r"rope_theta: got at most 1, need more for yarn"),
        ("mistral", {"num_hidden_layers": 2_000_000_000}, r"num_hidden_layers: got 2000000000, need at most 65536"),
        (
            "gemma2",
            {"layer_types": 5},
            r"layer_types: got 5, need 'sliding_attention' or 'full_attention' for each of 4",
        ),
        ("llama linear", {"layer_types": 5}, r"layer_types: got 5 in a field that is not known here"),
        ("gemma", {"hidden_size": 10**400}, r"hidden_size: got 1000.*, need an integer up to"),
        ("smollm3", {"no_rope_layers": [1, 0]}, r"no_rope_layers: got \[1, 0\], need 0 or 1 for each of 4 layers"),
        ("gpt_neox", {"rotary_pct": 0.1}, r"need a part of at least 2 channels"),
        (
            "phi3 longrope",
            {"rope_scaling": {"type": "su", "short_factor": 2}},
            r"lists of short_factor and long_factor",
        ),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, r"scale_attn_by_inverse_layer_idx: got True in a field"),
        ("qwen2", {"is_causal": False}, r"is_causal: got False, need True"),
        ("gemma3", {"attn_logit_softcapping": 2.0}, r"attn_logit_softcapping: got 2.0 in a field"),
        (
            "gemma3",
            {"rope_scaling": None, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
            r"rope_parameters: got .*, need an object with 'full_attention' and 'sliding_attention'",
        ),
    ],
)
def test_fields_that_do_not_fit_are_named(name: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = folder_of(name, tmp_path)
    (folder / "config.json").write_text(json.dumps({**families.config_fields(name), **changes}))
    with pytest.raises(hx.Error, match=message):
        hx.train.read_llama(folder)


def test_mistral_with_kinds_of_layers_is_ministral(tmp_path: Path) -> None:
    """As transformers' AutoConfig has it."""
    folder = folder_of("ministral", tmp_path)
    want, _ = hx.train.read_llama(folder)
    (folder / "config.json").write_text(json.dumps({**families.config_fields("ministral"), "model_type": "mistral"}))
    assert hx.train.read_llama(folder)[0] == want
    assert want.local == (1, 2)


def test_gemma2_has_the_activation_of_hidden_activation_alone(tmp_path: Path) -> None:
    """As in transformers, where Gemma 2 has no hidden_act."""
    folder = folder_of("gemma2", tmp_path)
    (folder / "config.json").write_text(json.dumps({**families.config_fields("gemma2"), "hidden_act": "silu"}))
    assert hx.train.read_llama(folder)[0].activation == "gelu_tanh"


def with_images(tmp_path: Path, texts: dict[str, Any], **whole: Any) -> Path:
    """A folder of Gemma 3 with images, and with other fields in its text_config and next to it."""
    fields = families.config_fields("gemma3 with images")
    folder = folder_of("gemma3 with images", tmp_path)
    fields = {**fields, **whole, "text_config": {**fields["text_config"], **texts}}
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def test_a_model_with_images_ties_its_head_as_the_whole_model_says(tmp_path: Path) -> None:
    """As transformers 5.24 does: it reads a head next to `tie_word_embeddings: false` of the whole model."""
    from safetensors.numpy import load_file, save_file

    folder = with_images(tmp_path, {"tie_word_embeddings": True}, tie_word_embeddings=False)
    arrays = load_file(folder / "model.safetensors")
    head = np.ones_like(arrays["model.language_model.embed_tokens.weight"])
    save_file({**arrays, "lm_head.weight": head}, folder / "model.safetensors")
    config, weights = hx.train.read_llama(folder)
    assert not config.tied
    assert np.array_equal(weights["lm_head.weight"], head)


def test_a_cap_that_transformers_ignores_is_an_error(tmp_path: Path) -> None:
    folder = with_images(tmp_path, {"final_logit_softcapping": 5.0})
    with pytest.raises(hx.Error, match=r"text_config: final_logit_softcapping: got 5.0, need none"):
        hx.train.read_llama(folder)


def test_a_model_with_images_ends_texts_as_the_whole_model_says(tmp_path: Path) -> None:
    from hexane.train.decoder.formats import end_ids

    assert end_ids(with_images(tmp_path, {"eos_token_id": 7}, eos_token_id=None)) == {7}
    folder = with_images(tmp_path, {"eos_token_id": 7}, eos_token_id=[8, 9])
    assert end_ids(folder) == {8, 9}
    config, weights = hx.train.read_llama(folder)
    hx.train.save_llama(tmp_path / "new", config, weights, format="hugging-face", like=folder)
    written = json.loads((tmp_path / "new" / "config.json").read_text())
    assert (written["eos_token_id"], written["architectures"]) == ([8, 9], ["Gemma3ForCausalLM"])


def test_gemma3_has_no_pattern_of_layers_in_a_private_field(tmp_path: Path) -> None:
    """transformers writes `_sliding_window_pattern` next to layer_types, and never reads it."""
    folder = folder_of("gemma3", tmp_path)
    fields = {key: v for key, v in families.config_fields("gemma3").items() if key != "sliding_window_pattern"}
    (folder / "config.json").write_text(json.dumps(fields))
    want, _ = hx.train.read_llama(folder)
    (folder / "config.json").write_text(json.dumps({**fields, "_sliding_window_pattern": 2}))
    assert hx.train.read_llama(folder)[0] == want


@pytest.mark.parametrize("name", families.CASES)
def test_damaged_configs_are_errors_and_nothing_else(name: str, tmp_path: Path) -> None:
    """Each field with values of other kinds."""
    folder, fields = folder_of(name, tmp_path), families.config_fields(name)
    for field in fields:
        for value in (-1, 0, 2.5, "x", [], [1], {}, {"rope_type": 3}, True, 10**40):
            (folder / "config.json").write_text(json.dumps({**fields, field: value}))
            try:
                found, arrays = hx.train.read_llama(folder)
            except hx.Error:
                continue
            assert {key: array.shape for key, array in arrays.items()} == found.shapes()


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "qwen3", "gemma3"])
def test_adapters_of_other_families_are_those_of_merged_weights(name: str, tmp_path: Path) -> None:
    config, weights = hx.train.read_llama(folder_of(name, tmp_path))
    lora, rng = hx.train.Lora(2), np.random.default_rng(5)
    config = replace(config, seq=families.PROMPT)
    model = hx.train.llama(config, weights=weights, lora=lora)
    drawn = {key: rng.normal(0, 0.1, shape).astype(np.float32) for key, shape in lora.shapes(config).items()}
    assert any("gate_proj" in key for key in drawn) == config.gated
    tokens = np.array([families.prompt()], np.int32)
    net = hx.compile(hx.graph({"logits": model.logits}))
    net.update(**drawn)
    merged = hx.train.merge_adapters(config, weights, lora, drawn)
    assert off(net(tokens=tokens), logits_in_numpy(config, merged, tokens)) <= 1e-5
    if not config.gated:
        with pytest.raises(hx.Error, match=r"targets: got gate_proj, need a layer that the model has"):
            hx.train.Lora(2, targets=("gate",)).shapes(config)


def test_a_model_trained_from_ministral_keeps_its_config(tmp_path: Path) -> None:
    folder = folder_of("ministral", tmp_path)
    config, weights = hx.train.read_llama(folder)
    hx.train.save_llama(tmp_path / "again", config, weights, format="hugging-face", like=folder)
    assert json.loads((tmp_path / "again" / "config.json").read_text())["model_type"] == "ministral"
    assert hx.train.read_llama(tmp_path / "again")[0] == config
