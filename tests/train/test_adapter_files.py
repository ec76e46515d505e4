"""Adapters in folders of PEFT, by its published layout, and read back."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import families
import hexane as hx
from decoders import decoder_weights, logits_in_numpy
from hexane.graph import Array

LORA = hx.train.Lora(3, 12.0, ("q", "k", "down"))
SHORT = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "down": "mlp.down_proj"}


def config(rope: str = "interleaved") -> hx.train.LlamaConfig:
    return hx.train.LlamaConfig(
        vocab=37, dim=32, hidden=56, layers=2, heads=4, kv_heads=2, seq=11, tied=False, rope=rope
    )


def values(c: hx.train.LlamaConfig) -> dict[str, Array]:
    rng = np.random.default_rng(5)
    return {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in LORA.shapes(c).items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    c = config()
    path = tmp_path / "adapter"
    hx.train.save_adapter(path, c, LORA, values(c), weights=decoder_weights(c), base="base.bin")
    return path


def read(folder: Path, c: hx.train.LlamaConfig | None = None) -> tuple[hx.train.Lora, dict[str, Array]]:
    c = c or config()
    return hx.train.read_adapter(folder, c, decoder_weights(c))


def in_half(rows: Array, heads: int) -> Array:
    """Rows of neighbours -> rows half a head apart, row by row."""
    found = np.empty_like(rows)
    size = len(rows) // heads
    for head in range(heads):
        for pair in range(size // 2):
            found[head * size + pair] = rows[head * size + 2 * pair]
            found[head * size + size // 2 + pair] = rows[head * size + 2 * pair + 1]
    return found


def test_the_layout_is_that_of_peft(folder: Path) -> None:
    c = config()
    found, mine = load_file(folder / "adapter_model.safetensors"), values(c)
    expected = {}
    for i in range(2):
        for target, name in SHORT.items():
            for part in "AB":
                own = mine[f"model.layers.{i}.{name}.lora_{part}.weight"]
                if part == "B" and target in "qk":
                    own = in_half(own, 4 if target == "q" else 2)
                expected[f"base_model.model.model.layers.{i}.{name}.lora_{part}.weight"] = own
    assert found.keys() == expected.keys()
    for key, array in expected.items():
        np.testing.assert_array_equal(found[key], array, err_msg=key)
    fields = json.loads((folder / "adapter_config.json").read_text())
    assert (fields["peft_type"], fields["task_type"], fields["r"], fields["lora_alpha"]) == ("LORA", "CAUSAL_LM", 3, 12)
    assert fields["target_modules"] == ["q_proj", "k_proj", "down_proj"]
    assert fields["base_model_name_or_path"] == "base.bin"
    assert sorted(path.name for path in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]


def test_what_was_written_is_read_bit_for_bit(folder: Path) -> None:
    lora, found = read(folder)
    assert lora == LORA
    for name, array in values(config()).items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_adapters_follow_the_order_of_rotated_channels(folder: Path) -> None:
    """The base is read from a file of llama2.c or from Hugging Face's folder: the same logits, and the same hash."""
    c, w = config(), decoder_weights(config())
    tokens = np.arange(11, dtype=np.int32)[None]
    want = logits_in_numpy(c, hx.train.merge_adapters(c, w, LORA, values(c)), tokens)
    other, turned = hx.train.with_rope(c, w, "half")
    merged = hx.train.merge_adapters(other, turned, *hx.train.read_adapter(folder, other, turned))
    np.testing.assert_allclose(logits_in_numpy(other, merged, tokens), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float16, "bfloat16"])
def test_a_folder_that_peft_wrote_is_read(folder: Path, dtype: Any) -> None:
    """With the fields of PEFT 0.21, no hash, and numbers of 16 bits."""
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    before = load_file(folder / "adapter_model.safetensors")
    save_file({name: array.astype(dtype) for name, array in before.items()}, folder / "adapter_model.safetensors")
    empty = ("alpha_pattern", "rank_pattern", "loftq_config")
    none = ("alora_invocation_tokens", "arrow_config", "corda_config", "eva_config", "exclude_modules", "use_bdlora")
    off = ("ensure_weight_tying", "fan_in_fan_out", "lora_bias", "use_dora", "use_qalora", "use_rslora")
    fields = {
        **{name: {} for name in empty},
        **dict.fromkeys(none),
        **dict.fromkeys(off, False),
        "base_model_name_or_path": "some/base",
        "bias": "none",
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": 5,
        "lora_dropout": 0.05,
        "megatron_core": "megatron.core",
        "peft_type": "LORA",
        "r": 3,
        "peft_version": "0.21.2",
        "qalora_group_size": 16,
        "target_modules": ["down_proj", "k_proj", "q_proj"],
        "task_type": "CAUSAL_LM",
        "auto_mapping": None,
    }
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    lora, found = read(folder)
    assert lora == hx.train.Lora(3, 5, LORA.targets)
    for name, array in values(config()).items():
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], array.astype(dtype).astype(np.float32), err_msg=name)


def test_rank_stabilised_adapters_are_divided_by_the_root_of_the_rank(folder: Path) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "lora_alpha": 5, "use_rslora": True}))
    lora, _ = read(folder)
    assert lora.scale == pytest.approx(5 / 3**0.5)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("peft_type", "LOHA", "peft_type: got 'LOHA', need 'LORA'"),
        ("use_rslora", "yes", "use_rslora: got 'yes', need true or false"),
        ("use_dora", True, "use_dora: got True"),
        ("rank_pattern", {"q_proj": 4}, "rank_pattern: got {'q_proj': 4}"),
        ("modules_to_save", ["lm_head"], r"modules_to_save: got \['lm_head'\]"),
        ("init_lora_weights", "pissa", "init_lora_weights: got 'pissa'"),
        ("bias", "all", "bias: got 'all', need 'none'"),
        ("a_new_field", 1, "a_new_field: got 1"),
        ("r", 0, "rank: got 0, need an integer from 1 on"),
        ("r", "3", "rank: got '3'"),
        ("r", 10**12, "rank: got 1000000000000, need at most 32: q_proj"),
        ("r", 4, r"lora_A.weight: got float32 of shape \(3, 32\), need float32 of shape \(4, 32\)"),
        ("lora_alpha", float("nan"), "alpha: got nan"),
        ("lora_alpha", None, "lora_alpha: got none, need a number"),
    ],
)
def test_fields_that_change_the_numbers_are_refused(folder: Path, field: str, value: object, text: str) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(hx.Error, match=text):
        read(folder)


def test_tensors_that_do_not_fit_are_refused(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    one = next(iter(sorted(tensors)))

    def refused(changed: dict[str, Array], text: str) -> None:
        save_file(changed, path)
        with pytest.raises(hx.Error, match=text):
            read(folder)

    refused({name: array for name, array in tensors.items() if name != one}, r"got no adapter 'model\.layers\.0\.mlp")
    refused(
        {**tensors, "base_model.model.lm_head.lora_A.weight": tensors[one]}, r"got the tensor 'base_model\.model\.lm"
    )
    beyond = one.replace("layers.0", "layers.7")
    refused({**tensors, beyond: tensors[one]}, r"got the unknown adapter 'model\.layers\.7")
    refused({**tensors, one: tensors[one].astype(np.int32)}, "got int32, need one of float32")
    refused({**tensors, one: tensors[one].T.copy()}, r"got float32 of shape")


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_torn_file_is_refused(folder: Path, name: str) -> None:
    data = (folder / name).read_bytes()
    for size in (0, 7, len(data) // 2, len(data) - 5):
        (folder / name).write_bytes(data[:size])
        with pytest.raises(hx.Error, match=name):
            read(folder)
    (folder / name).unlink()
    with pytest.raises(hx.Error, match=name):
        read(folder)


def test_another_base_is_refused(folder: Path) -> None:
    c = config()
    other = decoder_weights(c)
    other["model.norm.weight"][3] += 1e-3
    with pytest.raises(hx.Error, match=r"got a base model whose weights have the SHA-256 .*need that of"):
        hx.train.read_adapter(folder, c, other)


def test_a_generator_adds_adapters_to_the_weights(folder: Path, tmp_path: Path) -> None:
    c, w = config(), decoder_weights(config())
    hx.train.save_llama(tmp_path / "base", c, w, format="hugging-face")
    made = hx.train.Generator(tmp_path / "base", lora=folder, options=hx.Options(target="host", threads=1))
    tokens = np.array([3, 1, 30, 7])
    apart = hx.train.llama(hx.train.LlamaConfig(**{**vars_of(c), "seq": 4}), weights=w, lora=LORA)
    net = hx.compile(hx.graph({"logits": apart.logits}))
    net.update(**values(c))
    want = net(tokens=tokens[None].astype(np.int32))[0]
    got = np.stack(list(made.logits(tokens.tolist())))
    assert np.linalg.norm(got - want) < 1e-5 * np.linalg.norm(want)


def vars_of(c: hx.train.LlamaConfig) -> dict[str, Any]:
    return {name: getattr(c, name) for name in c.__slots__}


def of_family(name: str, tmp_path: Path) -> tuple[Path, hx.train.LlamaConfig, dict[str, Array]]:
    """A base folder of a family, its config and weights."""
    shapes = json.loads(families.RECORD.read_text())[name]["shapes"]
    base = tmp_path / "base"
    families.write_folder(base, name, families.tensors(shapes))
    return base, *hx.train.read_llama(base)


def drawn(c: hx.train.LlamaConfig, lora: hx.train.Lora) -> dict[str, Array]:
    rng = np.random.default_rng(6)
    return {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in lora.shapes(c).items()}


@pytest.mark.parametrize("targets", [("q", "k", "v", "o", "gate", "up", "down"), ("v", "up"), ("o", "down")])
@pytest.mark.parametrize("name", ["phi3", "gpt2", "gpt_neox", "qwen3", "gemma3 with images"])
def test_adapters_of_fused_layers_read_the_same(name: str, targets: tuple[str, ...], tmp_path: Path) -> None:
    base, c, weights = of_family(name, tmp_path)
    lora = hx.train.Lora(3, 5.0, targets)
    adapters = drawn(c, lora)
    hx.train.save_adapter(tmp_path / "adapter", c, lora, adapters, weights=weights, base=base)
    found, arrays = hx.train.read_adapter(tmp_path / "adapter", c, weights)
    assert (found.rank, found.scale) == (3, pytest.approx(lora.scale))
    assert arrays.keys() == adapters.keys()
    assert all(np.array_equal(arrays[key], array) for key, array in adapters.items())


def test_the_fused_adapter_of_phi3_is_that_of_its_parts(tmp_path: Path) -> None:
    """B A, row by row in the order of qkv_proj, with PEFT's names."""
    base, c, weights = of_family("phi3", tmp_path)
    lora = hx.train.Lora(2, 4.0, ("q", "v"))
    adapters = drawn(c, lora)
    hx.train.save_adapter(tmp_path / "adapter", c, lora, adapters, weights=weights, base=base)
    fields = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert fields["target_modules"] == ["self_attn.qkv_proj"]
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    stem = "model.layers.1.self_attn."
    a, b = (tensors[f"base_model.model.{stem}qkv_proj.lora_{part}.weight"] for part in "AB")
    q, v = (adapters[f"{stem}{x}_proj.lora_B.weight"] @ adapters[f"{stem}{x}_proj.lora_A.weight"] for x in "qv")
    got = fields["lora_alpha"] / fields["r"] * (b @ a)
    keys = c.kv_heads * c.head_dim
    np.testing.assert_allclose(got, lora.scale * np.concatenate([q, np.zeros((keys, c.dim)), v]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base_model.model.model.layers.0.self_attn.qkv_proj.lora_B.weight": (4, 6)}, r"got the shapes \(6, 32\) and"),
        (
            {"base_model.model.model.layers.0.self_attn.qkv_proj.lora_A.weight": (5, 32)},
            r"got the shapes \(5, 32\) and",
        ),
        (
            {
                "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": (6, 32),
                "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": (32, 6),
            },
            r"got a second adapter of model.layers.0.self_attn.q_proj, need one",
        ),
        (
            {
                "base_model.model.gpt_neox.layers.0.attention.query_key_value.lora_A.weight": (6, 32),
                "base_model.model.gpt_neox.layers.0.attention.query_key_value.lora_B.weight": (64, 6),
            },
            r"got 2 key heads, need as many as query heads",
        ),
    ],
)
def test_fused_adapters_that_do_not_fit_are_refused(
    change: dict[str, tuple[int, int]], message: str, tmp_path: Path
) -> None:
    base, c, weights = of_family("phi3", tmp_path)
    lora = hx.train.Lora(2, 4.0, ("q", "k", "v"))
    hx.train.save_adapter(tmp_path / "adapter", c, lora, drawn(c, lora), weights=weights, base=base)
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    save_file({**load_file(path), **{key: np.ones(shape, np.float32) for key, shape in change.items()}}, path)
    with pytest.raises(hx.Error, match=message):
        hx.train.read_adapter(tmp_path / "adapter", c, weights)


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_adapters_of_a_model_with_images_have_the_names_of_its_layers(prefix: str, tmp_path: Path) -> None:
    """Names of transformers from 4.52 on, and of older versions. Those of the image encoder change no text."""
    name = "gemma3 with images"
    base, c, weights = of_family(name, tmp_path)
    lora, place = hx.train.Lora(2, 4.0, ("q", "down")), tmp_path / "adapter"
    adapters = drawn(c, lora)
    hx.train.save_adapter(place, c, lora, adapters, weights=weights, base=base)
    layers = {key.removesuffix(".weight") for key in json.loads(families.RECORD.read_text())[name]["shapes"]}
    fields = json.loads((place / "adapter_config.json").read_text())
    assert len(fields["target_modules"]) == 2 * c.layers
    assert layers.issuperset(fields["target_modules"])
    tensors = load_file(place / "adapter_model.safetensors")
    stems = {key.removeprefix("base_model.model.").partition(".lora_")[0] for key in tensors}
    assert sorted(stems) == fields["target_modules"]
    renamed = {key.replace("model.language_model.", prefix): array for key, array in tensors.items()}
    images = "base_model.model.model.vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.lora_A.weight"
    save_file({**renamed, images: np.ones((2, 8), np.float32)}, place / "adapter_model.safetensors")
    _, arrays = hx.train.read_adapter(place, c, weights)
    assert arrays.keys() == adapters.keys()
    assert all(np.array_equal(arrays[key], array) for key, array in adapters.items())
    both = {**tensors, **{key.replace("model.language_model.", "model."): a for key, a in tensors.items()}}
    save_file(both, place / "adapter_model.safetensors")
    with pytest.raises(hx.Error, match=r"got a second adapter of model\.layers\.0"):
        hx.train.read_adapter(place, c, weights)
    save_file({images: np.ones((2, 8), np.float32)}, place / "adapter_model.safetensors")
    with pytest.raises(hx.Error, match="got adapters of an image encoder alone"):
        hx.train.read_adapter(place, c, weights)


@pytest.mark.parametrize("name", ["phi3", "gpt2", "gpt_neox", "gemma3 with images"])
@pytest.mark.filterwarnings("ignore::FutureWarning:transformers")
def test_peft_computes_the_same_with_fused_layers(name: str, tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install torch transformers peft")
    peft: Any = pytest.importorskip("peft", reason="peft is not installed: pip install torch transformers peft")
    transformers: Any = pytest.importorskip("transformers")
    base, c, weights = of_family(name, tmp_path)
    lora = hx.train.Lora(3, 5.0)
    adapters = drawn(c, lora)
    hx.train.save_adapter(tmp_path / "adapter", c, lora, adapters, weights=weights, base=base)
    model = peft.PeftModel.from_pretrained(
        transformers.AutoModelForCausalLM.from_pretrained(base), tmp_path / "adapter"
    ).eval()
    tokens = np.arange(11)[None]
    with torch.no_grad():
        got = model(torch.tensor(tokens)).logits.numpy()
    want = logits_in_numpy(c, hx.train.merge_adapters(c, weights, lora, adapters), tokens)
    assert np.linalg.norm(got - want) < 1e-5 * np.linalg.norm(want)


@pytest.mark.filterwarnings("ignore::FutureWarning:transformers")
def test_peft_computes_the_same(folder: Path, tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install torch transformers peft")
    peft: Any = pytest.importorskip("peft", reason="peft is not installed: pip install torch transformers peft")
    transformers: Any = pytest.importorskip("transformers")
    c, w = config(), decoder_weights(config())
    hx.train.save_llama(tmp_path / "base", c, w, format="hugging-face")
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    model = peft.PeftModel.from_pretrained(base, folder).eval()
    tokens = np.arange(11)[None]
    with torch.no_grad():
        got = model(torch.tensor(tokens)).logits.numpy()
    want = logits_in_numpy(c, hx.train.merge_adapters(c, w, LORA, values(c)), tokens)
    assert np.linalg.norm(got - want) < 1e-5 * np.linalg.norm(want)
