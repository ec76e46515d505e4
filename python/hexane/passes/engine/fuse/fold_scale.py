"""Merges two consecutive layers of gain and offset into one."""

import numpy as np

from hexane.graph import Array, Graph, Node, Value, constant
from hexane.lowering.weights import is_constant
from hexane.ops import OPS, apply
from hexane.ops.match import joined_sources, made_by
from hexane.ops.slots import moved, slot
from hexane.passes.engine.chain import Readers, slots_of
from hexane.targets import Target

STAGE = "fold_scale"


def fold_scale(graph: Graph, target: Target) -> Graph:
    """anec.gain_offset_control(anec.gain_offset_control(%x, %g, none), none, %o)  ->  anec.gain_offset_control(%x, %g, %o)

    Requires that nothing else reads the first layer, that both have the same axis, and that their combined constants
    neither overflow nor underflow in fp16. A combined constant that the layer's dtype does not hold exactly is stored
    in fp32. The first gain and offset may also be the last slot of another layer.
    """  # noqa: E501
    if "anec.gain_offset_control" not in graph.ops:
        return graph
    readers = Readers(graph)

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        readers.see(node, inputs)
        if node.op != "anec.gain_offset_control" or inputs[0] is None or not readers.alone(inputs[0]):
            return None
        if slots_of(inputs[0].node):
            scaled = into_slot(node, inputs, inputs[0].node, node.attrs["axis"])
            return None if scaled is None else (scaled,)
        first = made_by(inputs[0], node.op)
        if first is None:
            return None
        axis = _axis(first, inputs, node)
        if axis is None or not all(map(is_constant, (*inputs[1:3], *first.inputs[1:3]))):
            return None
        gain, offset = joined(
            _numbers(first.inputs[1]), _numbers(first.inputs[2]), _numbers(inputs[1]), _numbers(inputs[2])
        )
        if not (_held(gain) and _held(offset)):
            return None
        operands = [as_constant(v, node) for v in (gain, offset)]
        attrs = {**node.attrs, "axis": axis}
        return apply(OPS[node.op], [first.inputs[0], *operands, *inputs[3:]], attrs, joined_sources(first, node))

    return graph.rewrite(change)


def into_slot(node: Node, inputs: tuple[Value | None, ...], producer: Node, axis: int) -> Value | None:
    """Merges the node into the last slot of the producer if that slot is a gain and offset, else returns None.

    axis: the node's axis, as an axis of the producer's result.
    """
    slots = slots_of(producer)
    if not slots or slots[-1].op != "gain_offset" or slots_of(node):
        return None
    v = dict(slots[-1].attributes)
    first = [None if v[name] < 0 else producer.inputs[v[name]] for name in ("gain", "offset")]
    axes = {
        a
        for a, operands in ((v["axis"], first), (axis, inputs[1:3]))
        if any(o is not None and o.shape for o in operands)
    }
    if len(axes) > 1 or not all(map(is_constant, (*first, *inputs[1:3]))):
        return None
    both = joined(*map(_numbers, first), *map(_numbers, inputs[1:3]))
    if not all(map(_held, both)):
        return None
    operands = [as_constant(numbers, producer) for numbers in both]
    gone = [v[name] for name in ("gain", "offset") if v[name] >= 0]
    kept = [i for i in range(len(producer.inputs)) if i not in gone]
    places = iter(range(len(kept), len(kept) + 2))
    gain, offset = (-1 if o is None else next(places) for o in operands)
    earlier = [moved(s, {old: new for new, old in enumerate(kept)}) for s in slots[:-1]]
    chain = (*earlier, slot("gain_offset", gain=gain, offset=offset, axis=next(iter(axes), 0)))
    given = [*(producer.inputs[i] for i in kept), *(o for o in operands if o is not None)]
    return apply(OPS[producer.op], given, {**producer.attrs, "epilogue": chain}, joined_sources(producer, node))[0]


def _axis(first: Node, inputs: tuple[Value | None, ...], second: Node) -> int | None:
    """Returns the common axis of both layers, or None if they differ. A layer with one number for all channels fits any
    axis."""
    axes = {
        n.attrs["axis"]
        for n, operands in ((first, first.inputs), (second, inputs))
        if any(v is not None and v.shape for v in operands[1:3])
    }
    return None if len(axes) > 1 else next(iter(axes), 0)


def _numbers(value: Value | None) -> Array | None:
    return None if value is None or value.node.data is None else value.node.data.astype(np.float64)


def _held(numbers: Array | None) -> bool:
    """True if fp16 holds each number exactly or as a normal number."""
    if numbers is None:
        return True
    limits = np.finfo(np.float16)
    with np.errstate(all="ignore"):
        narrow = numbers.astype(np.float16)
    near = np.abs(narrow) >= limits.tiny
    return bool((np.isfinite(narrow) & (near | (narrow == numbers))).all())


def joined(
    gain: Array | None, offset: Array | None, then_gain: Array | None, then_offset: Array | None
) -> tuple[Array | None, Array | None]:
    """Returns the gain and the offset that equal two consecutive pairs, computed in fp64."""
    with np.errstate(all="ignore"):
        both = then_gain if gain is None else gain if then_gain is None else gain * then_gain
        carried = offset if offset is None or then_gain is None else offset * then_gain
        total = then_offset if carried is None else carried if then_offset is None else carried + then_offset
    return both, total


def as_constant(numbers: Array | None, node: Node) -> Value | None:
    """Returns a constant in the node's dtype if that holds the numbers exactly, else in fp32."""
    if numbers is None:
        return None
    with np.errstate(all="ignore"):
        own = numbers.astype(node.types[0].dtype.numpy)
        fits = (own.astype(np.float64) == numbers).all()
        return constant(own if fits else numbers.astype(np.float32), node.sources)
