"""Opens Whisper in a Hugging Face folder for `hx.compile` and the commands."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hexane.dtypes import DTYPES
from hexane.errors import Error
from hexane.graph import Array, Graph
from hexane.importers.encoders.files import CONFIG, check_layers, json_object, tensors_in
from hexane.importers.encoders.graph import STATES
from hexane.importers.image_encoders.opened import take_tensors
from hexane.importers.signature import Input, Signature, SpecialisationNeeded
from hexane.importers.speech.config import SpeechConfig, config_in, is_speech
from hexane.importers.speech.graph import DECODER, ENCODER, FEATURES, IDS, LOGITS, SOUND, speech_decoder, speech_encoder

HEAD = "proj_out.weight"
TOKENS = "decoder.embed_tokens.weight"
LAYER = {
    "before": "self_attn_layer_norm",
    "after": "final_layer_norm",
    "up": "fc1",
    "down": "fc2",
}
EXAMPLE = {"batch": 1, "tokens": 4}  # extents for the examples in messages
PARTS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}


def holds_speech(folder: Path) -> bool:
    """True if a folder has a readable config.json that names Whisper."""
    if not (folder / CONFIG).is_file():
        return False
    try:
        return is_speech(json_object(folder, CONFIG, "[speech]"))
    except Error:
        return False


def read_speech(folder: Path, stored: bool = False) -> tuple[SpeechConfig, dict[str, Array]]:
    """Returns the config, and the weights in fp32 by this package's names. stored: see `read_encoder`.

    Raises Error for damaged files, for an unsupported config, and for missing or unexpected tensors.
    """
    where = f"[speech] {folder}"
    config = config_in(f"{where}/{CONFIG}", json_object(folder, CONFIG, where))
    arrays = {name.removeprefix("model."): array for name, array in tensors_in(folder, where, stored).items()}
    check_layers(where, max(config.encoder_layers, config.decoder_layers), len(arrays))
    head = arrays.pop(HEAD, None) if config.tied else None
    if head is not None and not np.array_equal(head, arrays.get(TOKENS, head)):
        raise Error(f"{where}: {HEAD}: got another than the embedding, need tie_word_embeddings false")
    return config, take_tensors(where, _tensors(config), arrays, (), stored)


def _tensors(c: SpeechConfig) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Returns the file's name and the shape of each weight, by this package's names."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}

    def add(own: str, name: str, *shape: int, bias: bool = True) -> None:
        tensors[f"{own}.weight"] = f"{name}.weight", shape
        if bias:
            tensors[f"{own}.bias"] = f"{name}.bias", shape[:1]

    def add_attention(own: str, name: str) -> None:
        for part, given in PARTS.items():
            add(f"{own}.{part}", f"{name}.{given}", c.dim, c.dim, bias=part != "key")

    def add_layers(half: str, layers: int, hidden: int) -> None:
        for i in range(layers):
            own, name = f"{half}.layer.{i}", f"{half}.layers.{i}"
            add_attention(own, f"{name}.self_attn")
            shapes = {"up": (hidden, c.dim), "down": (c.dim, hidden)}
            for part, given in LAYER.items():
                add(f"{own}.{part}", f"{name}.{given}", *shapes.get(part, (c.dim,)))
            if half == DECODER:
                add_attention(f"{own}.cross", f"{name}.encoder_attn")
                add(f"{own}.cross.before", f"{name}.encoder_attn_layer_norm", c.dim)
        add(f"{half}.last", f"{half}.layer_norm", c.dim)

    add("encoder.conv1", "encoder.conv1", c.dim, c.mels, 3)
    add("encoder.conv2", "encoder.conv2", c.dim, c.dim, 3)
    for half, rows in ((ENCODER, c.positions), (DECODER, c.tokens)):
        tensors[f"{half}.positions"] = f"{half}.embed_positions.weight", (rows, c.dim)
    tensors["decoder.tokens"] = TOKENS, (c.vocab, c.dim)
    add_layers(ENCODER, c.encoder_layers, c.encoder_hidden)
    add_layers(DECODER, c.decoder_layers, c.decoder_hidden)
    if not c.tied:
        tensors["decoder.head.weight"] = HEAD, (c.vocab, c.dim)
    return tensors


class OpenedSpeech:
    """The model in a folder, whose weights are read for the first graph or signature and kept. Functions: `main` is the
    encoder, and `decoder` computes the logits of a whole text."""

    functions = ("main", DECODER)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: tuple[SpeechConfig, dict[str, Array]] | None = None

    def _files(self) -> tuple[SpeechConfig, dict[str, Array]]:
        if self._read is None:
            self._read = read_speech(self.folder)
        return self._read

    def signature(self, name: str) -> Signature:
        c, kind = self._files()[0], DTYPES["fp32"]
        states = ("batch", c.positions, c.dim)
        if name == DECODER:
            given = Input(IDS, DTYPES["int32"], ("batch", "tokens")), Input(SOUND, kind, states)
            return Signature(given, (LOGITS,), (), (Input(LOGITS, kind, ("batch", "tokens", c.vocab)),))
        features = Input(FEATURES, kind, ("batch", c.mels, c.frames))
        return Signature((features,), (STATES,), (), (Input(STATES, kind, states),))

    def graph(self, name: str, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Array]) -> Graph:
        config, weights = self._files()
        dims = _known(self.signature(name).inputs, shapes, values)
        if name == DECODER:
            return speech_decoder(config, weights, dims["batch"], dims["tokens"])
        return speech_encoder(config, weights, dims["batch"])


def _known(inputs: Sequence[Input], shapes: Mapping[str, Sequence[int]], values: Mapping[str, Array]) -> dict[str, int]:
    """Returns the extents of open dims by name. Raises SpecialisationNeeded if shapes are missing, and Error if they do
    not fit."""
    names = {one.name: one.dims or () for one in inputs}
    if values or shapes.keys() - names.keys():
        got = ", ".join((*shapes, *values))
        raise Error(f"[open] got shapes or values of {got}, need the shape of {' and '.join(names)}")
    extents: dict[str, int] = {}
    for name, shape in shapes.items():
        dims = names[name]
        fits = len(shape) == len(dims) and min(shape, default=0) >= 1
        if not fits or any(
            extent != (extents.setdefault(dim, extent) if isinstance(dim, str) else dim)
            for dim, extent in zip(dims, shape, strict=True)
        ):
            need = "x".join(str(extents.get(dim, dim) if isinstance(dim, str) else dim) for dim in dims)
            raise Error(f"[open] input_shapes: {name}: got {tuple(shape)}, need {need}")
    missing = tuple(name for name, dims in names.items() if any(isinstance(d, str) and d not in extents for d in dims))
    if missing:
        need = " and ".join(f"{name}:{'x'.join(str(EXAMPLE.get(str(d), d)) for d in names[name])}" for name in missing)
        raise SpecialisationNeeded(f"[open] got no shape for {', '.join(missing)}, need it, as in {need}", missing)
    return extents
