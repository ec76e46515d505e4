"""Sequences of tensors, which exist only at import: reading an element returns the value that was stored."""

import numpy as np

from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.onnx.node import NOTHING, Builder, OnnxNode, Outputs, Result, TensorList, axis_of, described
from hexane.importers.onnx.registry import onnx_op


@onnx_op("SequenceConstruct")
def sequence_construct(b: Builder, n: OnnxNode) -> Result:
    return TensorList(n.value(i) for i in range(len(n.inputs)))


@onnx_op("SequenceEmpty")
def sequence_empty(b: Builder, n: OnnxNode) -> Result:
    n.attrs.get("dtype")
    return TensorList()


@onnx_op("SequenceInsert", shape_inputs=(2,))
def sequence_insert(b: Builder, n: OnnxNode) -> Result:
    tensors = n.sequence(0)
    at = _position(n, 2, len(tensors), end=True) if n.has(2) else len(tensors)
    return TensorList((*tensors[:at], n.value(1), *tensors[at:]))


@onnx_op("SequenceErase", shape_inputs=(1,))
def sequence_erase(b: Builder, n: OnnxNode) -> Result:
    tensors = n.sequence(0)
    at = _position(n, 1, len(tensors)) if n.has(1) else len(tensors) - 1
    if not tensors:
        raise Error("got an empty sequence, need a tensor to take out")
    return TensorList((*tensors[:at], *tensors[at + 1 :]))


@onnx_op("SequenceAt", shape_inputs=(1,))
def sequence_at(b: Builder, n: OnnxNode) -> Result:
    tensors = n.sequence(0)
    return tensors[_position(n, 1, len(tensors))]


def _position(n: OnnxNode, index: int, length: int, end: bool = False) -> int:
    """Returns a constant position, counted from the start. `end`: the position after the last element is valid too."""
    at = n.integer(index)
    if not -length <= at < length + end:
        raise Error(f"position: got {at}, need {-length}..{length + end - 1}")
    return at + length if at < 0 else at


@onnx_op("SequenceLength")
def sequence_length(b: Builder, n: OnnxNode) -> Result:
    return b.cast(b.const(len(n.sequence(0))), dtype="int64")


@onnx_op("SplitToSequence", shape_inputs=(1,))
def split_to_sequence(b: Builder, n: OnnxNode) -> Result:
    """Splits into pieces of extent 1, of one size (the last piece may be smaller), or of listed sizes. Only pieces of
    extent 1 can drop the axis."""
    x = n.value(0)
    axis = axis_of(n.attrs["axis"], len(x.shape))
    extent, keep = x.shape[axis], n.attrs["keepdims"]
    if not n.has(1):
        sizes = [1] * extent
    elif n.value(1).shape == ():
        size = n.integer(1)
        if size <= 0:
            raise Error(f"split: got {size}, need a size above 0")
        sizes = [min(size, extent - at) for at in range(0, extent, size)]
    else:
        sizes = list(n.ints(1))
        if min(sizes, default=0) < 0 or sum(sizes) != extent:
            raise Error(f"split: got {sizes} of {extent}, need sizes that add up to it")
    pieces, at = [], 0
    for size in sizes:
        begin, end = [0] * len(x.shape), list(x.shape)
        begin[axis], end[axis] = at, at + size
        piece = b.slice_by_index(x, begin=begin, end=end)
        at += size
        pieces.append(piece if keep or n.has(1) else b.squeeze(piece, axes=[axis]))
    return TensorList(pieces)


@onnx_op("ConcatFromSequence")
def concat_from_sequence(b: Builder, n: OnnxNode) -> Result:
    tensors = n.sequence(0)
    if not tensors:
        raise Error("got an empty sequence, need a tensor")
    join = b.stack if n.attrs["new_axis"] else b.concat
    return join(*tensors, axis=n.attrs["axis"])


@onnx_op("Optional")
def optional(b: Builder, n: OnnxNode) -> Result:
    n.attrs.get("type")
    return n.item(0) if n.inputs and n.inputs[0] is not None else NOTHING


@onnx_op("OptionalHasElement")
def optional_has_element(b: Builder, n: OnnxNode) -> Result:
    has = bool(n.inputs) and n.inputs[0] is not None and n.item(0) is not NOTHING
    return b.const(np.array(has))


@onnx_op("OptionalGetElement")
def optional_get_element(b: Builder, n: OnnxNode) -> Result:
    item = n.item(0)
    if item is NOTHING:
        raise Error(f"got {described(item)}, need one with an element")
    return item


@onnx_op("Identity", valid_lengths=True)
def identity(b: Builder, n: OnnxNode) -> Result:
    return n.item(0)


@onnx_op("SequenceMap")
def sequence_map(b: Builder, n: OnnxNode) -> Outputs:
    """Applies the body to each tensor of the first sequence. The other inputs are sequences of the same length, or
    tensors that every call of the body reads."""
    first, *others = n.sequence(0), *(n.item(i) for i in range(1, len(n.inputs)))
    graph = n.attrs["body"]
    for i, item in enumerate(others, 1):
        if isinstance(item, TensorList) and (item is NOTHING or len(item) != len(first)):
            raise Error(f"input {i}: got {described(item)}, need a tensor or a sequence of {len(first)}")
    columns: list[list[Value]] = [[] for _ in graph.output]
    for step, tensor in enumerate(first):
        given = [item[step] if isinstance(item, TensorList) else item for item in others]
        outputs = n.run(graph, [tensor, *given], step)
        if outputs is None:
            return None
        for column, output in zip(columns, outputs, strict=True):
            if not isinstance(output, Value):
                raise Error(f"got {described(output)} out of the body, need a tensor")
            column.append(output)
    return list(map(TensorList, columns))
