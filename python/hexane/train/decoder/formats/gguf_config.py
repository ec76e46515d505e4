"""Reads the config of a decoder from GGUF metadata, by way of the fields of Hugging Face's config.json.

Raises Error for unknown metadata of the architecture, as they may change the logits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.importers.gguf import GgufFile
from hexane.train.decoder.config import LlamaConfig, RopeScaling
from hexane.train.decoder.formats.hugging_face_config import config_in, short
from hexane.train.decoder.formats.hugging_face_families import FAMILIES, FIELDS, FULL, SLIDING

ARCHITECTURE = "general.architecture"
FREQUENCIES = "rope_freqs.weight"
SHORT, LONG = "rope_factors_short.weight", "rope_factors_long.weight"
LARGE_GEMMA2, LARGE_GEMMA3 = 46, 62  # layers of the 27B models, whose attention scale is different


@dataclass(frozen=True, slots=True)
class Architecture:
    """A GGUF architecture. family: its model_type in config.json. rope: which channels are rotated as a pair, in the
    file's order. Rows of queries and keys are ordered differently in Llama's GGUF files than in its folders."""

    family: str
    rope: str = "half"


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("llama", "interleaved"),
    "smollm3": Architecture("smollm3", "interleaved"),
    **{name: Architecture(name) for name in ("qwen2", "qwen3", "gemma", "gemma2", "phi3", "gpt2")},
    "gemma3": Architecture("gemma3_text"),
}
# GGUF's fields by the names of LlamaConfig.
SIZES = {
    "vocab": "vocab_size",
    "dim": "embedding_length",
    "hidden": "feed_forward_length",
    "layers": "block_count",
    "heads": "attention.head_count",
    "kv_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "seq": "context_length",
}
EPSILONS = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")
# Values, other than None, that have no effect.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "logit_scale": (1.0,),
    "residual_scale": (1.0,),
    "embedding_scale": (1.0,),
    "attention.causal": (True,),
    "attention.max_alibi_bias": (0.0,),
    "use_parallel_residual": (False,),
}
HARMLESS = ("tensor_data_layout", "rope.scaling.finetuned", "vocab_size")


def architecture_of(file: GgufFile) -> str:
    """Returns the name of the file's architecture. Raises Error for an unknown one."""
    name = file.metadata.get(ARCHITECTURE)
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise Error(f"{file.where}: {ARCHITECTURE}: got {short(name)}, need one of {', '.join(ARCHITECTURES)}")
    return name


def config_of_file(file: GgufFile, head: bool) -> LlamaConfig:
    """Returns the config. head: true if the file has a tensor for the head. Raises Error for unknown metadata."""
    parts = file.metadata.get("split.count")
    if parts not in (None, 0, 1):
        raise Error(f"{file.where}: got one of {short(parts)} parts, need a whole file: `llama-gguf-split --merge`")
    return _Metadata(file, head).config()


class _Metadata:
    """Reads the metadata of one architecture. Fields that nothing reads raise Error."""

    def __init__(self, file: GgufFile, head: bool) -> None:
        self.file, self.where, self.head = file, file.where, head
        self.name = architecture_of(file)
        self.made = ARCHITECTURES[self.name]
        self.family = FAMILIES[self.made.family]
        self.read = {f"{self.name}.{key}" for key in HARMLESS}

    def get(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        name = f"{self.name}.{key}"
        self.read.add(name)
        value = self.file.metadata.get(name)
        if value is None:
            return default
        if isinstance(value, bool) is not (kind is bool) or not isinstance(value, kind):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            raise Error(f"{self.where}: {name}: got {short(value)}, need {' or '.join(one.__name__ for one in kinds)}")
        return value

    def integer(self, key: str) -> Any:
        """Returns the value of a field, or the one value of an array with equal elements for all layers."""
        value = self.file.metadata.get(f"{self.name}.{key}")
        if isinstance(value, np.ndarray) and value.ndim == 1 and value.size and (value == value[0]).all():
            self.read.add(f"{self.name}.{key}")
            return int(value[0])
        return self.get(key, int)

    def number(self, key: str) -> Any:
        return self.get(key, (float, int))

    def config(self) -> LlamaConfig:
        fields = self.sizes()
        fields |= self.rotation(fields)
        fields |= self.parts(fields)
        for key, neutral in NEUTRAL.items():
            value = self.get(key, type(neutral[0]))
            if value is not None and value not in neutral:
                raise Error(f"{self.where}: {self.name}.{key}: got {short(value)}, need {neutral[0]!r}")
        unknown = sorted(n for n in self.file.metadata if n.startswith(f"{self.name}.") and n not in self.read)
        if unknown:
            raise Error(
                f"{self.where}: got {', '.join(unknown)}, which are not known here; need a file without them: they may"
                " change what the model computes"
            )
        config = config_in(self.where, fields)
        if config.rope == "half":
            config = replace(config, rope=self.made.rope)
        if config.norm == "rms+1":
            config = replace(config, norm="rms")
        if config.norm == "layer":
            return config
        qkv, out, mlp = (f"blk.0.{name}.bias" in self.file.tensors for name in ("attn_q", "attn_output", "ffn_up"))
        return self.with_frequencies(replace(config, qkv_bias=qkv, out_bias=out, mlp_bias=mlp))

    def named(self, own: str) -> str:
        """Returns the name of a field in config.json; "" if the family does not have the field."""
        return self.family.names.get(own, FIELDS[own])

    def sizes(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"model_type": self.made.family, "tie_word_embeddings": not self.head}
        table = self.file.tensors.get("token_embd.weight")
        if table is None:
            raise Error(f"{self.where}: got no tensor token_embd.weight, need the model's")
        for own, key in SIZES.items():
            value = table.shape[0] if own == "vocab" else self.integer(key)
            name = self.named(own)
            if name and value is not None:
                fields[name] = value
            elif name and own not in ("kv_heads", "head_dim"):
                raise Error(f"{self.where}: got no {self.name}.{key}, need it")
        epsilon = next((v for v in map(self.number, EPSILONS) if v is not None), None)
        if epsilon is None:
            raise Error(f"{self.where}: got no {self.name}.{EPSILONS[0]}, need it")
        fields[self.named("epsilon")] = _shortest(epsilon)
        if self.named("kv_heads"):
            fields.setdefault("num_key_value_heads", fields["num_attention_heads"])
        if self.named("head_dim") and "head_dim" not in fields:
            dim, heads = fields["hidden_size"], fields["num_attention_heads"]
            if heads < 1 or dim % heads:
                raise Error(f"{self.where}: {self.name}.attention.head_count: got {heads}, need a divisor of {dim}")
            fields["head_dim"] = dim // heads
        value_length = self.integer("attention.value_length")
        if value_length not in (None, fields.get("head_dim", value_length)):
            raise Error(
                f"{self.where}: {self.name}.attention.value_length: got {value_length}, need {fields['head_dim']}"
            )
        return fields

    def rotation(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        if self.family.parts.get("rope") == "none":
            return {}
        rope: dict[str, Any] = {"rope_theta": _shortest(self.get("rope.freq_base", (float, int), 10000.0))}
        rotary_dim, wide = self.integer("rope.dimension_count"), fields["head_dim"]
        if rotary_dim is not None and rotary_dim != wide:
            if not self.family.partial or not 0 < rotary_dim < wide:
                name = f"{self.name}.rope.dimension_count"
                raise Error(f"{self.where}: {name}: got {rotary_dim}, need the {wide} channels of a head")
            rope["partial_rotary_factor"] = rotary_dim / wide
        if "rope_local_base_freq" in self.family.reads:
            local = self.number("rope.freq_base_swa")
            rope |= {} if local is None else {"rope_local_base_freq": _shortest(local)}
        return {**rope, **self.scaling(fields)}

    def scaling(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        kind = self.get("rope.scaling.type", str, "none")
        factor, original = self.number("rope.scaling.factor"), self.integer("rope.scaling.original_context_length")
        older, attention = self.number("rope.scale_linear"), self.number("rope.scaling.attn_factor")
        if LONG in self.file.tensors or SHORT in self.file.tensors:
            lists = {name: self.factors(one) for name, one in (("short_factor", SHORT), ("long_factor", LONG))}
            scaling: dict[str, Any] = {"rope_type": "longrope", **lists}
            if attention is not None:
                scaling["attention_factor"] = _shortest(attention)
            if original is None:
                raise Error(f"{self.where}: got no {self.name}.rope.scaling.original_context_length, need it")
            return {"rope_scaling": scaling, "original_max_position_embeddings": original}
        if kind == "none" and older not in (None, 1):
            kind, factor = "linear", older
        if kind == "none":
            return {}
        if kind not in ("linear", "yarn") or factor is None or attention not in (None, 1):
            got = f"{kind} with factor {factor} and attn_factor {attention}"
            raise Error(f"{self.where}: {self.name}.rope.scaling: got {got}, need linear or yarn with a factor")
        scaling = {"rope_type": kind, "factor": _shortest(factor)}
        if kind == "yarn":
            scaling["original_max_position_embeddings"] = original or fields["max_position_embeddings"]
            for key, name in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")):
                value = self.number(f"rope.scaling.{name}")
                if value is not None:
                    scaling[key] = _shortest(value)
        return {"rope_scaling": scaling}

    def factors(self, name: str) -> list[float]:
        tensor = self.file.tensors.get(name)
        if tensor is None or len(tensor.shape) != 1:
            raise Error(
                f"{self.where}: {name}: got {'none' if tensor is None else tensor.shape}, need a row of factors"
            )
        return [float(one) for one in self.file.read(tensor)]

    def with_frequencies(self, config: LlamaConfig) -> LlamaConfig:
        """Adds the tensor of divisors, one per rotary angle, that files of Llama 3.1 and later have."""
        if FREQUENCIES not in self.file.tensors:
            return config
        if config.scaling is not None:
            raise Error(
                f"{self.where}: {FREQUENCIES}: got this tensor and another scaling of the angles, need one of the two"
            )
        try:
            return replace(config, scaling=RopeScaling("factors", factors=tuple(self.factors(FREQUENCIES))))
        except Error as error:
            raise Error(f"{self.where}: {FREQUENCIES}: {error}") from None

    def parts(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        parts: dict[str, Any] = {}
        if "sliding_window" in self.family.reads and self.family.local != "late":
            window = self.integer("attention.sliding_window")
            parts |= {} if window is None else {"sliding_window": window or None}
        elif self.name == "llama" and (window := self.integer("attention.sliding_window")):
            parts |= {"model_type": "mistral", "sliding_window": window}
        pattern = self.file.metadata.get(f"{self.name}.attention.sliding_window_pattern")
        if pattern is not None and self.name in ("gemma2", "gemma3"):
            self.read.add(f"{self.name}.attention.sliding_window_pattern")
            if isinstance(pattern, np.ndarray):
                parts["layer_types"] = [SLIDING if one else FULL for one in pattern]
            else:
                parts["layer_types"] = [
                    FULL if pattern and (i + 1) % pattern == 0 else SLIDING for i in range(fields["num_hidden_layers"])
                ]
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            if name in self.family.reads:
                value = self.number(name)
                parts[name] = None if value in (None, 0) else _shortest(value)
        if "query_pre_attn_scalar" in self.family.reads:
            large = {"gemma2": LARGE_GEMMA2, "gemma3": LARGE_GEMMA3}[self.name] == fields["num_hidden_layers"]
            wide = fields["hidden_size"] // max(fields["num_attention_heads"], 1)
            parts["query_pre_attn_scalar"] = wide if large else fields["head_dim"]
        return parts


def _shortest(number: float) -> float:
    """Returns the shortest decimal number of an fp32 value: 1e-5 of config.json is 9.99999974e-06 in fp32. Other
    numbers are returned unchanged."""
    return float(str(np.float32(number))) if np.float32(number) == number else float(number)
