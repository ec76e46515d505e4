"""Splits a model with computed shapes at the values that decide them, such as the length of generated speech."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import onnx
from onnx import helper

from hexane.errors import UnsupportedError
from hexane.graph import Array
from hexane.importers.onnx.load import ModelFile
from hexane.importers.onnx.order import label, reads, sort_nodes
from hexane.importers.onnx.schema import plain_domain
from hexane.importers.onnx.shape_inputs import SHAPE_ONLY, inner_nodes, shape_names

_SEQUENCE_OPS = frozenset((
    "SplitToSequence", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert",
))  # fmt: skip

# A shape that depends on the result of one of these ops does not follow from the shapes of inputs and a few integers.
_NETWORK_OPS = frozenset((
    "Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "LayerNormalization", "Softmax", "Exp",
))  # fmt: skip
_COUNTING_OPS = frozenset(("NonZero", "Compress", "Unique", "NonMaxSuppression"))  # ops that count elements
_RANDOM_OPS = frozenset((
    "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial", "Dropout",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stages:
    """A model in two parts. `first` computes the values in `cut` and the outputs in `first_outputs`. The model's second
    part, made by `rest`, reads the cut and the inputs in `rest_inputs`."""

    first: ModelFile
    cut: tuple[str, ...]
    first_outputs: tuple[str, ...]
    rest_inputs: tuple[str, ...]
    _file: ModelFile = field(repr=False)
    _rest_nodes: tuple[onnx.NodeProto, ...] = field(repr=False)

    def rest(self, cut: Mapping[str, Array]) -> ModelFile:
        """Returns the second part. cut: the arrays of the cut values. The inputs of the second part have their dtypes
        and ranks."""
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), [None] * array.ndim)
            for name, array in cut.items()
        ]
        inputs += [info for info in self._file.proto.graph.input if info.name in self.rest_inputs]
        outputs = [o for o in self._file.proto.graph.output if o.name not in self.first_outputs]
        return _part(self._file, self._rest_nodes, inputs, outputs)


def computes_shapes(file: ModelFile) -> bool:
    """True if a shape may depend on results of the network, not only on the shapes of its inputs and a few integers."""
    if any(node.op_type in _COUNTING_OPS for node in file.nodes):
        return True
    if not any(node.op_type in _NETWORK_OPS for node in file.nodes):
        return False
    names = shape_names(file.nodes, file.proto.functions)
    return any(node.op_type in _NETWORK_OPS and not names.isdisjoint(node.output) for node in file.nodes)


def split_at(file: ModelFile, names: Collection[str]) -> Stages | None:
    """Returns the model in two parts, of which the first computes these values. None if no node computes one of
    them."""
    nodes, graph = tuple(file.nodes), file.proto.graph
    makers = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    if any(name not in makers for name in names):
        return None
    constants = {tensor.name for tensor, _ in file.initializers()}
    ports = {info.name for info in graph.input}
    inputs = ports - constants
    first = _upstream(names, nodes, makers, frozenset())
    by_contents = _by_contents(nodes, {*inputs, *constants}, inputs, {f.name for f in file.proto.functions})
    # A sequence is no port: both parts make it from its tensors.
    tensors = [nodes[i] for i in first if nodes[i].op_type not in _SEQUENCE_OPS]
    made = {name for node in tensors for name in node.output if name in by_contents}
    if not made:  # the second part would be the whole model
        raise UnsupportedError(
            f"[import] got the shapes from {next(iter(names))!r}, which depends on inputs with defaults only, need"
            " those as input_values"
        )
    outputs = [output.name for output in graph.output]
    rest = _upstream([name for name in outputs if name not in made], nodes, makers, made)
    rest_reads = {name for i in rest for name in reads(nodes[i])} | {n for n in outputs if n in ports}
    cut = tuple(name for i in sorted(first) for name in nodes[i].output if name in made and name in rest_reads)
    first_outputs = tuple(name for name in outputs if name in made)
    first_nodes = tuple(nodes[i] for i in sorted(first))
    first_reads = {name for node in first_nodes for name in reads(node)}
    results = [helper.make_empty_tensor_value_info(name) for name in dict.fromkeys((*cut, *first_outputs))]
    head = _part(file, first_nodes, [i for i in graph.input if i.name in first_reads], results)
    rest_inputs = tuple(info.name for info in graph.input if info.name in rest_reads)
    return Stages(head, cut, first_outputs, rest_inputs, file, tuple(nodes[i] for i in sorted(rest)))


def _upstream(
    names: Iterable[str], nodes: tuple[onnx.NodeProto, ...], makers: Mapping[str, int], known: Collection[str]
) -> set[int]:
    """Returns the indices of the nodes that compute the names from the values in `known`."""
    found: set[int] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        index = None if name in known else makers.get(name)
        if index is not None and index not in found:
            found.add(index)
            pending += reads(nodes[index])
    return found


def _by_contents(
    nodes: tuple[onnx.NodeProto, ...], known: Collection[str], inputs: set[str], functions: Collection[str]
) -> set[str]:
    """Returns the values that depend on the contents of inputs or on random numbers. Both parts compute all other
    values, which depend on shapes only. functions: the names of the model's own ops, which may draw random numbers."""
    result = set(inputs)
    for index in sort_nodes(nodes, known, known):
        node = nodes[index]
        every = (node, *inner_nodes(node))
        draws = any(n.op_type in _RANDOM_OPS or n.op_type in functions or plain_domain(n.domain) for n in every)
        if draws or (node.op_type not in SHAPE_ONLY and not result.isdisjoint(reads(node))):
            result.update(name for name in node.output if name)
    return result


def _part(
    file: ModelFile,
    nodes: tuple[onnx.NodeProto, ...],
    inputs: Iterable[onnx.ValueInfoProto],
    outputs: Iterable[onnx.ValueInfoProto],
) -> ModelFile:
    """Returns a model of these nodes with the file's functions and initializers."""
    old = file.proto
    graph = onnx.GraphProto(name=old.graph.name)
    graph.input.extend(inputs)
    graph.output.extend(outputs)
    proto = onnx.ModelProto(ir_version=old.ir_version, graph=graph)
    proto.opset_import.extend(old.opset_import)
    proto.functions.extend(old.functions)
    named = _named(file, nodes)
    wanted = {name for node in named for name in reads(node)} | {output.name for output in graph.output}
    return ModelFile(proto, named, lambda: (t for t in file.initializers() if t.proto.name in wanted), file.folder)


def _named(file: ModelFile, nodes: tuple[onnx.NodeProto, ...]) -> tuple[onnx.NodeProto, ...]:
    """Returns the nodes with the names that they have in the whole file, which messages show."""
    places = {node.output[0]: i for i, node in enumerate(file.nodes) if node.output and not node.name}
    result = []
    for node in nodes:
        if not node.name and node.output:
            whole = onnx.NodeProto()
            whole.CopyFrom(node)
            whole.name = label(node, places[node.output[0]])
            node = whole
        result.append(node)
    return tuple(result)
