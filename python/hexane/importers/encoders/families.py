"""The families of text encoders by the model_type of config.json: their fields, their parts and the names of their
tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Fields by the names of EncoderConfig.
FIELDS: Mapping[str, str] = {
    "vocab": "vocab_size",
    "dim": "hidden_size",
    "hidden": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "positions": "max_position_embeddings",
    "types": "type_vocab_size",
    "epsilon": "layer_norm_eps",
    "activation": "hidden_act",
    "padding": "pad_token_id",
}
# transformers' defaults for missing fields, unless a family has others.
DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "pad_token_id": 0,
}
ACTIVATIONS: Mapping[str, str] = {
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh"), "gelu_tanh"),
    **dict.fromkeys(("silu", "swish"), "silu"),
    "relu": "relu",
    "tanh": "tanh",
}
# Fields that must be missing or have a listed value.
FIXED: Mapping[str, tuple[Any, ...]] = {
    "quantization_config": (None,),
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "position_embedding_type": ("absolute", None),
    "pruned_heads": ({}, None),
    "tie_word_embeddings": (True,),
    "relative_attention_num_buckets": (32,),
}
# Fields that do not change the results.
HARMLESS = frozenset(
    (
        *("_name_or_path", "architectures", "torch_dtype", "dtype", "transformers_version", "use_cache", "model_type"),
        *("bos_token_id", "eos_token_id", "unk_token_id", "sep_token_id", "cls_token_id", "mask_token_id"),
        *("pad_token_id", "type_vocab_size", "tokenizer_class", "model_max_length", "initializer_range", "id2label"),
        *("label2id", "problem_type", "finetuning_task", "task_specific_params", "gradient_checkpointing"),
        *("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "dropout", "attention_dropout"),
        *("qa_dropout", "seq_classif_dropout", "output_attentions", "output_hidden_states", "output_past"),
        *("return_dict", "use_return_dict", "torchscript", "use_bfloat16", "tf_legacy_loss", "auto_map", "language"),
        *("chunk_size_feed_forward", "transformers.js_config", "sbert_ce_default_activation_function", "license"),
        *("sentence_transformers", "initializer_factor", "unsloth_version", "num_labels", "name", "summary_type"),
        # DistilBERT: the origin of its position table, and tied weights of its training.
        *("sinusoidal_pos_embds", "tie_weights_"),
        # Fields of Google's pooler, which transformers does not build.
        *("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"),
        *("pooler_size_per_head", "pooler_type"),
        # Text-generation settings of older versions of transformers.
        *("decoder_start_token_id", "do_sample", "early_stopping", "num_beams", "num_beam_groups"),
        *("diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty"),
        *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences"),
        *("output_scores", "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id"),
        *("remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens"),
        *("max_length", "min_length", "prefix"),
    )
)
BERT: Mapping[str, str] = {
    "embeddings.word": "embeddings.word_embeddings",
    "embeddings.position": "embeddings.position_embeddings",
    "embeddings.type": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    "layer": "encoder.layer",
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm": "output.LayerNorm",
}
MPNET = {
    **BERT,
    **{own: f"attention.attn.{own[0]}" for own in ("query", "key", "value", "out")},
    "attention_norm": "attention.LayerNorm",
}
DISTILBERT = {
    **BERT,
    **{own: f"attention.{own[0]}_lin" for own in ("query", "key", "value")},
    "layer": "transformer.layer",
    "out": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "up": "ffn.lin1",
    "down": "ffn.lin2",
    "norm": "output_layer_norm",
}


@dataclass(frozen=True, slots=True)
class Head:
    """A head. last: the layer that returns the logits; first: the linear layer before it; norm: a layer norm between
    them. activation: after the first layer, "" for the config's. first_token: the head reads only the first token.
    tied: the weight of `last` is the embedding, and `bias` names its bias."""

    last: str
    first: str = ""
    norm: str = ""
    activation: str = ""
    first_token: bool = False
    tied: bool = False
    bias: str = ""


def _lm(name: str, norm: str = "layer_norm", dense: str = "dense", activation: str = "gelu") -> Head:
    return Head(f"{name}.decoder", f"{name}.{dense}", f"{name}.{norm}", activation, tied=True, bias=f"{name}.bias")


# Heads by the end of the name in `architectures`.
TOKENS = {"ForTokenClassification": Head("classifier"), "ForQuestionAnswering": Head("qa_outputs")}
LM_HEAD = {"ForMaskedLM": _lm("lm_head")}
DENSE = Head("classifier.out_proj", "classifier.dense", activation="tanh", first_token=True)
BERT_LM = Head(
    "cls.predictions.decoder",
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    tied=True,
    bias="cls.predictions.bias",
)
BERT_HEADS: Mapping[str, Head] = {
    **TOKENS,
    "ForMaskedLM": BERT_LM,
    "ForPreTraining": BERT_LM,
    "ForSequenceClassification": Head("classifier", "bert.pooler.dense", activation="tanh", first_token=True),
}
DISTILBERT_HEADS: Mapping[str, Head] = {
    **TOKENS,
    "ForMaskedLM": Head(
        "vocab_projector", "vocab_transform", "vocab_layer_norm", tied=True, bias="vocab_projector.bias"
    ),
    "ForSequenceClassification": Head("classifier", "pre_classifier", activation="relu", first_token=True),
}
ROBERTA_HEADS: Mapping[str, Head] = {**TOKENS, **LM_HEAD, "ForSequenceClassification": DENSE}


@dataclass(frozen=True, slots=True)
class Family:
    """A family of text encoders. prefix: of tensor names in a model with a head; names: the file's tensor names, by
    this package's; fields, defaults: of config.json, if they differ from `FIELDS` and `DEFAULTS`; fixed: settings that
    config.json does not contain; ignored: prefixes of tensors that no output reads."""

    prefix: str
    names: Mapping[str, str]
    heads: Mapping[str, Head]
    fields: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    pooler: str = "pooler.dense"
    ignored: tuple[str, ...] = ()


ROBERTA = Family(
    "roberta", BERT, ROBERTA_HEADS, defaults={"pad_token_id": 1}, fixed={"counted": True}, ignored=("lm_head.",)
)
FAMILIES: Mapping[str, Family] = {
    "bert": Family("bert", BERT, BERT_HEADS, ignored=("cls.",)),
    "distilbert": Family(
        "distilbert",
        DISTILBERT,
        DISTILBERT_HEADS,
        fields={
            "dim": "dim",
            "hidden": "hidden_dim",
            "layers": "n_layers",
            "heads": "n_heads",
            "activation": "activation",
            "types": "",
            "epsilon": "",
        },
        defaults={"dim": 768, "hidden_dim": 3072, "n_layers": 6, "n_heads": 12, "activation": "gelu"},
        fixed={"types": 0, "epsilon": 1e-12},
        pooler="",
        ignored=("vocab_",),
    ),
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "mpnet": Family(
        "mpnet",
        MPNET,
        ROBERTA_HEADS,
        fields={"types": "", "padding": ""},
        fixed={"types": 0, "padding": 1, "counted": True, "buckets": 32},
        ignored=("lm_head.",),
    ),
}
