"""Opens a text encoder for `hx.compile` and the commands: its signature, and graphs for given shapes."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from hexane.dtypes import DTYPES
from hexane.errors import Error
from hexane.graph import Array, Graph
from hexane.importers.encoders.config import EncoderConfig
from hexane.importers.encoders.files import EncoderFiles, read_config, read_encoder
from hexane.importers.encoders.graph import (
    ANSWERS,
    EMBEDDING,
    IDS,
    LOGITS,
    MASK,
    POOLER,
    STATES,
    TYPES,
    encoder,
    outputs_of,
)
from hexane.importers.signature import Dim, Input, Signature, SpecialisationNeeded, known_dims

FREE: tuple[Dim, ...] = ("batch", "seq")


class OpenedEncoder:
    """The encoder in a folder, whose weights are read for the first graph or signature and kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: EncoderFiles | None = None

    @property
    def files(self) -> EncoderFiles:
        if self._files is None:
            self._files = read_encoder(self.folder)
        return self._files

    def signature(self, name: str) -> Signature:
        config, pooling = (self._files.config, self._files.pooling) if self._files else read_config(self.folder)
        outputs = outputs_of(config, pooling) if config.head or pooling.given else self._plain_outputs()
        kind = DTYPES["int32"]
        types = (Input(TYPES, kind, FREE),) if config.types else ()
        dims = {one: _dims(one, config) for one in outputs}
        results = tuple(Input(one, DTYPES["fp32"], dims[one]) for one in outputs)
        return Signature((Input(IDS, kind, FREE), Input(MASK, kind, FREE)), outputs, types, results)

    def _plain_outputs(self) -> tuple[str, ...]:
        """Returns the outputs of a model without a head. The weights decide if the model has a pooler."""
        return outputs_of(self.files.config, self.files.pooling)

    def graph(self, name: str, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Array]) -> Graph:
        if values:
            raise Error(f"[open] input_values: got {', '.join(values)}, need none: no value decides a shape here")
        known = self.signature(name)
        every = {one.name: one for one in (*known.inputs, *known.optional)}
        if wrong := sorted(shapes.keys() - every.keys()):
            raise Error(f"[open] input_shapes: got the input {wrong[0]!r}, need some of {', '.join(every)}")
        for one, shape in shapes.items():
            if len(shape) != 2:
                raise Error(f"[open] input_shapes: {one}: got {tuple(shape)}, need batch and tokens")
        dims = known_dims(tuple(every.values()), shapes)[IDS]
        assert dims is not None
        batch, count = dims
        if not isinstance(batch, int) or not isinstance(count, int):
            raise SpecialisationNeeded(
                f"[open] got no shape for {IDS}, whose dims are free, need it, as in {IDS}:1x128", (IDS, MASK)
            )
        for one, shape in shapes.items():
            if tuple(shape) != (batch, count):
                raise Error(
                    f"[open] input_shapes: {one}: got {tuple(shape)}, need that of all inputs, {(batch, count)}"
                )
        files = self.files
        return encoder(
            files.config,
            files.weights,
            batch,
            count,
            known.outputs,
            pooling=files.pooling,
            typed=TYPES in shapes,
        )


def _dims(output: str, config: EncoderConfig) -> tuple[Dim, ...]:
    batch, seq = FREE
    if output in (EMBEDDING, POOLER):
        return (batch, config.dim)
    if output == STATES:
        return (batch, seq, config.dim)
    if output in ANSWERS:
        return (batch, seq)
    assert output == LOGITS
    if config.head in ("ForMaskedLM", "ForPreTraining"):
        return (batch, seq, config.vocab)
    return (batch, None) if config.head == "ForSequenceClassification" else (batch, seq, None)
