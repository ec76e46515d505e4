"""Branches, loops, lists, states and class labels. The length of a list must be known at import."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hexane.dtypes import DTYPES, FP32
from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.bodies import MOST_STEPS, Body, cond_op, is_long, loop_op, truth
from hexane.importers.coreml.known import ComputedError, deciding_inputs, known_array
from hexane.importers.coreml.registry import Context, reads
from hexane.ops.compose import cast

MOST_ELEMENTS = 4096  # elements of a list
STATE = "state "


@reads("cond pred")
def cond(c: Context, operation: Any, /, pred: Value) -> Any:
    """Imports one branch if the condition is a constant. For a computed condition, writes an op that computes only the
    chosen branch, or for cheap branches a select of both results."""
    blocks = then, otherwise = operation.blocks
    if pred.node.op == "const" and pred.node.data is not None:
        return c.translator.inline(then if pred.node.data.reshape(-1)[0] else otherwise, ())
    flag = truth(c.b, pred)
    bodies = [Body() for _ in blocks]
    try:
        results = [_tensors(_inside(c, body, block, ())) for body, block in zip(bodies, blocks, strict=True)]
        if (outputs := cond_op(c.b, flag, bodies, results)) is not None:
            return outputs
    except Error:
        pass  # computing both branches may still work; if not, it raises an error
    before = dict(c.translator.states)
    both = [c.translator.inline(block, ()) for block in blocks]
    if before != c.translator.states:
        raise Error("got a state that is written in a branch, need writes outside of it")
    return [_choice(c, flag, a, z) for a, z in zip(*both, strict=True)]


def _inside(c: Context, body: Body, block: Any, arguments: Sequence[Any]) -> list[Any]:
    with c.translator.body(body):
        return c.translator.inline(block, arguments)


def _tensors(items: Sequence[Any]) -> list[Value]:
    """Returns the items as tensors. Raises Error for an item that is a list or a state."""
    if any(not isinstance(item, Value) for item in items):
        raise Error("got a list or state in a loop or branch that the data decide, need tensors")
    return list(items)


def _choice(c: Context, flag: Value, a: Any, z: Any) -> Any:
    if not isinstance(a, Value) or not isinstance(z, Value):
        raise Error("got branches whose results are lists, need tensors")
    if a.shape != z.shape:
        raise Error(f"got branches of {a.type} and {z.type}, need one type, or a condition that is known")
    return c.b.select(flag, a, z)


@reads("while_loop loop_vars:items")
def while_loop(c: Context, operation: Any, /, loop_vars: tuple[Any, ...]) -> Any:
    """Unrolls a loop while its condition is a constant. A loop with a computed condition, or of many operations,
    becomes one op."""
    condition, body = operation.blocks
    carried, may_be_one = list(loop_vars), True
    operations = len(condition.operations) + len(body.operations)
    for step in range(MOST_STEPS):
        (goes_on,) = c.translator.inline(condition, carried)
        if not isinstance(goes_on, Value):
            raise Error("got no condition, need one")
        if goes_on.node.op != "const" or goes_on.node.data is None:
            try:
                return _one_loop(c, operation.blocks, loop_vars, goes_on if step == 0 else None)
            except Error as error:
                raise ComputedError(str(error), deciding_inputs(goes_on)) from None  # names possible constants
        if not known_array(goes_on).reshape(-1)[0]:
            return carried
        if may_be_one and is_long(step, operations):
            try:
                return _one_loop(c, operation.blocks, loop_vars, None)
            except Error:
                may_be_one = False
        carried = c.translator.inline(body, carried)
    return _one_loop(c, operation.blocks, loop_vars, None)


def _one_loop(c: Context, blocks: Sequence[Any], start: Sequence[Any], first: Value | None) -> tuple[Value, ...]:
    """Writes one op for a loop whose trip count depends on data. first: the condition of the first iteration; None
    means true."""
    carried = _tensors(start)
    body = Body.of_loop(carried)
    with c.translator.body(body):
        state = c.translator.inline(blocks[1], body.given[2:])
        (goes_on,) = c.translator.inline(blocks[0], state)
    goes_on, *results = _tensors([goes_on, *state])
    return loop_op(
        c.b, body, carried, [truth(c.b, goes_on), *results], None, None if first is None else truth(c.b, first)
    )


# ---- lists ----


class MilList(list[Any]):
    """A list. shape, dtype: of its unwritten elements, if the model says them."""

    shape: tuple[int, ...] | None = None
    dtype: Any = None

    @staticmethod
    def of(items: list[Any]) -> "MilList":
        """Returns a copy."""
        result = MilList(items)
        if isinstance(items, MilList):
            result.shape, result.dtype = items.shape, items.dtype
        return result


@reads("make_list init_length:int=1 dynamic_length:bool=true elem_shape:items dtype:str=fp32")
def make_list(c: Context, _: Any, /, init_length: int, dynamic_length: bool, elem_shape: Any, dtype: str) -> Any:
    if init_length > MOST_ELEMENTS:
        raise Error(f"init_length: got {init_length}, need {MOST_ELEMENTS} at most")
    result = MilList([None] * init_length)
    result.dtype = DTYPES.get(dtype)
    flat: list[int] = []
    for extent in elem_shape:
        if isinstance(extent, Value):
            flat += known_array(extent).reshape(-1).astype(int).tolist()
    result.shape = tuple(flat) if len(flat) == len(elem_shape) or flat else None
    return [result]


def _index(value: Value) -> int:
    return int(known_array(value).reshape(-1)[0])


def _zeros(c: Context, items: MilList) -> list[Value]:
    """Returns the elements, with zeros for unwritten ones."""
    items = MilList.of(items)
    like = next((v for v in items if v is not None), None)
    if like is None and items.shape is not None and items.dtype is not None:
        like = c.b.const(np.zeros(items.shape, items.dtype.numpy))
    if like is None:
        raise Error("got a list without an element, need one that is written before it is read")
    return [c.b.const(np.zeros(like.shape, like.dtype.numpy)) if v is None else v for v in items]


@reads("list_write ls:any index value")
def list_write(c: Context, _: Any, /, ls: MilList, index: Value, value: Value) -> Any:
    at, result = _index(index), MilList.of(ls)
    if not 0 <= at <= MOST_ELEMENTS:
        raise Error(f"index: got {at}, need 0 to {MOST_ELEMENTS}")
    result += [None] * (at + 1 - len(result))
    result[at] = value
    return [result]


@reads("list_read ls:any index")
def list_read(c: Context, _: Any, /, ls: MilList, index: Value) -> Any:
    items, at = _zeros(c, ls), _index(index)
    if not -len(items) <= at < len(items):
        raise Error(f"index: got {at} for a list of {len(items)}, need one below")
    return items[at]


@reads("list_gather ls:any indices")
def list_gather(c: Context, _: Any, /, ls: MilList, indices: Value) -> Any:
    items, picks = _zeros(c, ls), known_array(indices).reshape(-1).tolist()
    if any(not -len(items) <= p < len(items) for p in picks):
        raise Error(f"indices: got {picks} for a list of {len(items)}, need some below")
    return c.b.stack(*(items[p] for p in picks), axis=0)


@reads("list_scatter ls:any indices value")
def list_scatter(c: Context, _: Any, /, ls: MilList, indices: Value, value: Value) -> Any:
    result = MilList.of(ls)
    for i, at in enumerate(known_array(indices).reshape(-1).tolist()):
        if not 0 <= at <= MOST_ELEMENTS:
            raise Error(f"indices: got {at}, need 0 to {MOST_ELEMENTS}")
        result += [None] * (at + 1 - len(result))
        result[at] = c.b.squeeze(
            c.b.slice_by_index(value, begin=(i, *[0] * (len(value.shape) - 1)), end=(i + 1, *value.shape[1:])),
            axes=(0,),
        )
    return [result]


@reads("list_length ls:any")
def list_length(c: Context, _: Any, /, ls: MilList) -> Value:
    return c.b.const(np.int32(len(ls)))


# ---- states ----


def _state(c: Context, name: Any) -> str:
    key = name.removeprefix(STATE) if isinstance(name, str) and name.startswith(STATE) else None
    if key is None or key not in c.translator.states:
        raise Error("got no state of the function, need one of its inputs")
    return key


@reads("read_state input:any")
def read_state(c: Context, operation: Any, /, input: Any) -> Value:
    state = c.translator.states[_state(c, input)]
    dims = operation.results[0][1].dims
    return state if dims is None or len(dims) == len(state.shape) else c.b.reshape(state, shape=dims)


@reads("write_state input:any data")
def write_state(c: Context, operation: Any, /, input: Any, data: Value) -> Any:
    key = _state(c, input)
    state = c.translator.states[key]
    if data != state:
        part = c.translator.parts.get(data)
        if part is not None and part.whole == state:  # an in-place write of a cache's rows
            written = c.b.write_state(state, part.update, part.position, axis=part.axis)
            c.translator.stands_for(data, written)
        else:
            update = data if data.shape == state.shape else c.b.reshape(data, shape=state.shape)
            update = cast(c.b, update, state.dtype)
            written = c.b.write_state(state, update, c.b.const(np.int32(0)), axis=0)
        c.translator.states[key] = written
    return c.translator.states[key] if operation.results else []


@reads("classify probabilities classes:any")
def classify(c: Context, operation: Any, /, probabilities: Value, classes: Any) -> Any:
    """Returns the best class, and the probabilities in the order of the classes. A class that is a text is returned as
    its index."""
    flat = c.b.reshape(probabilities, shape=(probabilities.type.size,))
    best = c.b.reduce_argmax(flat, axis=0, keep_dims=True, dtype="int32")
    if isinstance(classes, Value) and classes.node.data is not None:
        best = c.b.gather(c.b.const(classes.node.data.astype(np.int64).reshape(-1)), best, axis=0)
    elif classes and not isinstance(classes[0], str):
        best = c.b.gather(c.b.const(np.array([int(np.asarray(n)) for n in classes], np.int64)), best, axis=0)
    return [best, cast(c.b, flat, FP32)]
