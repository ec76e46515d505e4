"""`import_onnx` reads an ONNX model as a graph; `signature` returns its inputs, with their open dims, and outputs."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import onnx

from hexane.errors import Error, UnsupportedError
from hexane.graph import Array, Graph, Port, Value, constant, unique
from hexane.graph.names import check_name
from hexane.importers.onnx.foreign import NCHWC
from hexane.importers.onnx.handlers.microsoft_nchwc import block_of
from hexane.importers.onnx.kept_node import KeptNode, NodeLike, kept_nodes
from hexane.importers.onnx.load import ModelFile, ModelSource, read_model
from hexane.importers.onnx.node import Item, TensorList, described
from hexane.importers.onnx.order import last_reads
from hexane.importers.onnx.signature import opsets_of, read_signature, resolve
from hexane.importers.onnx.split import Tensor
from hexane.importers.onnx.tensors import check_text, external_bytes
from hexane.importers.onnx.trained import params_of
from hexane.importers.onnx.translate import IN_FUNCTION, Translator
from hexane.importers.signature import ComputedShapes, Input, Signature, SpecialisationNeeded
from hexane.ops.streams import advance_streams
from hexane.ops.valid_lengths import with_lengths

__all__ = ["Input", "Signature", "SpecialisationNeeded", "import_onnx", "signature"]

MIN_KEPT = 1 << 16  # bytes; a larger constant gets memory of its own in a kept model


def signature(model: ModelSource) -> Signature:
    """Returns the model's inputs and outputs, and the inputs that need a shape or a value."""
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
    """Returns the graph of an ONNX model: a path, the file's bytes, or a ModelProto.

    `shapes`: the shapes of inputs with open dims. `values`: the contents of inputs that decide shapes, which become
    constants. An input with an initializer is a constant, unless `values` has other contents or `shapes` makes it a
    graph input. `params`: patterns ("layer4.*|fc.*") of initializers that become params. Params are float tensors of at
    least one axis that decide no shape. Initializers in `fixed` stay constants, except for the statistics of batch
    norms. `tied`: more names that patterns may match, each with its initializer. Shapes are inferred from the inputs.
    The declared types of inner tensors and outputs are ignored.

    Raises SpecialisationNeeded if a shape or value is missing, Error for a damaged file or a pattern that matches no
    initializer, and UnsupportedError that lists all unsupported nodes.
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
    """Like import_onnx, but reads the file once and also returns the model's signature."""
    with _bounded():
        file = read_model(model)
        described = read_signature(file)
        return _import(file, described, shapes, values, params, fixed, tied), described


class ReadModel:
    """A model file in memory, from which graphs for several shapes are made.

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
        """Returns this model, parsed once for several graphs. keep: called with each large weight, returns the array
        that holds it from then on."""
        ports = {port.name for port in self._file.proto.graph.input}
        names = [tensor.name for tensor, _ in self._file.initializers() if tensor.name not in ports]
        self._nodes = kept_nodes(self._file.nodes, names)
        self._file = self._file._replace(nodes=())
        self._keep = keep
        return self

    def large_weights(self) -> list[Array]:
        """Returns the weights that are large enough for `keep`."""
        constants = self._constants or {}
        arrays = [item.node.data for item in constants.values() if isinstance(item, Value)]
        return [array for array in arrays if array is not None and array.nbytes >= MIN_KEPT]

    def graph(self, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Array]) -> Graph:
        """Like import_onnx."""
        with _bounded():
            return _import(self._file, self.described, shapes, values, None, (), None, self._initializers, self._nodes)

    def _initializers(self, translator: Translator, wanted: set[str]) -> dict[str, Item | None]:
        file, constants = self._file, self._constants  # `_file` first: another thread sets it last
        if constants is None:
            constants = translator.initializers(file.proto.graph, file.initializers(), wanted, self._kept_array)
            if self._keep is not None:
                self._constants = constants
                self._file = file._replace(initializers=tuple)  # the file's bytes are freed
        return dict(constants)

    def _kept_array(self, array: Array) -> Array:
        return array if self._keep is None or array.nbytes < MIN_KEPT else self._keep(np.ascontiguousarray(array))


def _outside(tensor: Tensor) -> int:
    """Returns the bytes of a tensor's data that are stored outside the proto."""
    if tensor.raw is not None:
        return len(tensor.raw)
    return external_bytes(tensor.proto)


@contextmanager
def _bounded() -> Iterator[None]:
    """Turns a RecursionError or MemoryError that a file causes into an Error."""
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
    """Imports a model. initializers: returns the constants of these names; None: all of the file. nodes: of the model,
    None for all."""
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
        message = f"[import] {count} node{'s' if count > 1 else ''} cannot be imported:\n  {listed}"
        deciding = translator.computed_shapes
        if len(deciding) == count and all(deciding):
            message += "\n  hx.compile and `hexane run` take such a model in parts, because it computes its shapes"
            names = tuple(dict.fromkeys(name for names in deciding for name in names))
            raise ComputedShapes(message, () if IN_FUNCTION in names else names)
        raise UnsupportedError(message)
    graph = Graph(tuple(inputs), tuple(_outputs(proto.graph, scope)), name=check_text(proto.graph.name) or "graph")
    reached = set(graph.nodes)  # unrolled loops may leave writes of states that nothing reads
    updates = tuple(value for value in translator.updates if (state := value.node.inputs[0]) and state.node in reached)
    return with_lengths(advance_streams(replace(graph, updates=updates)))


def _outputs(graph: onnx.GraphProto, scope: Mapping[str, Item | None]) -> list[Port]:
    ports: dict[str, Port] = {}
    for output in graph.output:
        value = scope.get(output.name)
        if value is None:
            raise Error(f"[import] got the output {output.name!r}, which nothing defines")
        if isinstance(value, TensorList):
            raise Error(f"[import] got the output {output.name!r}, {described(value)}, need a tensor")
        if output.name in ports:
            raise Error(f"[import] got the output {output.name!r} twice, need distinct names")
        check_name("output", output.name)
        ports[output.name] = Port(output.name, value)
    if not ports:
        raise Error("[import] got a graph without outputs, need at least one")
    return list(ports.values())
