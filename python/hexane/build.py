"""Builds graphs from Python: leaves, a function for each op of the catalogue, and the graph of its results.

The functions are made from the records of the ops; `build.pyi` has their signatures.
"""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from hexane.dtypes import INT32
from hexane.graph import Graph, Port, constant, tensor_type, topological
from hexane.graph import unique as leaf
from hexane.graph.names import check_name, free_name
from hexane.graph.origins import call_site
from hexane.ops import USER_OPS, Op
from hexane.ops.attributes import REQUIRED
from hexane.ops.streams import advance_streams
from hexane.ops.valid_lengths import apply, with_lengths
from hexane.ops.written_params import written_params_as_states
from hexane.tensor import Tensor, failed, lift, to_array


def input(name: str, shape: Sequence[int], dtype: object = "fp32") -> Tensor:
    """An input of the program, called `name`. Raises Error for a bad shape or dtype."""
    if not isinstance(name, str) or not name:
        raise failed("input", f"name: got {name!r}, need a string that is not empty")
    return Tensor(leaf("input", name, tensor_type(dtype, shape), sources=call_site()))


def const(array: Any, dtype: object = None) -> Tensor:
    """A constant from what np.asarray takes. Python floats become fp32, ints int32, unless `dtype` is given."""
    return Tensor(constant(to_array(array, dtype)))


def param(
    name: str, array: Any = None, dtype: object = None, *, shape: Sequence[int] | None = None, init: Any = None
) -> Tensor:
    """A named constant that a compiled model can replace: `net.update(name=array)`. `write_state` makes it a state of
    the program, which the program itself replaces. `shape` alone: zeros of fp32, or of `dtype`. A single number fills
    the shape."""
    if array is not None and init is not None:
        raise failed("param", f"{name}: got an array and init, need one of them")
    return _named_contents("param", name, shape, dtype, array if init is None else init)


def state(
    name: str, array: Any = None, dtype: object = None, init: Any = None, *, shape: Sequence[int] | None = None
) -> Tensor:
    """A tensor that keeps its value between calls. A state begins with `array` or `init`, or with zeros; `write_state`
    updates it in place. A tuple or list of integers in place of the array is the shape. A single number fills the
    shape. dtype: by default that of an array, and fp32 for a shape, a number, or an array of float64."""
    if _is_shape(array) and shape is None:
        array, shape = None, array
    given = array if shape is None else shape
    if isinstance(given, (int, np.integer)) and not isinstance(given, bool):
        raise failed("state", f"{name}: got the number {given}, need a shape such as ({given},), or init={given}")
    if array is not None and init is not None:
        raise failed("state", f"{name}: got an array and init, need one of them")
    contents = array if init is None else init
    if dtype is None:
        own = contents.dtype if isinstance(contents, np.ndarray) and contents.ndim else np.dtype(np.float64)
        dtype = "fp32" if own == np.float64 else None
    return _named_contents("state", name, shape, dtype, contents)


def _is_shape(x: Any) -> bool:
    return isinstance(x, (tuple, list)) and all(isinstance(n, (int, np.integer)) for n in x)


def _named_contents(op: str, name: str, shape: Sequence[int] | None, dtype: object, init: Any) -> Tensor:
    """A param or state with the caller's contents, or with zeros of a shape."""
    data = None if init is None else to_array(init, dtype)
    if data is not None and shape is not None and data.ndim == 0:
        data = np.full(tuple(shape), data)
    if data is None and shape is None:
        raise failed(op, f"{name}: got neither a shape nor initial contents, need one of them")
    if data is not None and shape is not None and data.shape != tuple(shape):
        raise failed(op, f"{name}: got init of shape {data.shape}, need {tuple(shape)}")
    if data is not None:
        kind = tensor_type(data.dtype, data.shape)
    else:
        kind = tensor_type(dtype if dtype is not None else "fp32", shape or ())
        data = np.zeros(kind.shape, kind.dtype.numpy) if op == "param" else None
    return Tensor(leaf(op, name, kind, data, call_site()))


def stream(seed: int | None = None, name: str | None = None) -> Tensor:
    """A stream of random numbers for one random op, which draws other numbers in every call:
    `hx.random_normal(hx.stream(7), shape=(2, 3))`.

    A model that is loaded or reset (`net.reset_state()`) begins again with the same numbers. If seed is None, the
    operating system draws a seed, which the model keeps. name: of the state; None: "stream_" and the number of the
    stream in this process.
    """
    if seed is None:
        seed = int.from_bytes(os.urandom(8), "little", signed=True)
    if isinstance(seed, bool) or not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
        raise failed("stream", f"seed: got {seed!r}, need an integer of 64 bits")
    return state(f"stream_{next(_streams)}" if name is None else name, init=np.array([seed, 0]), dtype="int64")


_streams = count()


def graph(
    outputs: "Tensor | Sequence[Tensor] | Mapping[str, Tensor]", updates: Sequence[Tensor] = (), name: str = "graph"
) -> Graph:
    """The program that computes the outputs: one tensor, several, or several by name.

    Outputs without a name are named after their ops (softmax, then softmax_1). `updates` are results of write_state
    that run although no output depends on them. Raises Error if two ports share a name.
    """
    if isinstance(outputs, Tensor):
        outputs = [outputs]
    named = list(outputs.items()) if isinstance(outputs, Mapping) else [("", t) for t in outputs]
    for name_of_port, tensor in named:
        if not isinstance(name_of_port, str):
            raise failed("graph", f"got the port name {name_of_port!r}, need a string")
        check_name("output", name_of_port)
        if not isinstance(tensor, Tensor):
            raise failed("graph", f"got {type(tensor).__name__} as an output, need a tensor")
    if not named:
        raise failed("graph", "got no outputs, need at least one")
    roots = [t.value for _, t in named] + [t.value for t in updates]
    leaves = [n for n in topological(roots) if n.op in ("input", "param", "state")]
    inputs = sorted((n for n in leaves if n.op == "input"), key=lambda n: n.uid)
    for kind in ({"input"}, {"param", "state"}):
        names = [str(n.attrs["name"]) for n in leaves if n.op in kind]
        if twice := {n for n in names if names.count(n) > 1}:
            raise failed("graph", f"got the {min(kind)} name {min(twice)!r} twice, need distinct names")
    taken = {str(n.attrs["name"]) for n in inputs}
    for explicit in (n for n, _ in named if n):
        if explicit in taken:
            raise failed("graph", f"got the port name {explicit!r} twice, need distinct names")
        taken.add(explicit)
    ports = []
    for explicit, tensor in named:
        port = explicit or free_name(tensor.value.node.op, taken)
        taken.add(port)
        ports.append(Port(port, tensor.value))
    built = Graph(tuple(n.values[0] for n in inputs), tuple(ports), tuple(t.value for t in updates), name)
    return with_lengths(advance_streams(written_params_as_states(built)))


# ---- one function for each op ----

PLACES = ("indices", "batch_indices", "labels", "lengths", "position")  # Operands that are always integers.
LEFT_OUT = {("write_state", "position")}  # Operands that a call may leave out.


def signature(op: Op) -> inspect.Signature:
    """Inputs by position or name, then attributes by name."""
    parameters = []
    for name in op.inputs:
        if name.endswith("*"):
            parameters.append(inspect.Parameter(name[:-1], inspect.Parameter.VAR_POSITIONAL))
        else:
            optional = name.endswith("?") or (op.name, name) in LEFT_OUT
            default = None if optional else inspect.Parameter.empty
            parameters.append(
                inspect.Parameter(name.rstrip("?"), inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
            )
    for name, attr in (op.attrs or {}).items():
        default = inspect.Parameter.empty if attr.default is REQUIRED else attr.default
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default))
    return inspect.Signature(parameters)


def _place_of_all(op: Op, whole: Any, update: Any) -> int:
    """The index of an update that replaces all of a state."""
    shapes = [x.shape if isinstance(x, Tensor) else np.shape(x) for x in (whole, update)]
    if shapes[0] != shapes[1]:
        raise failed(op.name, f"got no position for an update of shape {shapes[1]}, need one, or the shape {shapes[0]}")
    return 0


def _function(op: Op) -> Callable[..., Any]:
    shown = signature(op)
    several = len(op.outputs) > 1 or op.outputs[0].endswith("*")

    def build(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = shown.bind(*args, **kwargs)
        except TypeError as error:
            raise failed(op.name, f"{error}; need {op.name}{shown}") from None
        values: list[Any] = []
        for name in op.inputs:
            if name.endswith("*"):
                given = bound.arguments.get(name[:-1], ())
                values += given[0] if len(given) == 1 and isinstance(given[0], (list, tuple)) else given
                continue
            value = bound.arguments.get(name.rstrip("?"))
            if value is None and (op.name, name) in LEFT_OUT:
                value = _place_of_all(op, *values)
            values.append(const(value, INT32) if name in PLACES and type(value) is int else value)
        attrs = {k: v for k, v in bound.arguments.items() if k in (op.attrs or {})}
        like = next((v.dtype for v in values if isinstance(v, Tensor) and v.dtype.kind != "bool"), None)
        operands = [None if v is None else lift(v, like) for v in values]
        results = tuple(map(Tensor, apply(op, operands, attrs, call_site())))
        return results if several else results[0]

    build.__name__ = build.__qualname__ = op.name
    build.__doc__ = op.doc
    build.__signature__ = shown  # type: ignore[attr-defined]
    return build


FUNCTIONS = {name: _function(op) for name, op in USER_OPS.items()}
globals().update(FUNCTIONS)
__all__ = ["Tensor", "const", "graph", "input", "param", "state", "stream", *FUNCTIONS]
