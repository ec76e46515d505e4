"""Reads and writes the config of a decoder in Hugging Face's config.json.

Fields without influence on the logits, and unknown fields that are null or false, are ignored. One error names all
other unknown fields, as they may change the logits.
"""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from hexane.errors import Error
from hexane.train.decoder.config import LARGEST, LlamaConfig, RopeScaling
from hexane.train.decoder.formats.hugging_face_families import (
    ACTIVATIONS,
    DEFAULTS,
    FAMILIES,
    FIELDS,
    FIXED,
    FULL,
    GRANITE,
    HARMLESS,
    MOST_LAYERS,
    OF_WHOLE,
    QUANTISED,
    SLIDING,
    WITH_IMAGES,
    WRITTEN,
    Family,
)
from hexane.train.decoder.formats.model_file import config_of


def config_in(where: str, given: Mapping[str, Any]) -> LlamaConfig:
    """The config from the fields of a file. Raises Error, beginning with `where`, for unknown fields and values."""
    kind = given.get("model_type")
    if (method := quantisation(given)) is not None:
        raise Error(
            f"{where}: got weights that {method} quantised (quantization_config), need those of fp32, fp16 or bf16:"
            " take the folder before quantisation, or a GGUF file, and --compress"
        )
    if kind is None:
        raise Error(f"{where}: model_type: got none, need one of {', '.join(FAMILIES)}")
    if not isinstance(kind, str) or kind not in FAMILIES.keys() | WITH_IMAGES.keys():
        raise Error(f"{where}: model_type: got {short(kind)}, need one of {', '.join([*FAMILIES, *WITH_IMAGES])}")
    if kind in WITH_IMAGES:
        return config_in(f"{where}: text_config", of_texts(where, given))
    return _Reader(where, given, FAMILIES[kind]).config()


def of_texts(where: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the fields of a model's part for texts: all fields, or `text_config` of a model that also reads images.
    The model's own special token ids and `tie_word_embeddings` override those of text_config, as in transformers.

    Raises Error, beginning with `where`, for a text_config that is no object or of another family, and for a cap of
    the logits, which transformers ignores in such a model.
    """
    kind = given.get("model_type")
    if not isinstance(kind, str) or kind not in WITH_IMAGES:
        return given
    inner, need = given.get("text_config"), WITH_IMAGES[kind]
    if not isinstance(inner, dict) or inner.get("model_type", need) != need:
        raise Error(f"{where}: text_config: got {short(inner)}, need an object of model_type {need!r}")
    if inner.get("final_logit_softcapping") is not None:
        got = short(inner["final_logit_softcapping"])
        raise Error(f"{where}: text_config: final_logit_softcapping: got {got}, need none: transformers ignores it")
    outer = {name: given[name] for name in OF_WHOLE if given.get(name) is not None}
    return {"model_type": need, **inner, **outer}


def quantisation(given: Mapping[str, Any]) -> str | None:
    """Returns how a folder's weights are quantised, such as "gptq"; None for unquantised weights."""
    found = next((given[name] for name in QUANTISED if given.get(name) is not None), None)
    if found is None:
        return None
    method = found.get("quant_method") if isinstance(found, dict) else None
    return method if isinstance(method, str) and len(method) <= 80 else "an unknown method"


class _Reader:
    """One file's fields. Most errors are collected in `wrong`, and `stop` raises them together."""

    def __init__(self, where: str, given: Mapping[str, Any], family: Family) -> None:
        self.where, self.given, self.family = where, given, family
        self.wrong: list[str] = []

    def get(self, name: str) -> Any:
        return self.given.get(name, self.family.defaults.get(name, DEFAULTS.get(name)))

    def has(self, name: str) -> bool:
        return name in self.family.reads

    def bad(self, name: str, need: str) -> None:
        self.wrong.append(f"{name}: got {short(self.get(name))}, need {need}")

    def stop(self) -> None:
        if self.wrong:
            raise Error(f"{self.where}: {'; '.join(self.wrong)}")

    def config(self) -> LlamaConfig:
        sizes = self.sizes()
        self.unknown()
        self.stop()
        try:
            sizes["head_dim"] = sizes.get("head_dim") or sizes["dim"] // sizes["heads"]
            parts = self.parts(sizes)
        except ZeroDivisionError:
            raise Error(f"{self.where}: {self.name('heads')}: got 0, need at least 1") from None
        self.stop()
        return config_of(self.where, **{**sizes, "rope": "half", **self.family.parts, **parts})

    def name(self, own: str) -> str:
        return self.family.names.get(own, FIELDS[own])

    def sizes(self) -> dict[str, Any]:
        sizes: dict[str, Any] = {}
        for own in FIELDS:
            name = self.name(own)
            value = self.get(name) if name else None
            if value is None and own in ("kv_heads", "head_dim"):
                continue
            if own == "hidden" and value is None and name == "n_inner":
                value = 4 * sizes["dim"] if isinstance(sizes.get("dim"), int) else 1
            if own == "tied":
                value = self.flag(name)
            elif own == "epsilon":
                value = self.number(name)
            elif isinstance(value, bool) or not isinstance(value, int):
                self.bad(name, "an integer")
            elif own in ("kv_heads", "head_dim", "heads", "layers") and value < 1:
                self.bad(name, "at least 1")
            elif value > LARGEST:
                self.bad(name, f"an integer up to {LARGEST}")
            sizes[own] = value
        return sizes

    def unknown(self) -> None:
        for name, needed in FIXED.items():
            got = self.given.get(name, needed[0])
            if not any(got == need and isinstance(got, bool) == isinstance(need, bool) for need in needed):
                self.bad(name, repr(needed[0]))
        known = {*FIXED, *self.family.reads, *self.family.harmless, *map(self.name, FIELDS)} | HARMLESS
        for name in sorted(self.given):
            # transformers prefixes fields that do not describe the model with an underscore.
            if name in known or name.startswith("_") or self.given[name] in (None, False):
                continue
            if (
                name == "layer_types"
                and isinstance(self.given[name], list)
                and all(t == FULL for t in self.given[name])
            ):
                continue
            self.wrong.append(
                f"{name}: got {short(self.given[name])} in a field that is not known here; need a config without it: it"
                " may change what the model computes"
            )

    def flag(self, name: str) -> bool:
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            self.bad(name, "true or false")
        return bool(value)

    def number(self, name: str) -> float:
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e30:
            self.bad(name, "a number above 0")
            return 1.0
        return float(value)

    def parts(self, sizes: dict[str, Any]) -> dict[str, Any]:
        parts: dict[str, Any] = {"activation": self.activation()}
        if self.family.local and sizes["layers"] > MOST_LAYERS:
            raise Error(f"{self.where}: {self.name('layers')}: got {sizes['layers']}, need at most {MOST_LAYERS}")
        if self.has("attention_bias") and self.flag("attention_bias"):
            parts |= {"qkv_bias": True, "out_bias": True}
        if self.has("mlp_bias"):
            parts["mlp_bias"] = self.flag("mlp_bias")
        if self.has("use_parallel_residual"):
            parts["parallel"] = self.flag("use_parallel_residual")
        if self.has("scale_attn_weights") and self.given.get("scale_attn_weights") is False:
            parts["attention_scale"] = 1.0
        if self.has("attention_multiplier"):
            scale = self.number("attention_multiplier")
            parts["attention_scale"] = 0.0 if scale == sizes["head_dim"] ** -0.5 else scale
            for name, own in zip(GRANITE, ("embedding_scale", "residual", "", "logit_divisor"), strict=True):
                if own:
                    parts[own] = self.number(name)
        if self.has("query_pre_attn_scalar"):
            scale = self.number("query_pre_attn_scalar") ** -0.5
            parts["attention_scale"] = 0.0 if scale == sizes["head_dim"] ** -0.5 else scale
        for name, own in (("attn_logit_softcapping", "attention_cap"), ("final_logit_softcapping", "logit_cap")):
            if self.has(name) and self.get(name) is not None:
                parts[own] = self.number(name)
        if self.family.parts.get("norm") == "rms+1":
            parts["embedding_scale"] = float(sizes["dim"]) ** 0.5
        if self.family.parts.get("rope") == "none":
            parts["positions"] = sizes["seq"]
        else:
            parts |= self.rope(sizes)
        if self.has("no_rope_layers"):
            parts["unrotated"] = self.unrotated(sizes["layers"])
        if self.family.local:
            parts |= self.windows(sizes, parts)
        return parts

    def activation(self) -> str:
        name = next(
            (n for n in ("activation_function", "hidden_activation", "hidden_act") if self.has(n) and self.get(n)),
            "hidden_act",
        )
        value = self.given.get(name, self.family.defaults.get(name)) if self.has(name) else None
        if self.family.parts.get("activation") and (value is None or (name, value) == ("hidden_act", "gelu")):
            return str(self.family.parts["activation"])  # early Gemma files name a wrong activation
        value = DEFAULTS["hidden_act"] if value is None else value
        if not isinstance(value, str) or value not in ACTIVATIONS:
            self.bad(name, " or ".join(map(repr, ACTIVATIONS)))
            return "silu"
        return ACTIVATIONS[value]

    def unrotated(self, layers: int) -> tuple[int, ...]:
        given, interval = self.get("no_rope_layers"), self.get("no_rope_layer_interval")
        if given is None:
            if type(interval) is not int or interval < 1:
                self.bad("no_rope_layer_interval", "an integer from 1 on")
                return ()
            return tuple(range(interval - 1, layers, interval))
        if not isinstance(given, list) or len(given) < layers or any(one not in (0, 1) for one in given):
            self.bad("no_rope_layers", f"0 or 1 for each of {layers} layers")
            return ()
        return tuple(i for i in range(layers) if not given[i])

    def windows(self, sizes: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
        """Returns the layers with sliding-window attention, and the window. A window of the whole context is no
        window, unless its layers have their own base of the rotary angles."""
        window, kind, layers = self.get("sliding_window"), self.family.local, sizes["layers"]
        if window is not None and (type(window) is not int or window < 1):
            self.bad("sliding_window", "a number of tokens, or none")
            return {}
        if window is None or (self.has("use_sliding_window") and not self.flag("use_sliding_window")):
            return {}
        types = self.given.get("layer_types") if self.has("layer_types") else None
        late, every = self.get("max_window_layers"), kind
        if self.has("sliding_window_pattern"):
            every = self.given.get("sliding_window_pattern") or kind
        if types is not None:
            if not isinstance(types, list) or len(types) != layers or any(one not in (SLIDING, FULL) for one in types):
                self.bad("layer_types", f"{SLIDING!r} or {FULL!r} for each of {layers} layers")
                return {}
            local = [i for i in range(layers) if types[i] == SLIDING]
        elif kind == "late":
            if type(late) is not int:
                self.bad("max_window_layers", "an integer")
                return {}
            local = list(range(max(late, 0), layers))
        elif kind == "unrotated":
            local = list(parts["unrotated"])
        elif kind == "all":
            local = list(range(layers))
        elif type(every) is int and every > 0:
            local = [i for i in range(layers) if (i + 1) % every]
        else:
            self.bad("sliding_window_pattern", "an integer from 1 on")
            return {}
        if not local or (window >= sizes["seq"] and not parts.get("local_theta")):
            return {"local_theta": 0.0}
        return {"window": min(window, sizes["seq"]), "local": tuple(local)}

    # ---- rotary positions ----

    def rope(self, sizes: dict[str, Any]) -> dict[str, Any]:
        rope: dict[str, Any] = {}
        name, given = self.rope_fields()
        if self.has("rope_local_base_freq"):
            if name == "rope_parameters" and given and not {SLIDING, FULL} & given.keys():
                self.bad(name, f"an object with {FULL!r} and {SLIDING!r}")
                return {}
            near = given.pop(SLIDING, None) or {}
            if FULL in given:
                given = given[FULL] or {}
            theta = near.get("rope_theta", self.get("rope_local_base_freq")) if isinstance(near, dict) else None
            if not isinstance(given, dict) or not isinstance(near, dict) or self.kind(near) != "default":
                self.bad(name, f"angles of {SLIDING!r} that are not scaled")
                return {}
            rope["local_theta"] = self.positive(name, "rope_theta", theta)
        kind = self.kind(given)
        if kind is None:
            self.bad(name, "one rope_type")
            return {}
        rope["theta"] = self.theta(name, given)
        share = given.get("partial_rotary_factor", self.given.get("partial_rotary_factor"))
        if share is None:
            share = self.get("rotary_pct") if self.has("rotary_pct") else 1
        share = self.positive(name, "partial_rotary_factor", share)
        channels = int(sizes["head_dim"] * share)
        if share != 1 and not self.family.partial:
            self.wrong.append(f"partial_rotary_factor: got {short(share)}, need 1")
        if channels != sizes["head_dim"]:
            rope["rotary_dim"] = channels
            if channels < 2:
                self.wrong.append(f"partial_rotary_factor: got {short(share)}, need a part of at least 2 channels")
        scaling, seq = self.scaling(name, kind, given, sizes["seq"])
        if scaling is not None:
            rope["scaling"] = scaling
        return {**rope, "seq": seq} if seq != sizes["seq"] else rope

    def rope_fields(self) -> tuple[str, dict[str, Any]]:
        """Returns the name and the value of the object that describes the rotary angles."""
        names = [n for n in ("rope_parameters", "rope_scaling") if self.given.get(n) is not None]
        if len(names) == 2 and self.given[names[0]] != self.given[names[1]]:
            self.wrong.append("rope_scaling: got other values than in rope_parameters, need one of the two")
        name = names[0] if names else "rope_scaling"
        value = self.given.get(name)
        if value is not None and not isinstance(value, dict):
            self.bad(name, "an object, or none")
        return name, dict(value) if isinstance(value, dict) else {}

    @staticmethod
    def kind(given: Mapping[str, Any]) -> str | None:
        kinds = {given[name] for name in ("rope_type", "type") if isinstance(given.get(name), str)}
        return None if len(kinds) > 1 else next(iter(kinds), "default")

    def theta(self, name: str, given: Mapping[str, Any]) -> float:
        plain = "rotary_emb_base" if self.has("rotary_emb_base") else "rope_theta"
        own, other = given.get("rope_theta"), self.given.get(plain)
        if own is not None and other is not None and own != other:
            self.wrong.append(f"{plain}: got two values, need one")
        if own is not None:
            return self.positive(name, "rope_theta", own)
        return self.number(plain) if other is not None or plain == "rope_theta" else 10000.0

    def positive(self, name: str, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e30:
            self.wrong.append(f"{name}: {key}: got {short(value)}, need a number above 0")
            return 1.0
        return float(value)

    def scaling(self, name: str, kind: str, given: Mapping[str, Any], seq: int) -> tuple[RopeScaling | None, int]:
        """Returns the scaling of the rotary angles, and the context length that it allows."""
        if self.family.about.startswith("Phi3") and kind in ("su", "yarn"):
            kind = "longrope"  # early files say su or yarn for longrope
        reads: Mapping[str, tuple[str, ...]] = {
            "default": (),
            "linear": ("factor",),
            "dynamic": ("factor",),
            "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
            "yarn": ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "truncate"),
            "longrope": ("factor", "short_factor", "long_factor", "attention_factor"),
        }
        if kind not in reads:
            self.bad(name, f"a rope_type of {', '.join(reads)}")
            return None, seq
        common = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings")
        for key in sorted(given.keys() - {*reads[kind], *common}):
            if given[key] is not None:
                self.wrong.append(f"{name}: {key}: got {short(given[key])} in a field that is not known here")
        if kind in ("default", "dynamic"):  # "dynamic" affects only texts longer than the model's context
            return None, seq

        def number(key: str, default: Any = None) -> float:
            value = given.get(key)
            return self.positive(name, key, default if value is None else value)

        if kind == "linear":
            return RopeScaling("linear", number("factor")), seq
        original = self.get("original_max_position_embeddings")
        if original is None:
            original = given.get("original_max_position_embeddings", seq)
        if type(original) is not int or not 2 <= original <= LARGEST:
            self.wrong.append(f"original_max_position_embeddings: got {short(original)}, need an integer from 2 on")
            return None, seq
        if kind == "llama3":
            factor, low, high = (number(key) for key in reads[kind])
            if low >= high:
                self.bad(name, "a low_freq_factor below high_freq_factor")
                return None, seq
            return RopeScaling("llama3", factor, original, low, high), seq
        factor = number("factor", seq / original)
        if kind == "yarn":
            if self.theta(name, given) <= 1:
                self.wrong.append("rope_theta: got at most 1, need more for yarn")
                return None, seq
            return self.yarn(name, given, factor, original), seq
        short_factors, long_factors = given.get("short_factor"), given.get("long_factor")
        if not isinstance(short_factors, list) or not isinstance(long_factors, list):
            self.bad(name, "lists of short_factor and long_factor")
            return None, seq
        wide = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        factors = tuple(self.positive(name, "short_factor", one) for one in short_factors)
        # A text longer than `original` uses the long factors from its first token on, so a cache with the short factors
        # cannot grow beyond `original`.
        room = seq if short_factors == long_factors else min(seq, original)
        return RopeScaling("factors", factors=factors, attention=number("attention_factor", wide)), room

    def yarn(self, name: str, given: Mapping[str, Any], factor: float, original: int) -> RopeScaling:
        def wide(by: float) -> float:
            return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1

        by = [given.get(key) for key in ("mscale", "mscale_all_dim")]
        attention = wide(1.0)
        if all(by):
            one, other = (self.positive(name, "mscale", value) for value in by)
            attention = wide(one) / wide(other)
        if given.get("attention_factor") is not None:
            attention = self.positive(name, "attention_factor", given["attention_factor"])
        fast, slow = (
            self.positive(name, key, given.get(key) or default)
            for key, default in (("beta_fast", 32), ("beta_slow", 1))
        )
        whole = given.get("truncate") is not False
        return RopeScaling("yarn", factor, original, slow, fast, whole, attention=attention)


def short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


# ---- writing ----


def fields_of(where: str, config: LlamaConfig) -> dict[str, Any]:
    """Returns the fields of a config.json that is read back as this config with the "half" rope. Raises Error,
    beginning with `where`, if no family of `WRITTEN` can describe the config."""
    if config.rope == "none":
        raise Error(f"{where}: rope: got 'none', need a model with rotary positions")
    for kind in WRITTEN:
        written = _fields(config, kind)
        try:
            read = config_in(where, written)
        except Error:
            continue
        if all(one.name == "rope" or getattr(read, one.name) == getattr(config, one.name) for one in fields(config)):
            return written
    differing = {**({} if config.residual == 1 else {"residual": config.residual}), **config.parts()}
    parts = ", ".join(f"{name}={short(value)}" for name, value in differing.items())
    need = f"need one of {', '.join(WRITTEN)}: the format cannot describe another"
    raise Error(f"{where}: got a model with {parts}, {need}")


def _fields(config: LlamaConfig, kind: str) -> dict[str, Any]:
    family, c = FAMILIES[kind], config
    activation = next(name for name, own in reversed(list(ACTIVATIONS.items())) if own == c.activation)
    activation = {"swish": "silu", "gelu_python": "gelu", "gelu_fast": "gelu_pytorch_tanh"}.get(activation, activation)
    written: dict[str, Any] = {"architectures": [family.about], "model_type": kind, "torch_dtype": "float32"}
    written |= {name: getattr(c, own) for own, name in FIELDS.items()}
    rest: dict[str, Any] = {
        "hidden_act": activation,
        "hidden_activation": activation,
        "attention_bias": c.out_bias,
        "mlp_bias": c.mlp_bias,
        "rope_theta": c.theta,
        "rope_scaling": _rope_scaling(c),
        "rope_local_base_freq": c.local_theta or c.theta,
        "sliding_window": c.window or None,
        "use_sliding_window": bool(c.local),
        "layer_types": [SLIDING if i in c.local else FULL for i in range(c.layers)],
        "no_rope_layers": [int(i not in c.unrotated) for i in range(c.layers)],
        "attn_logit_softcapping": c.attention_cap or None,
        "final_logit_softcapping": c.logit_cap or None,
        "query_pre_attn_scalar": _scalar(c),
        "embedding_multiplier": c.embedding_scale,
        "residual_multiplier": c.residual,
        "attention_multiplier": c.attention_scale or c.head_dim**-0.5,
        "logits_scaling": c.logit_divisor,
    }
    names = {*family.reads, *family.harmless}
    if family.local == "all":
        names.discard("layer_types")  # older versions of transformers ignore layer_types here
    return {**written, **{name: value for name, value in rest.items() if name in names}}


def _scalar(c: LlamaConfig) -> float | int:
    if not c.attention_scale:
        return c.head_dim
    scalar = c.attention_scale**-2
    return round(scalar) if round(scalar) > 0 and round(scalar) ** -0.5 == c.attention_scale else scalar


def _rope_scaling(c: LlamaConfig) -> dict[str, Any] | None:
    s = c.scaling
    if s is None:
        return None
    scaling: dict[str, Any] = {"rope_type": s.kind, "factor": s.factor}
    if s.kind == "linear":
        return scaling
    scaling["original_max_position_embeddings"] = s.original
    if s.kind == "llama3":
        return {**scaling, "low_freq_factor": s.low, "high_freq_factor": s.high}
    if s.kind == "yarn":
        more = {"beta_slow": s.low, "beta_fast": s.high, "truncate": s.whole, "attention_factor": s.attention}
        return {**scaling, **more}
    factors = {"short_factor": list(s.factors), "long_factor": list(s.factors), "attention_factor": s.attention}
    return {**factors, "rope_type": "longrope", "original_max_position_embeddings": c.seq}
