"""An open TFLite file, whose functions are its signatures, or else its first subgraph."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from hexane.errors import Error
from hexane.graph import Array, Graph
from hexane.importers.deciding import deciding_inputs
from hexane.importers.signature import Input, Signature
from hexane.importers.tflite.model import File, Subgraph, Tensor, TFLiteSignature, read_file
from hexane.importers.tflite.translate import Translator

MAIN = "main"
FLOATS = "float"  # The name or suffix of a function computed in floats: Net.tflite#float, Net.tflite#decode.float.


@dataclass(frozen=True)
class TFLiteModel:
    """An open TFLite file. signatures: by name, the default one first. A file without signatures has one function,
    main."""

    file: File

    @cached_property
    def signatures(self) -> Mapping[str, TFLiteSignature]:
        if self.file.signatures:
            return {s.key or MAIN: s for s in self.file.signatures}
        graph = self.file.subgraphs[0]
        return {MAIN: TFLiteSignature(MAIN, 0, _ports(graph, graph.inputs), _ports(graph, graph.outputs))}

    def of(self, name: str) -> TFLiteSignature:
        name = self._split(name)[0]
        if name not in self.signatures:
            raise Error(f"[tflite] got the function {name!r}, need one of {', '.join(self.signatures)}, or {FLOATS!r}")
        return self.signatures[name]

    def _split(self, name: str) -> tuple[str, bool]:
        """Returns the signature's name, and True if its quantised tensors are computed in floats."""
        if name in self.signatures:
            return name, False
        if name == FLOATS:
            return next(iter(self.signatures)), True
        stem, point, last = name.rpartition(".")
        return (stem, True) if point and last == FLOATS else (name, False)

    def signature(self, name: str) -> Signature:
        found = self.of(name)
        graph = self.file.subgraphs[found.subgraph]
        deciding = self._deciding(name)
        inputs = tuple(
            Input(port, graph.tensors[i].dtype, graph.tensors[i].dims, port in deciding, _usual(graph.tensors[i]))
            for port, i in found.inputs.items()
        )
        return Signature(inputs, tuple(found.outputs))

    def _deciding(self, name: str) -> set[str]:
        """Returns the inputs whose values decide shapes, found by an import with the file's shapes."""
        found = self.of(name)
        tensors = self.file.subgraphs[found.subgraph].tensors
        inputs = {port: (tensors[i].shape, tensors[i].dtype) for port, i in found.inputs.items()}
        return deciding_inputs(lambda shapes, values: self.graph(name, shapes, values), inputs)

    def graph(
        self, name: str, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Array] = MappingProxyType({})
    ) -> Graph:
        """Returns the graph of a function. Raises SpecialisationNeeded if a shape or a value is missing, Error if a
        shape does not fit, and UnsupportedError that lists all kinds of unsupported ops."""
        found = self.of(name)
        if unknown := (set(shapes) | set(values)) - set(found.inputs):
            raise Error(f"[tflite] got a shape for {min(unknown)!r}, need inputs of {', '.join(found.inputs)}")
        return Translator(self.file, self._split(name)[1]).graph(
            name, found.subgraph, found.inputs, found.outputs, shapes, values
        )


def _usual(tensor: Tensor) -> tuple[int, ...] | None:
    """Returns the file's shape if only the first dim is open. The shape in the file then describes a batch of one."""
    free = [axis for axis, dim in enumerate(tensor.dims) if dim is None]
    return tensor.shape if free == [0] and tensor.has_rank and 0 not in tensor.shape else None


def _ports(graph: Subgraph, indices: Sequence[int]) -> dict[str, int]:
    """Returns tensor indices by name. A tensor without a name is named by its index. A repeated name gets
    the index as a suffix."""
    found: dict[str, int] = {}
    for i in indices:
        name = graph.tensors[i].name or f"tensor_{i}"
        if name in found:
            name = f"{name}_{i}"
        found[name] = i
    return found


def open_model(data: bytes) -> TFLiteModel:
    """Opens a model. Raises Error for a damaged file."""
    return TFLiteModel(read_file(data))
