"""Opens the text encoder of CLIP or SigLIP in a Hugging Face folder, for `hx.compile` and the commands."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from hexane.dtypes import DTYPES
from hexane.errors import Error
from hexane.graph import Array, Graph
from hexane.importers.encoders.files import CONFIG, check_layers, json_object, tensors_in
from hexane.importers.encoders.graph import IDS, MASK, STATES
from hexane.importers.image_encoders.config import CLIP
from hexane.importers.image_encoders.opened import take_tensors
from hexane.importers.image_encoders.text_config import TextHalfConfig, is_text_half, text_config_in
from hexane.importers.image_encoders.text_graph import text_half, text_outputs_of
from hexane.importers.signature import Dim, Input, Signature, SpecialisationNeeded, known_dims

FREE: tuple[Dim, ...] = ("batch", "caption")
PREFIX = "text_model."
HEADS = {"clip_text_model": "text_projection", "siglip_text_model": "head"}


def holds_text_half(folder: Path) -> bool:
    """True if a folder has a readable config.json that names one of the families."""
    if not (folder / CONFIG).is_file():
        return False
    try:
        return is_text_half(json_object(folder, CONFIG, "[encoder]"))
    except Error:
        return False


def read_text_half(folder: Path, stored: bool = False) -> tuple[TextHalfConfig, dict[str, Array]]:
    """Returns the config, and the weights in fp32 by this package's names. stored: see `read_encoder`.

    Raises Error for damaged files, for an unsupported config, and for missing or unexpected tensors.
    """
    where = f"[encoder] {folder}"
    config = text_config_in(f"{where}/{CONFIG}", json_object(folder, CONFIG, where))
    return config, text_weights(where, config, tensors_in(folder, where, stored), stored)


def text_weights(where: str, c: TextHalfConfig, tensors: Mapping[str, Array], stored: bool = False) -> dict[str, Array]:
    """Returns the weights among the tensors of a file. Raises Error if the tensors do not fit the config."""
    arrays = {name.removeprefix(PREFIX): array for name, array in tensors.items()}
    check_layers(where, c.layers, len(arrays))
    wanted: dict[str, tuple[str, tuple[int, ...]]] = {
        "tokens": ("embeddings.token_embedding.weight", (c.vocab, c.dim)),
        "positions": ("embeddings.position_embedding.weight", (c.positions, c.dim)),
    }

    def add(own: str, name: str, *shape: int, bias: bool = True) -> None:
        wanted[f"{own}.weight"] = f"{name}.weight", shape
        if bias:
            wanted[f"{own}.bias"] = f"{name}.bias", shape[:1]

    for i in range(c.layers):
        at = f"{CLIP['layer']}.{i}"
        for own in ("query", "key", "value", "out"):
            add(f"layer.{i}.{own}", f"{at}.{CLIP[own]}", c.dim, c.dim)
        add(f"layer.{i}.up", f"{at}.{CLIP['up']}", c.hidden, c.dim)
        add(f"layer.{i}.down", f"{at}.{CLIP['down']}", c.dim, c.hidden)
        for own in ("before", "after"):
            add(f"layer.{i}.{own}", f"{at}.{CLIP[own]}", c.dim)
    add("last", "final_layer_norm", c.dim)
    name = HEADS[c.family]
    if c.projected or not c.causal:
        weight = arrays.get(f"{name}.weight")
        rows = weight.shape[0] if weight is not None and weight.ndim else 1
        add("head", name, rows, c.dim, bias=not c.causal)
    return take_tensors(where, wanted, arrays, (f"{name}.",) if c.causal else (), stored)


class OpenedTextHalf:
    """The encoder in a folder, whose weights are read for the first graph and kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: tuple[TextHalfConfig, dict[str, Array]] | None = None

    def _files(self) -> tuple[TextHalfConfig, dict[str, Array]]:
        if self._read is None:
            self._read = read_text_half(self.folder)
        return self._read

    def signature(self, name: str) -> Signature:
        return text_signature(self._files()[0])

    def graph(self, name: str, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Array]) -> Graph:
        return text_graph(*self._files(), shapes, values)


def text_signature(config: TextHalfConfig) -> Signature:
    kind, outputs = DTYPES["int32"], text_outputs_of(config)
    results = tuple(
        Input(one, DTYPES["fp32"], (*FREE, config.dim) if one == STATES else (FREE[0], None)) for one in outputs
    )
    return Signature((Input(IDS, kind, FREE),), outputs, (Input(MASK, kind, FREE),), results)


def text_graph(
    config: TextHalfConfig,
    weights: Mapping[str, Array],
    shapes: Mapping[str, Sequence[int]],
    values: Mapping[str, Array],
) -> Graph:
    batch, count = text_shape(shapes, values)
    return text_half(config, weights, batch, count, text_outputs_of(config), MASK in shapes)


def text_shape(shapes: Mapping[str, Sequence[int]], values: Mapping[str, Array]) -> tuple[int, int]:
    """Returns the batch size and the number of tokens. Raises SpecialisationNeeded if no shape is given, and Error for
    other inputs."""
    if values or shapes.keys() - {IDS, MASK}:
        raise Error(f"[open] got shapes or values of {', '.join((*shapes, *values))}, need shapes of {IDS}, {MASK}")
    for one, shape in shapes.items():
        if len(shape) != 2:
            raise Error(f"[open] input_shapes: {one}: got {tuple(shape)}, need batch and tokens")
    inputs = [Input(one, DTYPES["int32"], FREE) for one in (IDS, MASK)]
    batch, count = known_dims(inputs, shapes)[IDS] or FREE
    if not isinstance(batch, int) or not isinstance(count, int):
        raise SpecialisationNeeded(f"[open] got no shape for {IDS}, need it, as in {IDS}:1x16", (IDS,))
    for one, shape in shapes.items():
        if tuple(shape) != (batch, count):
            raise Error(f"[open] input_shapes: {one}: got {tuple(shape)}, need that of all inputs, {(batch, count)}")
    return batch, count
