"""Runs a graph of fp64 in PyTorch and differentiates it there."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hexane.graph import Array, Node, Value
from hexane.ops import LEAVES, evaluate
from in_torch import elementwise, layers, movement

FORMS = {**elementwise.FORMS, **layers.FORMS, **movement.FORMS}
PICKED = ("topk", "max_pool_with_indices")  # whose indices are the reference's
SCATTERED = ("scatter_nd", "scatter_along_axis")
Known = Any  # a tensor where the dtype is fp64, else an array


def is_float(value: Value) -> bool:
    return value.dtype.kind == "float"


def has_torch_form(node: Node) -> bool:
    """Whether the interpreter runs it: leaves, what has no floats as results or as inputs, and what is in a table."""
    if node.op in LEAVES or not any(map(is_float, node.values)):
        return True
    if not all(v.dtype.bits == 64 for v in (*node.inputs, *node.values) if v is not None and is_float(v)):
        return False
    if not any(v is not None and is_float(v) for v in node.inputs):
        return True
    if node.op in SCATTERED:
        return node.attrs["mode"] in ("update", "add")
    if node.op == "grid_sample":
        return node.values[0].type.rank in (4, 5) and (node.values[0].type.rank == 4 or node.attrs["mode"] != "bicubic")
    if node.op == "max_pool_with_indices":
        return not node.attrs["column_major"]
    return node.op in FORMS or node.op in movement.MOVED or node.op in PICKED


def gradients_in_torch(
    outputs: Sequence[Value], seeds: Sequence[Array], wanted: Sequence[Value], feeds: Mapping[str, Array]
) -> tuple[list[Array], list[Array]]:
    """The outputs, and the gradients of the wanted leaves; zeros where no output depends on one."""
    memory: dict[Value, Known] = {}
    for node in _in_order(outputs):
        _run(node, memory, feeds)
    leaves = [memory[v] if v in memory else torch.zeros(v.shape, dtype=torch.float64) for v in wanted]
    results = [memory[v] for v in outputs]
    total = sum(((r * torch.from_numpy(s)).sum() for r, s in zip(results, seeds, strict=True)), torch.zeros(()))
    found: Sequence[Any] = [None] * len(leaves)
    if total.requires_grad:
        for leaf in leaves:
            leaf.requires_grad_(True)
        found = torch.autograd.grad(total, leaves, allow_unused=True)
    zeros = [np.zeros(v.shape) for v in wanted]
    return [r.detach().numpy() for r in results], [
        zero if g is None else g.numpy() for g, zero in zip(found, zeros, strict=True)
    ]


def _in_order(outputs: Sequence[Value]) -> list[Node]:
    order: dict[int, Node] = {}
    stack = [(value.node, False) for value in outputs]
    while stack:
        node, done = stack.pop()
        if done:
            order.setdefault(id(node), node)
        elif id(node) not in order:
            stack.append((node, True))
            stack += [(v.node, False) for v in node.inputs if v is not None]
    return list(order.values())


def _run(node: Node, memory: dict[Value, Known], feeds: Mapping[str, Array]) -> None:
    if node.op in LEAVES:
        array = np.array(feeds[str(node.attrs["name"])] if node.op == "input" else node.data)
        known = torch.from_numpy(array) if is_float(node.values[0]) else array
        if is_float(node.values[0]):
            known.requires_grad_(node.op != "const")
        memory[node.values[0]] = known
        return
    inputs = [None if v is None else memory[v] for v in node.inputs]
    arrays = [x.detach().numpy() if isinstance(x, torch.Tensor) else x for x in inputs]
    if not any(map(is_float, node.values)) or not any(isinstance(x, torch.Tensor) for x in inputs):
        results: Any = [torch.from_numpy(np.array(r)) if is_float(v) else r
                        for v, r in zip(node.values, evaluate(node, arrays), strict=True)]  # fmt: skip
    else:
        results = _formed(node, inputs, arrays)
    for value, result in zip(node.values, results, strict=True):
        assert tuple(result.shape) == value.shape, f"{node.where}: {tuple(result.shape)} in PyTorch, need {value.type}"
    memory.update(zip(node.values, results, strict=True))


def _formed(node: Node, inputs: Sequence[Known], arrays: Sequence[Array | None]) -> Sequence[Known]:
    if node.op in movement.MOVED:
        return [movement.moved(node, arrays, inputs[0])]
    if node.op in SCATTERED:
        return [movement.scattered(node, arrays, inputs[0], inputs[2])]
    if node.op in PICKED:
        indices = evaluate(node, arrays)[1]
        at = torch.from_numpy(indices.astype(np.int64))
        x = inputs[0]
        return [x.gather(node.attrs["axis"], at) if node.op == "topk" else torch.take(x, at), indices]
    operands = [torch.from_numpy(np.array(x)) if isinstance(x, np.ndarray) else x for x in inputs]
    made = FORMS[node.op](*operands, **node.attrs)
    return list(made) if isinstance(made, tuple) else [made]
