"""Functions that call functions, branches, loops and states."""

from collections.abc import Sequence

from hexane.dtypes import BOOL
from hexane.graph import Value
from hexane.importers.coreai.attributes import TOKEN, Symbol, attributes_of
from hexane.importers.coreai.operations import Body
from hexane.importers.coreai.registry import COMPOSITES, Complex, Context, Found, Item, handles

MOST_ROUNDS = 1024  # the most iterations of a loop that is unrolled


@handles("dataflow.invoke")
def _invoke(c: Context) -> Found:
    """Returns the op that a private function's description names, or else inlines the function's body."""
    callee = c.setting(1)
    name = callee.path[-1] if isinstance(callee, Symbol) and callee.path else ""
    function = c.translator.asset.functions.get(name)
    if function is None:
        c.fail(f"got a call of {name!r}, need a function of the file")
    if function.composite is not None and function.composite.name in COMPOSITES:
        results = COMPOSITES[function.composite.name](c, attributes_of(function.composite))
        if results is not None:
            return results
    return c.translator.inline(function.body, c.operands)


@handles("dataflow.namespace", "dataflow.isolated_group")
def _group(c: Context) -> Found:
    (body,) = c.operation.bodies
    return c.translator.inline(body, c.operands[: len(body.arguments)])


# ---- states: reads and writes run in the file's order, so their ordering tokens are ignored ----


@handles("dataflow.create_token", "dataflow.join_token")
def _token(c: Context) -> Found:
    return TOKEN


@handles("dataflow.read_handle")
def _read(c: Context) -> Found:
    handle = c.operation.operands[0]
    state = c.translator.states.get(handle)
    if state is None:
        c.fail("got a state that is no argument of the function, need one that is")
    shape = tuple(handle.type.of.shape)
    return (state if state.shape == shape else c.b.reshape(state, shape=shape), TOKEN)


@handles("dataflow.write_handle")
def _write(c: Context) -> Found:
    import numpy as np

    handle = c.operation.operands[0]
    state, update = c.translator.states.get(handle), c.value(1)
    if state is None:
        c.fail("got a state that is no argument of the function, need one that is")
    if update == state:  # an in-place update has written the state
        return TOKEN
    update = update if update.shape == state.shape else c.b.reshape(update, shape=state.shape)
    written = c.b.write_state(state, update, c.b.const(np.int32(0)), axis=0)
    c.translator.states[handle] = written
    return TOKEN


# ---- branches and loops ----


@handles("controlflow.if")
def _if(c: Context) -> Found:
    """Inlines one branch if the condition is known; otherwise computes both and selects between their results."""
    condition = c.value(0)
    then, otherwise = c.operation.bodies
    if condition.node.op == "const" and condition.node.data is not None:
        return c.translator.inline(then if condition.node.data.ravel()[0] else otherwise, ())
    before = dict(c.translator.states)
    results = [c.translator.inline(body, ()) for body in (then, otherwise)]
    if before != c.translator.states:
        c.fail("got a state that is written in a branch, need writes outside of it")
    if condition.type.rank == 1:
        condition = c.b.reshape(condition, shape=())
    return tuple(_choice(c, condition, a, z) for a, z in zip(*results, strict=True))


def _choice(c: Context, condition: Value, a: Item, z: Item) -> Item:
    if isinstance(a, Complex) and isinstance(z, Complex):
        return Complex(c.b.select(condition, a.real, z.real), c.b.select(condition, a.imaginary, z.imaginary))
    if isinstance(a, Value) and isinstance(z, Value):
        if a.shape != z.shape:
            c.fail(f"got branches of {a.type} and {z.type}, need one type")
        return c.b.select(condition if condition.dtype is BOOL else c.b.cast(condition, dtype=BOOL), a, z)
    if any(isinstance(item, (Complex, Value)) for item in (a, z)):
        c.fail("got a branch of complex numbers and one of real numbers, need one type")
    return a


@handles("controlflow.while")
def _while(c: Context) -> Found:
    """Unrolls a loop, whose condition must be known at import in each iteration."""
    before, after = c.operation.bodies
    carried: Sequence[Item] = c.operands
    for _ in range(MOST_ROUNDS):
        condition, *passed = _round(c, before, carried)
        if not isinstance(condition, Value) or condition.node.op != "const" or condition.node.data is None:
            c.fail("got a condition that is computed at run time, need one that is known when the file is read")
        if not condition.node.data.ravel()[0]:
            return tuple(passed)
        carried = c.translator.inline(after, passed)
    c.fail(f"got a loop of more than {MOST_ROUNDS} rounds, need fewer")


def _round(c: Context, body: Body, carried: Sequence[Item]) -> tuple[Item, ...]:
    return c.translator.inline(body, carried)
