"""Runs a chip's program node by node in NumPy: every step in the engine's arithmetic by the model of its rule.

It shares with the program the graph and which step computes in which arithmetic. What the executor makes of a step
(views, buffers, fused loops, panels) has no part in it. Steps in IEEE arithmetic are the CPU's kernels, alone on whole
arrays.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from test_engine_products import conv

import engine_planar as model
from engine_model import Array, matmul, winograd
from hexane.ops import LEAVES, OPS, evaluate
from hexane.ops.predicates import has_winograd_s_shape
from hexane.program import Program, Step
from hexane.targets.kernels import kernels
from kernels import run

Operands = Sequence[Any]
Rule = Callable[[Step, Operands], Array]


def interpreted(program: Program, feeds: Mapping[str, Array]) -> tuple[dict[str, Array], set[str]]:
    """The outputs by name, and the kernels that rules have stood for."""
    steps = {id(step.node): step for step in program.steps if step.kernel != "copy"}
    memory: dict[Any, Array] = {}
    by_rule: set[str] = set()
    for node in program.graph.nodes:
        if node.op in LEAVES:
            data = feeds[str(node.attrs["name"])] if node.op == "input" else node.data
            memory[node.values[0]] = np.zeros(node.types[0].shape, node.types[0].dtype.numpy) if data is None else data
            continue
        operands = [None if v is None else memory[v] for v in node.inputs]
        step = steps.get(id(node))
        if step is None or kernels("any").has(step.kernel, *_dtypes(step)):
            results: Sequence[Array] = evaluate(node, operands)
        elif step.numerics.family == "engine":
            results = [computed(step, operands)]
            by_rule.add(step.kernel)
        else:
            results = [np.empty(t.shape, t.dtype.numpy) for t in node.types]
            run(step.kernel, [_dense(v) for v in operands], results, step.attrs)
        memory.update(zip(node.values, results, strict=True))
    return {port.name: memory[port.value] for port in program.graph.outputs}, by_rule


def _dtypes(step: Step) -> tuple[list[str | None], list[str]]:
    return [None if v is None else v.type.dtype.name for v in step.inputs], [v.type.dtype.name for v in step.outputs]


def _dense(x: Array | None) -> Array | None:
    return None if x is None else np.array(x, order="C")


def computed(step: Step, operands: Operands) -> Array:
    """What the rule of a step makes of its operands."""
    kernel, node = step.kernel, step.node
    if kernel in model.UNARY:
        return model.unary(kernel, operands[0], *_numbers(step.attrs))
    if kernel in model.BINARY:
        y = model.binary(kernel, *operands[:2])
    elif kernel in model.COMPARISON:
        return model.compare(kernel, *operands)
    elif kernel in RULES:
        y = RULES[kernel](step, operands)
    else:
        assert all(v is None or v.dtype == bool for v in operands), f"{kernel}: no rule"
        return np.asarray(evaluate(node, operands)[0])
    for slot in step.attrs.get("epilogue", ()):
        y = model.unary(slot.op, y, *(v for _, v in slot.attributes))
    return np.asarray(y)


def _numbers(attrs: Mapping[str, Any]) -> list[float]:
    return [v for v in attrs.values() if isinstance(v, (int, float))]


# ---- products ----


def _matmul(step: Step, operands: Operands) -> Array:
    x, y, bias = (*operands, None)[:3]
    x = x.swapaxes(-1, -2) if step.attrs["transpose_x"] else x
    y = y.swapaxes(-1, -2) if step.attrs["transpose_y"] else y
    out = np.empty(step.node.types[0].shape, np.float16)
    x, y = (np.broadcast_to(v, (*out.shape[:-2], *v.shape[-2:])) for v in (x, y))
    for i in np.ndindex(out.shape[:-2]):
        out[i] = matmul(np.ascontiguousarray(x[i]), np.ascontiguousarray(y[i]), bias)
    return out


def _conv(step: Step, operands: Operands) -> Array:
    x, w, bias = (*operands, None)[:3]
    attrs = {name: [int(v) for v in step.attrs[name]] for name in ("strides", "dilations", "pads")}
    groups = step.attrs["groups"]
    if x.ndim == 3:
        x, w = x[:, None], w[:, :, None]
        attrs = {
            name: [*([0, 0] if name == "pads" else [1]), *v] if len(v) in (1, 2) else v for name, v in attrs.items()
        }
    x, w = np.ascontiguousarray(x), np.ascontiguousarray(w)
    if step.numerics.parameters["winograd"] and operands[1].ndim == 4 and has_winograd_s_shape(step.node):
        bias = np.zeros(len(w), np.float16) if bias is None else bias
        made = winograd(x, w, bias, groups, attrs["pads"])
    else:
        made = conv(x, w, bias, groups, **attrs)
    return made.reshape(step.node.types[0].shape)


def _attention(step: Step, operands: Operands) -> Array:
    query, key, value, mask = (*operands, None)[:4]
    a, out = step.attrs, np.empty(step.node.types[0].shape, np.float16)
    assert not a["zero_hidden"]
    scores = (*out.shape[:-1], key.shape[-2])
    added = np.zeros(scores, np.float16)
    if mask is not None:
        added = np.where(mask, 0, a["hidden"]) if mask.dtype == bool else mask
        added = np.broadcast_to(added, scores).astype(np.float16)
    if a["causal"]:
        added = np.where(np.tri(*scores[-2:], dtype=bool), added, np.float16(-np.inf))
    key, value = (np.broadcast_to(v, (*out.shape[:-2], *v.shape[-2:])) for v in (key, value))
    for i in np.ndindex(out.shape[:-2]):
        hidden = None if mask is None and not a["causal"] else added[i]
        out[i] = model.attention(*(np.ascontiguousarray(v[i]) for v in (query, key, value)), a["scale"], hidden)
    return out


# ---- along axes ----


def _as_lines(x: Array, axes: Sequence[int]) -> tuple[Array, tuple[int, ...]]:
    """[kept, reduced] and the kept axes' extents."""
    reduced = sorted(axis % x.ndim for axis in axes)
    kept = [axis for axis in range(x.ndim) if axis not in reduced]
    shape = tuple(x.shape[axis] for axis in kept)
    count = int(np.prod([x.shape[axis] for axis in reduced]))
    return np.ascontiguousarray(x.transpose(*kept, *reduced)).reshape(-1, count), shape


def _reduction(step: Step, operands: Operands) -> Array:
    (x,) = operands
    axes = [*step.attrs["axes"]] or [*range(x.ndim)]
    with np.errstate(all="ignore"):
        made = model.reduced(step.kernel, _as_lines(x, axes)[0])
    return made.reshape(step.node.types[0].shape)


def _softmax(step: Step, operands: Operands) -> Array:
    (x,) = operands
    rows, kept = _as_lines(x, [step.attrs["axis"]])
    with np.errstate(all="ignore"):
        made = model.softmax(rows).reshape(*kept, -1)
    return np.moveaxis(made, -1, step.attrs["axis"])


def _norm(step: Step, operands: Operands) -> Array:
    x, gamma, beta = (*operands, None, None)[:3]
    rows, _ = _as_lines(x, step.attrs["axes"])
    gamma, beta = (None if v is None else np.broadcast_to(v.ravel(), rows.shape) for v in (gamma, beta))
    with np.errstate(all="ignore"):
        made = model.norm(rows, gamma, beta, step.attrs["epsilon"], step.kernel == "layer_norm")
    return made.reshape(x.shape)


def _pool(step: Step, operands: Operands) -> Array:
    """Over the axes between the first and the last, window by window."""
    x, a, out = model.read(operands[0]), step.attrs, np.empty(step.node.types[0].shape)
    count = x.ndim - 2
    sizes, strides, rates = ([*a[name]][-count:] for name in ("kernel_sizes", "strides", "dilations"))
    pads = [*a["pads"]][-2 * count :]
    for place in product(*(range(n) for n in out.shape[1:-1])):
        taps = []
        for i, at in enumerate(place):
            found = [at * strides[i] - pads[2 * i] + t * rates[i] for t in range(sizes[i])]
            taps.append(
                (
                    [v for v in found if 0 <= v < x.shape[i + 1]],
                    [v for v in found if v < x.shape[i + 1] + pads[2 * i + 1]],
                )
            )
        window = x[np.ix_(range(x.shape[0]), *(inside for inside, _ in taps), range(x.shape[-1]))]
        axes = tuple(range(1, x.ndim - 1))
        if step.kernel == "max_pool":
            value = window.max(axes, initial=-np.inf) + 0.0
        else:
            counted = [len(inside if a["exclude_padding"] else padded) for inside, padded in taps]
            with np.errstate(all="ignore"):
                value = window.sum(axes) / np.prod(counted)
        out[(slice(None), *place)] = value
    return model.write(out)


# ---- elements ----


def _cast(step: Step, operands: Operands) -> Array:
    (x,), to = operands, step.node.types[0].dtype.numpy
    if to == np.float16:
        return model.write(x.astype(np.float64))
    return np.asarray(model.read(x).astype(to) if x.dtype == np.float16 else evaluate(step.node, operands)[0])


def _dequantize(step: Step, operands: Operands) -> Array:
    q, scale, zero = (*operands, None)[:3]
    wide = np.float64 if q.dtype == np.int32 else np.float32
    shape = [-1 if i == step.attrs["axis"] % q.ndim else 1 for i in range(q.ndim)] if np.ndim(scale) else []
    moved = q.astype(wide) if zero is None else q.astype(wide) - zero.astype(wide).reshape(shape)
    return model.write((moved * scale.reshape(shape).astype(wide)).astype(np.float64))


def _resize_linear(step: Step, operands: Operands) -> Array:
    (x,), a, shape = operands, step.attrs, step.node.types[0].shape
    rows = np.zeros(1) if x.ndim == 3 else (np.arange(shape[1]) * a["scale_h"] + a["offset_h"]) / a["unit_h"]
    columns = (np.arange(shape[-2]) * a["scale_w"] + a["offset_w"]) / a["unit_w"]
    image = x[:, None] if x.ndim == 3 else x
    return model.resize_linear(image, image.shape[1:3], (rows, columns)).reshape(shape)


def _formula(step: Step, operands: Operands) -> Array:
    """The record's meaning of numbers as the engine reads them."""
    with np.errstate(all="ignore"):
        numbers = [model.read(v) for v in operands]
        return model.write(np.asarray(OPS[step.node.op].ref(*numbers, **step.node.attrs)))


RULES: Mapping[str, Rule] = {
    "matmul": _matmul,
    "conv": _conv,
    "scaled_dot_product_attention": _attention,
    **dict.fromkeys(("reduce_sum", "reduce_mean", "reduce_max", "reduce_min"), _reduction),
    "softmax": _softmax,
    **dict.fromkeys(("layer_norm", "rms_norm"), _norm),
    **dict.fromkeys(("max_pool", "avg_pool"), _pool),
    "cast": _cast,
    "dequantize": _dequantize,
    **dict.fromkeys(("cumsum", "local_response_norm"), _formula),
    "resize_linear": _resize_linear,
}
