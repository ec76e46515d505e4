"""The forms by which nodes are written as ops of MIL and read back."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hexane.dtypes import INT32, UINT16
from hexane.graph import Node, Value
from hexane.ops import USER_OPS
from hexane.ops.compose import Builder

# Tensors are Values or tuples of Values. Other arguments are numbers, bools, texts, dtypes or tuples.
Arguments = Mapping[str, Any]


class MilCall(NamedTuple):
    """An op of MIL and its arguments, in written order. None marks an argument without a value."""

    op: str
    arguments: Arguments


def values_of(argument: Any) -> tuple[Value, ...]:
    """Returns the tensors in an argument."""
    several = (argument,) if isinstance(argument, Value) or not isinstance(argument, tuple) else argument
    return tuple(v for v in several if isinstance(v, Value))


PORT_AXES = 4  # Most axes of integers at ports: the engine cannot reshape integers.
FINDS = ("topk", "reduce_argmax", "reduce_argmin")  # Ops whose indices have a selectable dtype in MIL.


def finds_indices(node: Node) -> bool:
    """True if a node's last result is indices along an axis that fit uint16 and a port."""
    if node.op not in FINDS:
        return False
    x = node.inputs[0]
    assert x is not None
    return 1 <= len(node.types[-1].shape) <= PORT_AXES and x.shape[int(node.attrs["axis"])] <= 1 << 16


def keeps_indices(node: Node) -> bool:
    """True if MIL supports the dtype of a node's indices, which excludes int64."""
    return node.attrs["dtype"] in (UINT16, INT32)


Result = Value | tuple[Value, ...]
Write = Callable[[Node], MilCall | None]  # Returns None if the node has no form without a rewrite.
Read = Callable[..., Result]  # Takes (b, **arguments), with None for an omitted argument without a default.


class Form(NamedTuple):
    """An op of the catalogue, its op in MIL, and the functions for both directions. `read` turns the result of `write`
    back into the same node.

    If several ops are written as the same op of MIL, only one form reads it: the form of one of them, or a form that is
    only read. Such a form has the `op` ""."""

    op: str
    mil: str
    write: Write | None
    read: Read | None


def plain(op: str, mil: str = "", fixed: Arguments | None = None, **names: str) -> Form:
    """Returns the form of an op whose inputs and attributes are arguments in MIL, with the same names except for
    `names`. fixed: arguments of MIL, or attributes of the op, for which only this value is supported."""
    record = USER_OPS[op]
    inputs = [name.rstrip("?*") for name in record.inputs]
    several = bool(record.inputs) and record.inputs[-1].endswith("*")
    fixed = fixed or {}
    attributes = [name for name in record.attrs or {} if name not in fixed]
    arguments = {name: value for name, value in fixed.items() if name not in (record.attrs or {})}
    unsaid = {name: value for name, value in fixed.items() if name in (record.attrs or {})}

    def write(node: Node) -> MilCall | None:
        if any(node.attrs[name] != value for name, value in unsaid.items()):
            return None
        given: dict[str, Any] = {name: node.attrs[name] for name in attributes}
        given |= {inputs[0]: node.inputs} if several else dict(zip(inputs, node.inputs, strict=True))
        return MilCall(mil or op, {names.get(name, name): value for name, value in given.items()} | arguments)

    def read(b: Builder, /, **given: Any) -> Result:
        operands = [given[names.get(name, name)] for name in inputs]
        wanted = {name: given[names.get(name, name)] for name in attributes} | unsaid
        return b.several(op, *(operands[0] if several else operands), **wanted)

    return Form(op, mil or op, write, read)


def given(**arguments: Any) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}
