"""Small models of the families of transformers: their configs, seeded weights, and folders of them. `families.json` has
what transformers computes; `python tests/support/families.py` (with torch and transformers) records it anew."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECORD = Path(__file__).with_name("families.json")
PROMPT, STEPS, SEED = 24, 200, 7
_SIZES = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 4}
_SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "head_dim": 8}
_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_CAPS = {"query_pre_attn_scalar": 12, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
_LAYER_NORM = {"hidden_dropout": 0.1, "layer_norm_eps": 1e-5, "num_key_value_heads": None, "head_dim": None}
_FACTORS = {"short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [2.0, 4.0, 8.0, 16.0]}


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_scaling": {"rope_type": kind, **more}, "rope_theta": 1000.0}


CASES: dict[str, dict[str, Any]] = {
    "llama linear": {"model_type": "llama", **_rope("linear", factor=4.0)},
    "llama dynamic": {"model_type": "llama", "attention_bias": True, "mlp_bias": True, **_rope("dynamic", factor=4.0)},
    "llama llama3": {
        "model_type": "llama",
        "tie_word_embeddings": True,
        **_rope(
            *("llama3",),
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
    },
    "llama yarn": {"model_type": "llama", **_rope("yarn", factor=4.0, original_max_position_embeddings=64)},
    "mistral": {"model_type": "mistral", "sliding_window": 11},
    "ministral": {
        "model_type": "ministral",
        "sliding_window": 11,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    },
    "qwen2": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 12, "max_window_layers": 2},
    "qwen2 yarn": {
        "model_type": "qwen2",
        "sliding_window": 131072,
        "max_window_layers": 70,
        **_rope("yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=16.0),
    },
    "qwen3": {"model_type": "qwen3", "head_dim": 12, "tie_word_embeddings": True, "attention_bias": False},
    "phi3": {"model_type": "phi3", "sliding_window": 17, "resid_pdrop": 0.1, "embd_pdrop": 0.0},
    "phi3 longrope": {
        "model_type": "phi3",
        "max_position_embeddings": 1024,
        "original_max_position_embeddings": 256,
        **_rope("longrope", **_FACTORS),
    },
    "smollm3": {"model_type": "smollm3", "no_rope_layer_interval": 3, "use_sliding_window": False},
    "gemma": {"model_type": "gemma", "head_dim": 12, "hidden_act": "gelu_pytorch_tanh"},
    "gemma2": {"model_type": "gemma2", "sliding_window": 10, "cache_implementation": "hybrid", **_CAPS},
    "gemma3": {
        "model_type": "gemma3_text",
        "sliding_window": 10,
        "sliding_window_pattern": 3,
        "head_dim": 12,
        "query_pre_attn_scalar": 16,
        "rope_theta": 1e6,
        "rope_local_base_freq": 100.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "gemma3 with images": {
        "model_type": "gemma3",
        "text_config": {
            **_SIZES,
            "head_dim": 12,
            "model_type": "gemma3_text",
            "sliding_window": 10,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 8,
            "intermediate_size": 8,
            "patch_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 16,
        },
        "mm_tokens_per_image": 4,
        "image_token_index": 60,
        "boi_token_index": 59,
        "eoi_token_index": 58,
    },
    "granite": {
        "model_type": "granite",
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.3,
        "attention_bias": False,
        "attention_multiplier": 0.2,
        "logits_scaling": 4.0,
        "tie_word_embeddings": True,
    },
    "olmo2": {"model_type": "olmo2", "attention_bias": False, "head_dim": None},
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 256, "n_ctx": 256},
    "gpt_neox": {"model_type": "gpt_neox", "rotary_pct": 0.5, "rotary_emb_base": 500, **_LAYER_NORM},
    "gpt_neox in line": {"model_type": "gpt_neox", "use_parallel_residual": False, "rotary_pct": 1.0, **_LAYER_NORM},
}


def config_fields(name: str) -> dict[str, Any]:
    """config.json of a case."""
    own = CASES[name]
    if own["model_type"] == "gpt2":
        return {"vocab_size": 61, **_IDS, **own}
    if "text_config" in own:
        return {**_IDS, **own}
    found = {**_SIZES, **_IDS, **own}
    return {name: value for name, value in found.items() if value is not None}


def prompt() -> list[int]:
    return [int(one) for one in np.random.default_rng(SEED).integers(3, 61, PROMPT)]


def tensors(shapes: dict[str, list[int]]) -> dict[str, NDArray[Any]]:
    """Seeded weights by the names and shapes that transformers has."""
    rng = np.random.default_rng(SEED)
    found = {}
    for name, shape in sorted(shapes.items()):
        found[name] = rng.normal(0, 0.25, shape).astype(np.float32)
    return found


def write_folder(folder: Path, name: str, arrays: dict[str, Any]) -> Path:
    from safetensors.numpy import save_file

    folder.mkdir(exist_ok=True)
    save_file(arrays, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config_fields(name)))
    return folder


def in_transformers(name: str) -> dict[str, Any]:
    """Shapes of the weights, logits after the prompt, and the likeliest tokens after it."""
    import torch
    import transformers

    torch.set_num_threads(1)
    config = transformers.AutoConfig.for_model(**config_fields(name))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    state = model.state_dict()
    tied = {"lm_head.weight", "embed_out.weight"} if config.tie_word_embeddings else set()
    shapes = {key: list(value.shape) for key, value in state.items() if key not in tied}
    with torch.no_grad():
        for key, array in tensors(shapes).items():
            state[key].copy_(torch.from_numpy(array))
        model.tie_weights()
        ids = prompt()
        made = model(torch.tensor([ids]), use_cache=True)
        logits, closest = made.logits[0].numpy(), np.inf
        for _ in range(STEPS):
            last = made.logits[0, -1].numpy()
            best = np.sort(last)[-2:]
            closest = min(closest, float((best[1] - best[0]) / np.abs(last).max()))
            ids.append(int(last.argmax()))
            made = model(torch.tensor([ids[-1:]]), past_key_values=made.past_key_values, use_cache=True)
    sys.stderr.write(f"{name}: closest {closest:.2e}, {len(set(ids))} tokens\n")
    return {"shapes": shapes, "logits": [float(f"{one:.8g}") for one in logits[-1]], "tokens": ids[PROMPT:]}


if __name__ == "__main__":
    sys.path.pop(0)  # transformers would take the modules here for packages of these names
    rows = [f"{json.dumps(name)}: {json.dumps(in_transformers(name))}" for name in CASES]
    Path(sys.argv[1] if len(sys.argv) > 1 else RECORD).write_text("{\n" + ",\n".join(rows) + "\n}\n")
