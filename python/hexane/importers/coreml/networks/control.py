"""Branches and loops of neural networks. Their networks read and write the names of the network around them: the layer
`copy` may write a name again, which carries a value from round to round."""

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hexane.dtypes import INT64
from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.bodies import MOST_STEPS, Body, cond_op, is_long, loop_op, scalar
from hexane.importers.coreml.known import ComputedError, deciding_inputs
from hexane.importers.coreml.program import Block, Operation
from hexane.importers.coreml.translate import Translator
from hexane.ops.compose import Builder, cast
from hexane.ops.fold import Folder

NEAR_ZERO = 1e-6  # a condition is true above it, by Apple's description of BranchLayerParams


def branch(t: Translator, operation: Operation, _: Any, condition: Value) -> None:
    """One network where the condition is known. Else one op that computes only the chosen network, or a choice between
    the results of both, where that is cheaper."""
    b: Builder = Folder(operation.label)
    flag = _truth(b, condition)
    if flag.node.data is not None:
        _run(t, operation.blocks[0 if flag.node.data.reshape(-1)[0] else 1])
        return
    try:
        names, values = _chosen(t, b, operation, flag)
    except Error:  # computing both may work; else it raises the error
        names, values = [], None
    if values is None:
        names, values = _both(t, b, operation, flag)
    t.values.update(zip(names, values, strict=True))


def _chosen(t: Translator, b: Builder, operation: Operation, flag: Value) -> tuple[list[str], tuple[Value, ...] | None]:
    """The names that have a value after the branch, and their values; None if both networks are cheap."""
    bodies = [Body() for _ in operation.blocks]
    written = []
    for body, block in zip(bodies, operation.blocks, strict=True):
        with t.body(body):
            _run(t, block)
            written.append(_tensors(t, block))
    names = _visible(t, written)
    results = [
        [part[name] if name in part else body.capture(t.item(name)) for name in names]
        for body, part in zip(bodies, written, strict=True)
    ]
    return names, cond_op(b, flag, bodies, results) if names else ()


def _both(t: Translator, b: Builder, operation: Operation, flag: Value) -> tuple[list[str], tuple[Value, ...]]:
    outer, written = t.values, []
    for block in operation.blocks:
        t.values = ChainMap({}, outer)
        try:
            _run(t, block)
            written.append(_tensors(t, block))
        finally:
            t.values = outer
    names = _visible(t, written)
    pairs = [[part.get(name) or t.item(name) for part in written] for name in names]
    for name, (one, other) in zip(names, pairs, strict=True):
        if one.type != other.type:
            raise Error(f"got {name!r} as {one.type} and {other.type}, need one type after either branch")
    return names, tuple(b.select(flag, one, other) for one, other in pairs)


def _tensors(t: Translator, block: Block) -> dict[str, Value]:
    """The tensors that a network has written."""
    tensors = {name: t.values.get(name) for name in _names([block])}
    return {name: value for name, value in tensors.items() if isinstance(value, Value)}


def _visible(t: Translator, written: Sequence[Mapping[str, Value]]) -> list[str]:
    """The names that have a value after either branch."""
    then, otherwise = written
    names = [name for name in dict.fromkeys((*then, *otherwise)) if isinstance(t.values.get(name), Value)]
    return names + [
        name for name in then if name not in names and name in otherwise and then[name].type == otherwise[name].type
    ]


def loop(t: Translator, operation: Operation, p: Any, count: Value | None = None) -> None:
    """Rounds one after the other, as long as it is known that there is another; else, or where there would be many
    layers, one op."""
    b: Builder = Folder(operation.label)
    body, condition = operation.blocks
    limit = _limit(b, p, count, bool(condition.operations))
    known = None if limit is None or limit.node.data is None else int(limit.node.data)
    layers, may_be_one = len(body.operations) + len(condition.operations), True
    for step in range(MOST_STEPS + 1):
        if known is not None and step >= known:
            return
        goes_on = _condition(t, b, condition, p.conditionVar)
        if goes_on is not None and goes_on.node.data is not None and not goes_on.node.data.reshape(-1)[0]:
            return
        has_end = (limit is None or known is not None) and (goes_on is None or goes_on.node.data is not None)
        has_end = has_end and step < MOST_STEPS
        if not has_end or (may_be_one and is_long(step if known is None else known, layers)):
            rest = limit if step == 0 or limit is None else b.sub(limit, step)
            try:
                _one_loop(t, b, operation, p.conditionVar, rest, goes_on)
            except Error as error:
                if not has_end:
                    decides = limit if goes_on is None or goes_on.node.data is not None else goes_on
                    raise ComputedError(str(error), () if decides is None else deciding_inputs(decides)) from None
                may_be_one = False
            else:
                return
        _run(t, body)


def _limit(b: Builder, p: Any, count: Value | None, has_condition: bool) -> Value | None:
    """The most rounds; None for any number."""
    if count is not None:
        return cast(b, scalar(b, count), INT64)
    return None if has_condition and not p.maxLoopIterations else b.const(np.array(int(p.maxLoopIterations)))


def _condition(t: Translator, b: Builder, block: Block, name: str) -> Value | None:
    """None for a loop without a condition."""
    if not block.operations:
        return None
    _run(t, block)
    return _truth(b, t.item(name))


def _one_loop(
    t: Translator, b: Builder, operation: Operation, name: str, limit: Value | None, first: Value | None
) -> None:
    body_block, condition = operation.blocks
    names = [n for n in _names(operation.blocks) if isinstance(t.values.get(n), Value)]
    carried = [t.item(n) for n in names]
    body = Body.of_loop(carried)
    with t.body(body):
        t.values.update(zip(names, body.given[2:], strict=True))
        _run(t, body_block)
        goes_on = _condition(t, b, condition, name)
        results = [t.item(n) for n in names]
    truth = b.const(np.array(True)) if goes_on is None else goes_on
    t.values.update(zip(names, loop_op(b, body, carried, [truth, *results], limit, first), strict=True))


def _run(t: Translator, block: Block) -> None:
    """The layers of a network, which write the names around it."""
    for operation in block.operations:
        try:
            t.operation(operation)
        except ComputedError:
            raise
        except Error as error:
            raise type(error)(f"{operation.op} {operation.label!r}: {error}") from None


def _names(blocks: Sequence[Block]) -> list[str]:
    """The names that blocks write."""
    names: dict[str, None] = {}
    for block in blocks:
        for operation in block.operations:
            names.update((name, None) for name, _ in operation.results)
            names.update((name, None) for name in _names(operation.blocks))
    return list(names)


def _truth(b: Builder, condition: Value) -> Value:
    if condition.type.size != 1:
        raise Error(f"got a condition {condition.type}, need one number")
    return b.greater(b.abs(scalar(b, condition)), NEAR_ZERO)


CONTROL: Mapping[str, Callable[..., None]] = {"branch": branch, "loop": loop}
