"""The known model_types of config.json: what each fixes in the config, which fields it reads, and their defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Names of config.json's fields, by the fields of LlamaConfig.
FIELDS: Mapping[str, str] = {
    "vocab": "vocab_size",
    "dim": "hidden_size",
    "hidden": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "seq": "max_position_embeddings",
    "tied": "tie_word_embeddings",
    "epsilon": "rms_norm_eps",
}
# transformers' defaults for missing fields. A family may override them.
DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "rope_local_base_freq": 10000.0,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "no_rope_layer_interval": 4,
    "query_pre_attn_scalar": 256,
    "rotary_pct": 0.25,
}
ACTIVATIONS: Mapping[str, str] = {
    **dict.fromkeys(("silu", "swish"), "silu"),
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_new", "gelu_fast"), "gelu_tanh"),
    "relu": "relu",
}
# Fields that must be missing or have one of these values.
FIXED: Mapping[str, tuple[Any, ...]] = {
    "is_decoder": (True, False),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({}, None),
    "is_causal": (True, None),
}
QUANTISED = ("quantization_config", "compression_config")  # Fields of folders with quantised weights.
# Fields without influence on the logits.
HARMLESS = frozenset(
    (
        *("_name_or_path", "architectures", "torch_dtype", "dtype", "transformers_version", "use_cache", "model_type"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "tokenizer_class", "max_sequence_length"),
        *("attention_dropout", "initializer_range", "gradient_checkpointing", "output_attentions", "return_dict"),
        *("output_hidden_states", "id2label", "label2id", "problem_type", "finetuning_task", "task_specific_params"),
        *("is_llama_config", "transformers.js_config", "unsloth_fixed", "unsloth_version", "auto_map", "license"),
        *("sep_token_id", "cls_token_id", "mask_token_id", "decoder_start_token_id", "tokenizer_file"),
        *("torchscript", "use_bfloat16", "tf_legacy_loss", "chunk_size_feed_forward", "use_return_dict"),
        *("hidden_dropout", "classifier_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "pretraining_tp"),
        *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout"),
        *("cache_implementation", "model_max_length", "n_ctx", "reorder_and_upcast_attn"),
        # Settings of text generation in files of older versions of transformers.
        *("do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty", "temperature", "top_k"),
        *("top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "max_length"),
        *("encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores", "min_length"),
        *("return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "prefix"),
        *("exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "max_new_tokens"),
    )
)
ROPE = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "original_max_position_embeddings")
WINDOW = ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types")
GRANITE = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
MOST_LAYERS = 1 << 16  # most layers in families with settings per layer
SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, slots=True)
class Family:
    """A model_type. about: its class in transformers; parts: fields of LlamaConfig with one value in all its models;
    defaults, names: entries that override `DEFAULTS` and `FIELDS`; reads: the other fields that it has; harmless: the
    fields that only this family ignores; local: the layers with a sliding window if layer_types does not name them:
    "all", "late" (from max_window_layers on), "unrotated", or an integer n: all layers but every n-th; partial: a
    config may rotate only some channels of a head."""

    about: str
    parts: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    reads: tuple[str, ...] = ("hidden_act", *ROPE)
    harmless: tuple[str, ...] = ()
    local: str | int = ""
    partial: bool = False


# Models that also read images, and the family of their part for texts, whose fields are in `text_config`.
WITH_IMAGES: Mapping[str, str] = {"gemma3": "gemma3_text"}
MARKS = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id")
OF_WHOLE = ("tie_word_embeddings", *MARKS)  # Fields of a model with images that override those of its `text_config`.

_GEMMA: Mapping[str, Any] = {"norm": "rms+1", "activation": "gelu_tanh"}
_GEMMA_FIELDS = ("hidden_activation", "attention_bias", *ROPE)
_GEMMA2_FIELDS = ("query_pre_attn_scalar", "final_logit_softcapping", "sliding_window", "layer_types")
_MISTRAL: Mapping[str, Any] = {
    "defaults": {"intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072},
    "reads": ("hidden_act", "sliding_window", "layer_types", *ROPE),
    "local": "all",
}
_LAYER_NORM: Mapping[str, Any] = {"norm": "layer", "gated": False, "mlp_bias": True}
FAMILIES: Mapping[str, Family] = {
    "llama": Family("LlamaForCausalLM", reads=("hidden_act", "attention_bias", "mlp_bias", *ROPE)),
    "mistral": Family("MistralForCausalLM", **_MISTRAL),
    "ministral": Family("MinistralForCausalLM", **_MISTRAL),
    "qwen2": Family(
        "Qwen2ForCausalLM",
        {"qkv_bias": True},
        {"vocab_size": 151936, "intermediate_size": 22016, "max_position_embeddings": 32768, "num_key_value_heads": 32},
        reads=("hidden_act", *WINDOW, *ROPE),
        local="late",
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        {"head_norm": True},
        {
            "vocab_size": 151936,
            "intermediate_size": 22016,
            "max_position_embeddings": 32768,
            "num_key_value_heads": 32,
            "head_dim": 128,
        },
        reads=("hidden_act", "attention_bias", *WINDOW, *ROPE),
        local="late",
    ),
    "phi3": Family(
        "Phi3ForCausalLM",
        defaults={
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "sliding_window": None,
            "original_max_position_embeddings": 4096,
        },
        reads=("hidden_act", "sliding_window", *ROPE),
        local="all",
        partial=True,
    ),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        defaults={
            "vocab_size": 128256,
            "hidden_size": 2048,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "rope_theta": 2000000.0,
            "tie_word_embeddings": True,
            "sliding_window": None,
        },
        reads=("hidden_act", "attention_bias", "mlp_bias", "no_rope_layers", "no_rope_layer_interval", *WINDOW, *ROPE),
        local="unrotated",
    ),
    "granite": Family(
        "GraniteForCausalLM",
        defaults=dict.fromkeys(GRANITE, 1.0),
        reads=("hidden_act", "attention_bias", "mlp_bias", *GRANITE, *ROPE),
    ),
    "olmo2": Family(
        "Olmo2ForCausalLM",
        {"pre_norms": False, "post_norms": True, "joint_norm": True},
        {"vocab_size": 50304, "rms_norm_eps": 1e-5},
        reads=("hidden_act", "attention_bias", *ROPE),
    ),
    "gemma": Family(
        "GemmaForCausalLM",
        _GEMMA,
        {
            "vocab_size": 256000,
            "hidden_size": 3072,
            "intermediate_size": 24576,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "head_dim": 256,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
        },
        reads=("hidden_act", *_GEMMA_FIELDS),
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        {**_GEMMA, "post_norms": True},
        {
            "vocab_size": 256000,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        reads=("attn_logit_softcapping", *_GEMMA2_FIELDS, *_GEMMA_FIELDS),
        harmless=("hidden_act",),
        local=2,
    ),
    "gemma3_text": Family(
        "Gemma3ForCausalLM",
        {**_GEMMA, "post_norms": True, "head_norm": True},
        {
            "vocab_size": 262208,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
            "rope_theta": 1000000.0,
        },
        reads=(
            *("rope_local_base_freq", "sliding_window_pattern"),
            *(*_GEMMA2_FIELDS, *_GEMMA_FIELDS),
        ),
        local=6,
    ),
    "gpt2": Family(
        "GPT2LMHeadModel",
        {**_LAYER_NORM, "qkv_bias": True, "out_bias": True, "rope": "none"},
        {
            "vocab_size": 50257,
            "n_embd": 768,
            "n_layer": 12,
            "n_head": 12,
            "n_positions": 1024,
            "layer_norm_epsilon": 1e-5,
            "tie_word_embeddings": True,
            "activation_function": "gelu_new",
        },
        {
            "dim": "n_embd",
            "hidden": "n_inner",
            "layers": "n_layer",
            "heads": "n_head",
            "seq": "n_positions",
            "epsilon": "layer_norm_epsilon",
            "kv_heads": "",
            "head_dim": "",
        },
        reads=("activation_function", "scale_attn_weights"),
    ),
    "gpt_neox": Family(
        "GPTNeoXForCausalLM",
        _LAYER_NORM,
        {
            "vocab_size": 50432,
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "num_hidden_layers": 44,
            "num_attention_heads": 64,
            "layer_norm_eps": 1e-5,
            "hidden_act": "gelu",
            "attention_bias": True,
            "use_parallel_residual": True,
        },
        {"epsilon": "layer_norm_eps", "kv_heads": "", "head_dim": ""},
        reads=("hidden_act", "attention_bias", "use_parallel_residual", "rotary_pct", "rotary_emb_base", *ROPE),
        partial=True,
    ),
}
# Families that are written, the simplest first. Their tensors have the names of `LlamaConfig.shapes`.
WRITTEN = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "granite", "olmo2", "gemma", "gemma2", "gemma3_text")
