"""Branches and loops of neural networks. The inner networks read and write names of the network around them. A loop
carries a value to the next iteration if a layer of its body, usually `copy`, writes the value's name again."""

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hexane.dtypes import INT64
from hexane.errors import Error
from hexane.graph import Array, Value
from hexane.importers.bodies import MOST_STEPS, Body, cond_op, is_long, loop_op, scalar
from hexane.importers.coreml.known import ComputedError, deciding_inputs
from hexane.importers.coreml.program import Block, Constant, Declared, Operation
from hexane.importers.coreml.translate import Translator
from hexane.ops.compose import Builder, cast
from hexane.ops.fold import Folder

NEAR_ZERO = 1e-6  # A condition is true if its absolute value is above this number (Apple's BranchLayerParams).


def branch(t: Translator, operation: Operation, _: Any, condition: Value) -> None:
    """Imports one network if the condition is a constant. For a computed condition, writes an op that computes only the
    chosen network, or for cheap networks a select of both results."""
    b: Builder = Folder(operation.label)
    flag = _truth(b, condition)
    if flag.node.data is not None:
        _run(t, operation.blocks[0 if flag.node.data.reshape(-1)[0] else 1])
        return
    try:
        names, values = _chosen(t, b, operation, flag)
    except Error:  # computing both networks may still work; if not, it raises an error
        names, values = [], None
    if values is None:
        names, values = _both(t, b, operation, flag)
    t.values.update(zip(names, values, strict=True))


def _chosen(t: Translator, b: Builder, operation: Operation, flag: Value) -> tuple[list[str], tuple[Value, ...] | None]:
    """Returns the names with a value after the branch, and the values; None for the values if both networks are
    cheap, or if neither reads a value of the network around them."""
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
    """Returns the tensors that a network has written, by name."""
    tensors = {name: t.values.get(name) for name in _names([block])}
    return {name: value for name, value in tensors.items() if isinstance(value, Value)}


def _visible(t: Translator, written: Sequence[Mapping[str, Value]]) -> list[str]:
    """Returns the names that have a value after either branch."""
    then, otherwise = written
    names = [name for name in dict.fromkeys((*then, *otherwise)) if isinstance(t.values.get(name), Value)]
    return names + [
        name for name in then if name not in names and name in otherwise and then[name].type == otherwise[name].type
    ]


def loop(t: Translator, operation: Operation, p: Any, count: Value | None = None) -> None:
    """Unrolls a loop while its condition is a constant. A loop with a computed condition, or of many layers, becomes
    one op."""
    b: Builder = Folder(operation.label)
    broken = ""
    if any(has_jumps(o) for o in operation.blocks[0].operations):
        operation, broken = without_jumps(operation)
        t.values[broken] = b.const(np.zeros(1, np.float32))
    body, condition = operation.blocks
    limit = _limit(b, p, count, bool(condition.operations))
    known = None if limit is None or limit.node.data is None else int(limit.node.data)
    layers, may_be_one = len(body.operations) + len(condition.operations), True
    for step in range(MOST_STEPS + 1):
        if known is not None and step >= known:
            return
        goes_on = _condition(t, b, condition, p.conditionVar, broken)
        if goes_on is not None and goes_on.node.data is not None and not goes_on.node.data.reshape(-1)[0]:
            return
        has_end = (limit is None or known is not None) and (goes_on is None or goes_on.node.data is not None)
        has_end = has_end and step < MOST_STEPS
        if not has_end or (may_be_one and is_long(step if known is None else known, layers)):
            rest = limit if step == 0 or limit is None else b.sub(limit, step)
            try:
                _one_loop(t, b, operation, (p.conditionVar, broken), rest, goes_on)
            except Error as error:
                if not has_end:
                    decides = limit if goes_on is None or goes_on.node.data is not None else goes_on
                    raise ComputedError(str(error), () if decides is None else deciding_inputs(decides)) from None
                may_be_one = False
            else:
                return
        _run(t, body)


def _limit(b: Builder, p: Any, count: Value | None, has_condition: bool) -> Value | None:
    """Returns the highest number of iterations, or None if it is unlimited."""
    if count is not None:
        return cast(b, scalar(b, count), INT64)
    return None if has_condition and not p.maxLoopIterations else b.const(np.array(int(p.maxLoopIterations)))


def _condition(t: Translator, b: Builder, block: Block, name: str, broken: str) -> Value | None:
    """Returns a loop's condition, or None for a loop without one. broken: the name of the flag that `loopBreak` sets,
    "" in a loop without `loopBreak`."""
    ends = _truth(b, t.item(broken)) if broken else None
    if not block.operations:
        return None if ends is None else b.logical_not(ends)
    if ends is None:
        _run(t, block)
        return _truth(b, t.item(name))
    _run(t, Block((), (_unless(broken, block.operations, ""),), ()))
    return b.logical_and(_truth(b, t.item(name)), b.logical_not(ends))


def _one_loop(
    t: Translator, b: Builder, operation: Operation, ends: tuple[str, str], limit: Value | None, first: Value | None
) -> None:
    """Writes a loop as one op. ends: the names of the condition and of the flag that `loopBreak` sets."""
    body_block, condition = operation.blocks
    names = [n for n in _names(operation.blocks) if isinstance(t.values.get(n), Value)]
    carried = [t.item(n) for n in names]
    body = Body.of_loop(carried)
    with t.body(body):
        t.values.update(zip(names, body.given[2:], strict=True))
        _run(t, body_block)
        goes_on = _condition(t, b, condition, *ends)
        results = [t.item(n) for n in names]
    truth = b.const(np.array(True)) if goes_on is None else goes_on
    t.values.update(zip(names, loop_op(b, body, carried, [truth, *results], limit, first), strict=True))


# ---- loopBreak and loopContinue ----

JUMPS = ("loopBreak", "loopContinue")
_SET = "a flag is set"


def has_jumps(operation: Operation) -> bool:
    """True for a layer that ends an iteration, and for a branch that contains one. Layers in an inner loop end the
    inner loop's iteration."""
    if operation.op != "branch":
        return operation.op in JUMPS
    return any(has_jumps(o) for block in operation.blocks for o in block.operations)


def without_jumps(operation: Operation) -> tuple[Operation, str]:
    """if c: break; rest  ->  if c: broken = jumped = 1; if not jumped: rest

    Returns the loop without `loopBreak` and `loopContinue`, and the name of the flag `broken`. The layers after a
    branch with a jump are moved into a second branch, which runs them unless the flag `jumped` is set.
    """
    broken, jumped = (f"{what} {operation.label} {id(operation)}" for what in ("broken", "jumped"))
    body, condition = operation.blocks
    given = (_set(jumped, 0.0), *_guarded(body.operations, broken, jumped))
    return replace(operation, blocks=(replace(body, operations=given), condition)), broken


def _guarded(operations: Sequence[Operation], broken: str, jumped: str) -> tuple[Operation, ...]:
    for i, operation in enumerate(operations):
        before, rest = operations[:i], operations[i + 1 :]
        if operation.op in JUMPS:  # the layers after a jump are unreachable
            return (*before, *([_set(broken, 1.0)] if operation.op == "loopBreak" else []), _set(jumped, 1.0))
        if has_jumps(operation):
            blocks = [replace(block, operations=_guarded(block.operations, broken, jumped))
                      for block in operation.blocks]  # fmt: skip
            after = _guarded(rest, broken, jumped)
            return (
                *before, replace(operation, blocks=tuple(blocks)),
                *([_unless(jumped, after, operation.label)] if after else []),
            )  # fmt: skip
    return tuple(operations)


def _set(name: str, number: float) -> Operation:
    given = {"layer": (Constant(np.full(1, number, np.float32)),), "x": ()}
    return Operation(_SET, given, ((name, Declared(None)),), "")


def _unless(flag: str, operations: Sequence[Operation], label: str) -> Operation:
    nothing, rest = Block((), (), ()), Block((), tuple(operations), ())
    return Operation("branch", {"layer": (Constant(None),), "x": (flag,)}, (), label, (nothing, rest))


def set_flag(t: Translator, operation: Operation, array: Array) -> None:
    t.values[operation.results[0][0]] = Folder(operation.label).const(array)


def stray(*_: Any) -> None:
    raise Error("got it outside of the bodyNetwork of a loop, need it there")


def _run(t: Translator, block: Block) -> None:
    """Translates the layers of a network, which write names of the network around it."""
    for operation in block.operations:
        try:
            t.operation(operation)
        except ComputedError:
            raise
        except Error as error:
            raise type(error)(f"{operation.op} {operation.label!r}: {error}") from None


def _names(blocks: Sequence[Block]) -> list[str]:
    """Returns the names that blocks write, inner blocks included."""
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


CONTROL: Mapping[str, Callable[..., None]] = {
    "branch": branch, "loop": loop, _SET: set_flag, **dict.fromkeys(JUMPS, stray),
}  # fmt: skip
