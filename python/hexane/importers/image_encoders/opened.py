"""Opens an image encoder in a Hugging Face folder for `hx.compile` and the commands."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from hexane.dtypes import DTYPES
from hexane.errors import Error
from hexane.graph import Array, Graph
from hexane.importers.encoders.files import CONFIG, FLOATS, check_layers, json_object, tensors_in
from hexane.importers.image_encoders.config import FAMILIES, ImageEncoderConfig, config_in, is_image_encoder
from hexane.importers.image_encoders.graph import PIXELS, STATES, image_encoder, outputs_of
from hexane.importers.signature import Dim, Input, Signature, SpecialisationNeeded
from hexane.importers.weights import as_fp32

BUFFERS = ("embeddings.position_ids",)
HEADS = {
    "ForImageClassification": {"head": "classifier"},
    "ForImageClassificationWithTeacher": {"head": "cls_classifier", "teacher": "distillation_classifier"},
    "WithProjection": {"head": "visual_projection"},
}
# Prefixes of head tensors that the architecture may not read.
OTHERS = ("classifier.", "cls_classifier.", "distillation_classifier.", "visual_projection.", "pooler.", "head.")
MASK_TOKEN = "embeddings.mask_token"  # a tensor that only training reads


def holds_image_encoder(folder: Path) -> bool:
    """True if a folder has a readable config.json that names one of the families."""
    if not (folder / CONFIG).is_file():
        return False
    try:
        return is_image_encoder(json_object(folder, CONFIG, "[encoder]"))
    except Error:
        return False


class OpenedImageEncoder:
    """The image encoder in a folder, whose weights are read for the first graph or signature and kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: tuple[ImageEncoderConfig, dict[str, Array]] | None = None

    @property
    def config(self) -> ImageEncoderConfig:
        return self._files()[0]

    def _files(self) -> tuple[ImageEncoderConfig, dict[str, Array]]:
        if self._read is None:
            self._read = read_image_encoder(self.folder)
        return self._read

    def _pooled(self) -> bool:
        return is_pooled(*self._files())

    def signature(self, name: str) -> Signature:
        return image_signature(self.config, outputs_of(self.config, self._pooled()))

    def graph(self, name: str, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Array]) -> Graph:
        return image_graph(*self._files(), outputs_of(self.config, self._pooled()), shapes, values)


def image_signature(c: ImageEncoderConfig, outputs: tuple[str, ...]) -> Signature:
    dims: tuple[Dim, ...] = ("batch", c.channels, c.size, c.size)
    kind = DTYPES["fp32"]
    tokens = c.patches**2 + len(FAMILIES[c.family].marks)
    results = tuple(Input(one, kind, ("batch", tokens, c.dim) if one == STATES else ("batch", None)) for one in outputs)
    return Signature((Input(PIXELS, kind, dims),), outputs, (), results)


def image_graph(
    config: ImageEncoderConfig,
    weights: Mapping[str, Array],
    outputs: Sequence[str],
    shapes: Mapping[str, Sequence[int]],
    values: Mapping[str, Array],
) -> Graph:
    return image_encoder(config, weights, check_images(config, shapes, values), outputs)


def check_images(config: ImageEncoderConfig, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Array]) -> int:
    """Returns the batch size of the input. Raises SpecialisationNeeded if no shape is given, and Error if the shape
    does not fit."""
    if values or shapes.keys() - {PIXELS}:
        raise Error(f"[open] got shapes or values of {', '.join((*shapes, *values))}, need the shape of {PIXELS}")
    if PIXELS not in shapes:
        need = f"{PIXELS}:1x{config.channels}x{config.size}x{config.size}"
        raise SpecialisationNeeded(f"[open] got no shape for {PIXELS}, need its batch, as in {need}", (PIXELS,))
    shape = tuple(shapes[PIXELS])
    if len(shape) != 4 or shape[0] < 1 or shape[1:] != (config.channels, config.size, config.size):
        need = f"a batch of {config.channels}x{config.size}x{config.size}"
        raise Error(f"[open] input_shapes: {PIXELS}: got {shape}, need {need}")
    return shape[0]


def is_pooled(config: ImageEncoderConfig, weights: Mapping[str, Array]) -> bool:
    """True for a model with a pooler_output."""
    return config.probed or FAMILIES[config.family].kind == "clip" or "pooler.weight" in weights


def read_image_encoder(folder: Path, stored: bool = False) -> tuple[ImageEncoderConfig, dict[str, Array]]:
    """Returns the config, and the weights in fp32 by this package's names. stored: see `read_encoder`.

    Raises Error for damaged files, for an unsupported config, and for missing or unexpected tensors.
    """
    where = f"[encoder] {folder}"
    config = config_in(f"{where}/{CONFIG}", json_object(folder, CONFIG, where))
    return config, image_weights(where, config, tensors_in(folder, where, stored), stored)


def image_weights(
    where: str, config: ImageEncoderConfig, tensors: Mapping[str, Array], stored: bool = False
) -> dict[str, Array]:
    """Returns the weights among the tensors of a file. Raises Error if the tensors do not fit the config."""
    family = FAMILIES[config.family]
    arrays = {name.removeprefix(family.prefix): array for name, array in tensors.items()}
    check_layers(where, config.layers, len(arrays))
    weights = take_tensors(where, _tensors(config, arrays), arrays, OTHERS, stored)
    if config.probed:
        _split_probe(where, config, weights)
    return weights


def take_tensors(
    where: str,
    wanted: Mapping[str, tuple[str, tuple[int, ...]]],
    arrays: dict[str, Array],
    unread: tuple[str, ...],
    stored: bool = False,
) -> dict[str, Array]:
    """Returns the weights in fp32, by this package's names. wanted: the file's name and the shape of each; unread:
    prefixes of tensors that the architecture may not read; stored: see `read_encoder`. Raises Error for missing or
    unexpected tensors, and for other shapes."""
    weights: dict[str, Array] = {}
    for own, (name, shape) in wanted.items():
        if name not in arrays:
            raise Error(f"{where}: got no tensor {name!r}, need those of a model of this config")
        array = arrays.pop(name)
        if array.dtype.name not in FLOATS or array.shape != shape:
            raise Error(f"{where}: {name}: got {array.dtype.name} of shape {array.shape}, need floats of shape {shape}")
        weights[own] = as_fp32(array, stored)
    rest = [name for name in arrays if name not in (*BUFFERS, MASK_TOKEN) and not name.startswith(unread)]
    if rest:
        raise Error(f"{where}: got the tensor {min(rest)!r}, need those of a model of this config")
    return weights


def _tensors(c: ImageEncoderConfig, arrays: Mapping[str, Array]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Returns the file's name and the shape of each weight, by this package's names."""
    family = FAMILIES[c.family]
    names, dim = family.names, c.dim
    count = c.patches**2 + len(family.marks)
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}

    def add(own: str, name: str, *shape: int, bias: bool = True) -> None:
        tensors[f"{own}.weight"] = f"{name}.weight", shape
        if bias:
            tensors[f"{own}.bias"] = f"{name}.bias", shape[:1]

    for mark in family.marks:
        tensors[mark] = names[mark], (dim,) if family.kind == "clip" else (1, 1, dim)
    tensors["positions"] = names["positions"], (1, count, dim) if family.kind == "vit" else (count, dim)
    add("patch", names["patch"], dim, c.channels, c.patch, c.patch, bias=family.kind != "clip")
    if "first" in names:
        add("first", names["first"], dim)
    for i in range(c.layers):
        at = f"{names['layer']}.{i}"
        for own in ("query", "key", "value"):
            add(f"layer.{i}.{own}", f"{at}.{names[own]}", dim, dim, bias=c.bias)
        add(f"layer.{i}.out", f"{at}.{names['out']}", dim, dim)
        add(f"layer.{i}.up", f"{at}.{names['up']}", c.hidden, dim)
        add(f"layer.{i}.down", f"{at}.{names['down']}", dim, c.hidden)
        for own in ("before", "after"):
            add(f"layer.{i}.{own}", f"{at}.{names[own]}", dim)
    add("last", names["last"], dim)
    if c.probed:
        tensors["probe"] = "head.probe", (1, 1, dim)
        tensors["probe.in.weight"] = "head.attention.in_proj_weight", (3 * dim, dim)
        tensors["probe.in.bias"] = "head.attention.in_proj_bias", (3 * dim,)
        add("probe.out", "head.attention.out_proj", dim, dim)
        add("probe.norm", "head.layernorm", dim)
        add("probe.up", "head.mlp.fc1", c.hidden, dim)
        add("probe.down", "head.mlp.fc2", dim, c.hidden)
    for own, name in HEADS.get(c.head, {}).items():
        weight = arrays.get(f"{name}.weight")
        labels = weight.shape[0] if weight is not None and weight.ndim else 1
        add(own, name, labels, dim, bias=c.head != "WithProjection")
    if not c.head and family.kind == "vit" and "pooler.dense.weight" in arrays:
        add("pooler", "pooler.dense", arrays["pooler.dense.weight"].shape[0], dim)
    return tensors


def _split_probe(where: str, c: ImageEncoderConfig, weights: dict[str, Array]) -> None:
    for part in ("weight", "bias"):
        rows = weights.pop(f"probe.in.{part}")
        for i, own in enumerate(("query", "key", "value")):
            weights[f"probe.{own}.{part}"] = rows[i * c.dim : (i + 1) * c.dim]
