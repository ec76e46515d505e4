"""ONNX models into graphs: `import_onnx`, and the free dims and values of a model: `signature`."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import onnx

from hexane.errors import Error, UnsupportedError
from hexane.graph import Array, Graph, Port, Value, constant, unique
from hexane.graph.names import check_name
from hexane.importers.onnx.foreign import NCHWC
from hexane.importers.onnx.handlers.microsoft_nchwc import block_of
from hexane.importers.onnx.kept_node import KeptNode, NodeLike
from hexane.importers.onnx.load import ModelFile, ModelSource, check_text, external_bytes, read_model
from hexane.importers.onnx.node import Item, TensorList
from hexane.importers.onnx.order import last_reads
from hexane.importers.onnx.signature import opsets_of, read_signature, resolve
from hexane.importers.onnx.split import Tensor
from hexane.importers.onnx.trained import params_of
from hexane.importers.onnx.translate import Translator
from hexane.importers.signature import Input, Signature, SpecialisationNeeded
from hexane.ops.streams import advance_streams
from hexane.ops.valid_lengths import with_lengths

__all__ = ["Input", "Signature", "SpecialisationNeeded", "import_onnx", "signature"]

MIN_KEPT = 1 << 16  # bytes of a constant that gets memory of its own where a model is kept


def signature(model: ModelSource) -> Signature:
    """The model's inputs and outputs, and which inputs it has to be specialised by."""
    with _bounded():
        return read_signature(read_model(model))


def import_onnx(
    model: ModelSource,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, Array] | None = None,
    params: str | None = None,
    fixed: Collection[str] = (),
    tied: Mapping[str, str] | None = None,
) -> Graph:
    """The graph of an ONNX model: a path, the file's bytes, or a ModelProto.

    `shapes` fixes the free dims of inputs; `values` are the contents of inputs that decide shapes, which become
    constants. An input with an initializer is that constant, unless `values` has another or `shapes` makes it an input
    of the graph. `params` says by patterns ("layer4.*|fc.*") which initializers become params: floats with at least one
    axis that decide no shape; those in `fixed` stay constants, but for statistics of batch norms. `tied` has more names
    for patterns, with the initializer that each one means. Shapes follow from the inputs alone: the file's declared
    types of inner tensors and outputs are not read.

    Raises SpecialisationNeeded if a shape or value is missing, Error for a damaged file or a pattern that matches no
    initializer, and UnsupportedError for the nodes that Hexane does not have, all at once.
    """
    return import_described(model, shapes or {}, values or {}, params, fixed, tied)[0]


def import_described(
    model: ModelSource,
    shapes: Mapping[str, Sequence[int]],
    values: Mapping[str, Array],
    params: str | None = None,
    fixed: Collection[str] = (),
    tied: Mapping[str, str] | None = None,
) -> tuple[Graph, Signature]:
    """Like import_onnx, with the model's signature: the file is read once."""
    with _bounded():
        file = read_model(model)
        described = read_signature(file)
        return _import(file, described, shapes, values, params, fixed, tied), described


class ReadModel:
    """A model that was read: graphs for several shapes are made of it without reading it again.

    described: its signature. size: its bytes in memory, with external data.
    """

    def __init__(self, model: ModelSource) -> None:
        with _bounded():
            self._file = read_model(model)
            self.described = read_signature(self._file)
            self.size = self._file.proto.ByteSize() + sum(map(_outside, self._file.initializers()))
        self._nodes: tuple[KeptNode, ...] | None = None
        self._constants: dict[str, Item | None] | None = None
        self._keep: Callable[[Array], Array] | None = None

    def kept(self, keep: Callable[[Array], Array] = np.asarray) -> "ReadModel":
        """This model, parsed for several graphs. keep: gives the memory that holds a large weight from now on."""
        self._nodes = tuple(map(KeptNode, self._file.nodes))
        self._file = self._file._replace(nodes=())
        self._keep = keep
        return self

    def large_weights(self) -> list[Array]:
        """The weights that `keep` gave memory to."""
        constants = self._constants or {}
        arrays = [item.node.data for item in constants.values() if isinstance(item, Value)]
        return [array for array in arrays if array is not None and array.nbytes >= MIN_KEPT]

    def graph(self, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Array]) -> Graph:
        """As import_onnx."""
        with _bounded():
            return _import(self._file, self.described, shapes, values, None, (), None, self._initializers, self._nodes)

    def _initializers(self, translator: Translator, wanted: set[str]) -> dict[str, Item | None]:
        file, constants = self._file, self._constants  # in this order: another thread sets them in the other
        if constants is None:
            constants = translator.initializers(file.proto.graph, file.initializers(), wanted, self._kept_array)
            if self._keep is not None:
                self._constants = constants
                self._file = file._replace(initializers=tuple)  # and the bytes of the file go
        return dict(constants)

    def _kept_array(self, array: Array) -> Array:
        return array if self._keep is None or array.nbytes < MIN_KEPT else self._keep(np.ascontiguousarray(array))


def _outside(tensor: Tensor) -> int:
    """Bytes of a tensor's data that are not in the proto."""
    if tensor.raw is not None:
        return len(tensor.raw)
    return external_bytes(tensor.proto)


@contextmanager
def _bounded() -> Iterator[None]:
    """A file may nest, or ask for memory, without end: that is its error, not ours."""
    try:
        yield
    except RecursionError:
        raise Error("[import] got functions or subgraphs nested too deeply, need fewer levels") from None
    except MemoryError:
        raise Error("[import] got a model that needs more memory than there is, need a smaller one") from None


def _import(
    file: ModelFile,
    described: Signature,
    shapes: Mapping[str, Sequence[int]],
    values: Mapping[str, Array],
    params: str | None,
    fixed: Collection[str],
    tied: Mapping[str, str] | None,
    initializers: Callable[[Translator, set[str]], dict[str, Item | None]] | None = None,
    nodes: Sequence[NodeLike] | None = None,
) -> Graph:
    """initializers: returns the constants that are read, by name. None: those of the file. nodes: None for those of
    the file."""
    nodes = file.nodes if nodes is None else nodes
    proto = file.proto
    types = resolve(described, shapes, values)
    given = {name: np.asarray(array) for name, array in values.items()}
    chosen = frozenset[str]() if params is None else params_of(file, params, fixed, tied)
    translator = Translator(proto, file.folder, chosen)
    last, read = last_reads(nodes, [output.name for output in proto.graph.output])
    if initializers is None:
        scope = translator.initializers(proto.graph, file.initializers(), read)
    else:
        scope = initializers(translator, read)
    del read
    inputs = []
    for name, kind in types.items():
        if name in given:
            scope[name] = constant(given[name], (name,))
        else:
            inputs.append(unique("input", name, kind, sources=(name,)))
            scope[name] = inputs[-1]
    if NCHWC in opsets_of(proto):
        translator.block = block_of(nodes, scope)
    translator.nodes(nodes, scope, opsets_of(proto), scope, last=last)
    if translator.problems:
        count = len(translator.problems)
        listed = "\n  ".join(translator.problems)
        raise UnsupportedError(f"[import] {count} node{'s' if count > 1 else ''} cannot be imported:\n  {listed}")
    graph = Graph(tuple(inputs), tuple(_outputs(proto.graph, scope)), name=check_text(proto.graph.name) or "graph")
    return with_lengths(advance_streams(graph))


def _outputs(graph: onnx.GraphProto, scope: Mapping[str, Item | None]) -> list[Port]:
    ports: dict[str, Port] = {}
    for output in graph.output:
        value = scope.get(output.name)
        if value is None:
            raise Error(f"[import] got the output {output.name!r}, which nothing defines")
        if isinstance(value, TensorList):
            raise Error(f"[import] got the output {output.name!r}, a sequence of {len(value)} tensors, need a tensor")
        if output.name in ports:
            raise Error(f"[import] got the output {output.name!r} twice, need distinct names")
        check_name("output", output.name)
        ports[output.name] = Port(output.name, value)
    if not ports:
        raise Error("[import] got a graph without outputs, need at least one")
    return list(ports.values())
