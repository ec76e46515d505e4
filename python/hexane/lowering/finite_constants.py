"""Replaces infinities for the engine: masks become finite, and comparisons use the largest finite number. All other
infinite constants are stored as tensors in the weight file, because MIL text cannot express them."""

import math

import numpy as np

from hexane.errors import Error
from hexane.graph import Array, Graph, Node, Value, constant, make_node
from hexane.lowering.masks import COMPARES, FLOOR, mask_operands
from hexane.ops import OPS, apply
from hexane.targets.rules import rules

LARGEST_FINITE = 65504.0  # largest finite number of fp16, exactly
SCALES = ("mul", "real_div")
MOVES = ("reshape", "transpose", "expand_dims", "squeeze")
ENDS = ("softmax", "exp", "exp2")  # Ops with equal results for -40000 and -inf.
# Comparison with an infinity (True: positive) -> the equivalent comparison with the largest finite number of the same
# sign. not_equal becomes the negation of equal, because not_equal is true for NaN.
_FINITE_COMPARES = {
    ("equal", True): "greater",
    ("greater_equal", True): "greater",
    ("less", True): "less_equal",
    ("equal", False): "less",
    ("less_equal", False): "less",
    ("greater", False): "greater_equal",
}
_MIRRORED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}


def without_infinities(graph: Graph) -> Graph:
    """softmax(select(%m, %scores, -inf))  ->  softmax(select(%m, %scores, -40000))
    equal(%x, inf)                         ->  greater(%x, 65504)
    select(%m, %x, inf)                    ->  select(%m, %x, inf : fp16[1])

    For graphs in fp16. A mask becomes finite only if nothing but the weights of a softmax depends on it. A sum of a
    score and a finite mask is limited to a floor, so that two masks do not add up to an infinity, and all hidden scores
    are equal. The softmax of a row whose keys are all hidden is then uniform, not NaN.
    """
    if not any(_infinite(node) for node in graph.nodes):
        return graph
    places = _hiding_places(graph)
    masked: set[Value] = set()  # values of the old graph that include a finite mask

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        hiding = places.get(id(node), ())
        if node.op in COMPARES:
            return _compared(node, inputs, masked)
        given = list(inputs)
        hidden = False
        for i, old in enumerate(node.inputs):
            if old is None:
                continue
            if i in hiding and (old in masked or _infinite(old.node)):
                hidden = True
                given[i] = _finite_mask(old, given[i])
            elif _infinite(old.node) and not old.shape:
                given[i] = _as_tensor(node, old)
        if not hidden:
            return (
                None
                if tuple(given) == inputs
                else make_node(node.op, given, node.attrs, node.types, node.sources).values
            )
        results = make_node(node.op, given, node.attrs, node.types, node.sources).values
        if node.op not in ENDS:
            masked.update(node.values)
        if node.op in ("add", "sub"):
            floor = constant(np.array(FLOOR, results[0].dtype.numpy), node.sources)
            results = tuple(apply(OPS["maximum"], [results[0], floor], {}, node.sources))
        return results

    return graph.rewrite(change)


def _infinite(node: Node) -> bool:
    if node.op != "const" or node.data is None or node.types[0].dtype.kind != "float":
        return False
    return not np.isfinite(node.data.astype(np.float32)).all()


def _hiding_places(graph: Graph) -> dict[int, tuple[int, ...]]:
    """Returns, for the id of each node, the positions of operands whose infinities may become finite, because only
    softmax weights and comparisons with the floor depend on them."""
    places = mask_operands(graph.nodes)
    exact = {port.value for port in graph.outputs}  # Values that must stay exact.
    compared: set[Value] = set()  # Values that are compared with the floor; a scale would lift them above the floor.
    result: dict[int, tuple[int, ...]] = {}
    for node in reversed(graph.nodes):
        read = [v for v in node.inputs if v is not None]
        is_compared = any(v in compared for v in node.values)
        if node.op in COMPARES and any(_separates(v) for v in read):
            compared.update(read)
            continue
        own = places.get(id(node), ())
        if is_compared and not own and (node.op == "reduce_max" or node.op in MOVES):
            own = (0,)
        scaled = node.op in SCALES and is_compared
        if scaled or node.op in (*COMPARES, "log_softmax") or any(v in exact for v in node.values):
            own = own if node.op in ENDS else ()
        result[id(node)] = own
        if is_compared:
            compared.update(read)
        exact.update(v for i, v in enumerate(node.inputs) if v is not None and i not in own)
    return result


def _separates(value: Value) -> bool:
    """True if the value is one number that separates hidden scores from others: an infinity or a number above FLOOR."""
    data = value.node.data
    if data is None or value.type.size != 1 or value.dtype.kind != "float":
        return False
    return bool(np.isinf(data).all() or (data > FLOOR).all())


def _finite_mask(old: Value, new: Value | None) -> Value | None:
    if old.node.data is None or not _infinite(old.node):
        return new
    most: int = rules()["infinite_mask"].number("value")
    data: Array = old.node.data
    return constant(np.where(np.isinf(data), np.copysign(most, data), data).astype(data.dtype), old.node.sources)


def _compared(node: Node, inputs: tuple[Value | None, ...], masked: set[Value]) -> tuple[Value, ...] | None:
    """Rewrites a comparison with an infinity on the left or on the right. Returns None if the node stays unchanged."""
    sides = [v is not None and v.node.data is not None and v.type.size == 1 and _infinite(v.node) for v in node.inputs]
    if sides.count(True) != 1 or not math.isinf(node.inputs[sides.index(True)].node.data.item()):  # type: ignore[union-attr]
        return _with_tensors(node, inputs)
    at = sides.index(True)
    limit, x, old = node.inputs[at], inputs[1 - at], node.inputs[1 - at]
    assert limit is not None
    assert limit.node.data is not None
    assert x is not None
    op = _MIRRORED.get(node.op, node.op) if at == 0 else node.op
    positive = limit.node.data.item() > 0
    if old in masked and not positive:
        finite = FLOOR
        finite_op = {"equal": "less_equal", "less_equal": "less_equal", "greater": "greater"}.get(op)
    else:
        finite, finite_op = math.copysign(LARGEST_FINITE, limit.node.data.item()), _FINITE_COMPARES.get((op, positive))
    opposite = op == "not_equal"
    if opposite:
        finite_op = "less_equal" if old in masked and not positive else _FINITE_COMPARES["equal", positive]
    if finite_op is None:  # the result does not depend on a finite x
        return _with_tensors(node, inputs)
    bound = constant(np.full(limit.shape, finite, limit.dtype.numpy), limit.node.sources)
    results = apply(OPS[finite_op], [x, bound], {}, node.sources)
    return tuple(apply(OPS["logical_not"], results, {}, node.sources)) if opposite else tuple(results)


def _with_tensors(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
    given = [
        _as_tensor(node, old) if old is not None and _infinite(old.node) and not old.shape else v
        for v, old in zip(inputs, node.inputs, strict=True)
    ]
    if tuple(given) == inputs:
        return None
    return make_node(node.op, given, node.attrs, node.types, node.sources).values


def _as_tensor(node: Node, value: Value) -> Value:
    """Returns a scalar as a tensor with one axis, because the compiler reads no scalars from a file. Another operand of
    the node must have axes, so that the result keeps its shape. Raises Error if MIL accepts no tensor for this
    operand."""
    assert value.node.data is not None
    wide = any(v is not None and v.shape for v in node.inputs)
    if not wide or not OPS[node.op].elementwise:
        got = f"got the number {value.node.data.item()} where MIL takes no tensor"
        raise Error(f"[emit] {node.where}: {got}, need it finite or the op on the host")
    return constant(value.node.data.reshape(1), value.node.sources)
