"""Image encoders by the model_type of config.json: their fields, structure and tensor names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hexane.errors import Error
from hexane.importers.encoders.config import LARGEST, short
from hexane.importers.encoders.families import HARMLESS as OF_TEXTS

FIELDS = {
    "dim": "hidden_size",
    "hidden": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "size": "image_size",
    "patch": "patch_size",
    "channels": "num_channels",
}
DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "qkv_bias": True,
    "vision_use_head": True,
}
ACTIVATIONS: Mapping[str, str] = {
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh"), "gelu_tanh"),
    **dict.fromkeys(("silu", "swish"), "silu"),
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "tanh": "tanh",
}
FIXED: Mapping[str, tuple[Any, ...]] = {
    "quantization_config": (None,),
    "qkv_bias": (True, False),
    "vision_use_head": (True, False),
    "pooler_act": ("tanh",),
    "pruned_heads": ({}, None),
}
HARMLESS = frozenset(
    (
        *("_name_or_path", "architectures", "torch_dtype", "dtype", "transformers_version", "model_type", "id2label"),
        *("label2id", "problem_type", "finetuning_task", "initializer_range", "initializer_factor", "dropout"),
        *("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout", "encoder_stride", "auto_map"),
        *("gradient_checkpointing", "projection_dim", "num_labels", "output_attentions", "output_hidden_states"),
        *("return_dict", "use_return_dict", "torchscript", "pooler_output_size", "license"),
        "tie_word_embeddings",
    )
)
VIT = {
    "class": "embeddings.cls_token",
    "patch": "embeddings.patch_embeddings.projection",
    "positions": "embeddings.position_embeddings",
    "layer": "encoder.layer",
    "before": "layernorm_before",
    "query": "attention.attention.query",
    "key": "attention.attention.key",
    "value": "attention.attention.value",
    "out": "attention.output.dense",
    "after": "layernorm_after",
    "up": "intermediate.dense",
    "down": "output.dense",
    "last": "layernorm",
}
CLIP = {
    "class": "embeddings.class_embedding",
    "patch": "embeddings.patch_embedding",
    "positions": "embeddings.position_embedding.weight",
    "layer": "encoder.layers",
    "before": "layer_norm1",
    **{own: f"self_attn.{own[0]}_proj" for own in ("query", "key", "value")},
    "out": "self_attn.out_proj",
    "after": "layer_norm2",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
    "last": "post_layernorm",
}


@dataclass(frozen=True, slots=True)
class Family:
    """A family of image encoders. prefix: of the body's tensor names in a file; marks: learned tokens before the
    patches; kind: one of "vit", "clip" and "siglip", which decides the use of the last norm; heads: ends of names in
    `architectures`."""

    prefix: str
    names: Mapping[str, str]
    marks: tuple[str, ...]
    kind: str
    heads: tuple[str, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)


FAMILIES: Mapping[str, Family] = {
    "vit": Family("vit.", VIT, ("class",), "vit", ("ForImageClassification",)),
    "deit": Family(
        "deit.",
        {**VIT, "distilled": "embeddings.distillation_token"},
        ("class", "distilled"),
        "vit",
        ("ForImageClassification", "ForImageClassificationWithTeacher"),
    ),
    "clip_vision_model": Family(
        "vision_model.",
        {**CLIP, "first": "pre_layrnorm"},
        ("class",),
        "clip",
        ("WithProjection",),
        {"patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5},
    ),
    "siglip_vision_model": Family(
        "vision_model.",
        CLIP,
        (),
        "siglip",
        (),
        {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6},
    ),
}


@dataclass(frozen=True, slots=True)
class ImageEncoderConfig:
    """The sizes of an image encoder. size: of an image, in pixels; patch: pixels of a patch's side; bias: the
    projections of queries, keys and values have a bias; probed: an attention head computes the vector of an image, as
    in SigLIP; head: the end of the name in `architectures`, or ""."""

    family: str
    dim: int
    hidden: int
    layers: int
    heads: int
    size: int
    patch: int
    channels: int
    epsilon: float
    activation: str
    bias: bool = True
    probed: bool = False
    head: str = ""

    @property
    def patches(self) -> int:
        """The number of patches along one side of an image."""
        return self.size // self.patch


def is_image_encoder(given: Mapping[str, Any]) -> bool:
    """True if the fields of a config.json name one of `FAMILIES`."""
    return isinstance(given.get("model_type"), str) and given["model_type"] in FAMILIES


def config_in(where: str, given: Mapping[str, Any]) -> ImageEncoderConfig:
    """Returns the config from the fields of a file. Raises Error, with the prefix `where`, for unknown fields and
    unsupported values."""
    family = FAMILIES[given["model_type"]]
    wrong: list[str] = []

    def get(name: str) -> Any:
        return given.get(name, family.defaults.get(name, DEFAULTS.get(name)))

    def bad(name: str, need: str) -> None:
        wrong.append(f"{name}: got {short(get(name))}, need {need}")

    fields: dict[str, Any] = {}
    for own, name in FIELDS.items():
        fields[own] = get(name)
        if isinstance(fields[own], bool) or not isinstance(fields[own], int) or not 1 <= fields[own] <= LARGEST:
            bad(name, "an integer from 1 on")
    epsilon, activation = get("layer_norm_eps"), get("hidden_act")
    if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float)) or not 0 < epsilon < 1:
        bad("layer_norm_eps", "a number above 0")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        bad("hidden_act", " or ".join(map(repr, ACTIVATIONS)))
    for name, needed in FIXED.items():
        got = given.get(name, needed[0])
        if not any(got == need and isinstance(got, bool) == isinstance(need, bool) for need in needed):
            bad(name, " or ".join(map(repr, needed)))
    for name in sorted(given):
        known = name in FIXED or name in HARMLESS or name in DEFAULTS or name in OF_TEXTS
        if not known and not name.startswith("_") and given[name] not in (None, False):
            bad(name, "no such field, as it may change the numbers: it is not known here")
    head = _head(given.get("architectures"), family)
    if head is None:
        bad("architectures", f"one name that ends in {', '.join(('Model', *family.heads))}")
    if not wrong and fields["dim"] % fields["heads"]:
        bad("num_attention_heads", f"a divisor of the {fields['dim']} of hidden_size")
    if not wrong and fields["size"] < fields["patch"]:
        bad("image_size", f"at least the {fields['patch']} of patch_size")
    if wrong:
        raise Error(f"{where}: {'; '.join(wrong)}")
    return ImageEncoderConfig(
        given["model_type"],
        **fields,
        epsilon=float(epsilon),
        activation=ACTIVATIONS[activation],
        bias=bool(get("qkv_bias")) or family.kind != "vit",
        probed=family.kind == "siglip" and bool(get("vision_use_head")),
        head=head or "",
    )


def _head(given: Any, family: Family) -> str | None:
    """Returns the head's name, or None for an unsupported architecture."""
    if given in (None, []):
        return ""
    if not isinstance(given, list) or len(given) != 1 or not isinstance(given[0], str):
        return None
    if given[0].endswith("Model"):
        return ""
    return next((name for name in family.heads if given[0].endswith(name)), None)
