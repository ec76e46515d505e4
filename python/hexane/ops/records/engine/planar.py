"""Layers of the planar engine: elementwise layers, activations, gain and offset, norms, reductions, pools, comparisons,
random numbers."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from hexane.dtypes import FP32
from hexane.errors import Error
from hexane.graph import tensor_type
from hexane.ops.attributes import flag, integer, integers, number, text
from hexane.ops.dtype_rules import floating, numeric
from hexane.ops.neurons import NEURONS
from hexane.ops.records.engine.form import HALVES, derived, rounded_once, slotted
from hexane.ops.records.engine.mac import softmax_expand
from hexane.ops.shape_rules import Shape, axis_indices, reduced, same
from hexane.ops.slots import chain_type, slot
from hexane.ops.spec import Case, Op
from hexane.ops.window_rules import POOL

Array = Any
# Elementwise layers and the equal ops of users.
WITH_SLOTS = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "div": "real_div",
    "max": "maximum",
    "min": "minimum",
    "pow": "pow",
}
WITHOUT = {"equal": "equal", "not_equal": "not_equal", "less": "less", "greater": "greater", "logical_not": "logical_not",
           "logical_or": "logical_or", "select": "select"}  # fmt: skip
REDUCTIONS = {"sum": "reduce_sum", "avg": "reduce_mean", "max": "reduce_max", "min": "reduce_min"}
SAME = (
    ("layer_norm", "layer_norm", "LayerNorm"), ("instance_norm", "instance_norm", "InstanceNorm"),
    ("batch_norm", "batch_norm", "BatchNorm"),
    ("local_response_norm", "local_response_norm", "LRN"), ("quant", "quantize", "Quant"),
    ("dequant", "dequantize", "DeQuant"), ("topk", "topk", "TopK"), ("sort", "argsort", "Sort"),
    ("nms", "non_max_suppression", "NMS"), ("random", "random", "Random"), ("cast", "cast", ""), ("cumsum", "cumsum", ""),
)  # fmt: skip


def _elementwise(op: Op, name: str) -> Op:
    def core(b: Any, x: Any, y: Any) -> Any:
        return op.name, [x, y], {}

    return slotted(core, name=f"anec.{name}", doc=op.doc, layer="ElementWise", inputs=op.inputs, shape=op.shape, dtype=op.dtype,
                   ref=op.ref, cases=op.cases)  # fmt: skip


# ---- layer norm ----


def _layer_norm(op: Op) -> Op:
    """Returns the engine's layer norm, over any axes. The CPU kernel needs the last axes, so other axes are
    transposed."""

    def there(rank: int, axes: tuple[int, ...]) -> tuple[int, ...]:
        return (*[i for i in range(rank) if i not in axes], *axes)

    def attrs(types: Any, attrs: Mapping[str, Any]) -> dict[str, Any]:
        return {**attrs, "axes": axis_indices(attrs["axes"], types[0].rank)}

    def shape(x: Shape, *params: Shape | None, axes: tuple[int, ...], **_: Any) -> Shape:
        op.shape(tuple(x[i] for i in there(len(x), axes)), *params, axes=tuple(range(-len(axes), 0)))
        return x

    def expand(b: Any, x: Any, *params: Any, axes: tuple[int, ...], epsilon: float) -> Any:
        perm = there(len(x.shape), axes)
        last = tuple(range(len(perm) - len(axes), len(perm)))
        if perm == tuple(range(len(perm))):
            return b.layer_norm(x, *params, axes=last, epsilon=epsilon)
        y = b.layer_norm(b.transpose(x, perm=perm), *params, axes=last, epsilon=epsilon)
        return b.transpose(y, perm=tuple(perm.index(i) for i in range(len(perm))))

    def ref(x: Array, gamma: Array | None, beta: Array | None, axes: tuple[int, ...], epsilon: float) -> Array:
        along = [n if i in axes else 1 for i, n in enumerate(x.shape)]
        return op.ref(x, *(v if v is None else v.reshape(along) for v in (gamma, beta)), axes=axes, epsilon=epsilon)

    return replace(
        derived(op, "anec.layer_norm", "LayerNorm"), doc="(x - mean) / sqrt(variance + epsilon) * gamma + beta over these axes; gamma and beta have their shape.",
        canonical=attrs, shape=shape, expand=expand, ref=ref,
        cases=(*op.cases, Case(((2, 7, 3, 5), (7,), (7,)), {"axes": (1,)})),
    )  # fmt: skip


# ---- activations, gain and offset ----


def _neuron(user: Mapping[str, Op]) -> Op:
    def core(b: Any, x: Any, mode: str, alpha: float, beta: float) -> Any:
        return NEURONS[mode].op, [x], NEURONS[mode].attrs(alpha, beta)

    def ref(x: Array, mode: str, alpha: float, beta: float) -> Any:
        return user[NEURONS[mode].op].ref(x, **NEURONS[mode].attrs(alpha, beta))

    def case(mode: str, neuron: Any) -> Case:
        plain = user[neuron.op].cases[0]
        given = plain.attrs or {k: v.default for k, v in (user[neuron.op].attrs or {}).items()}
        values = {field: given[name] for field, name in (("alpha", neuron.alpha), ("beta", neuron.beta)) if name}
        return replace(plain, attrs={"mode": mode, **values})

    return slotted(
        core, name="anec.neuron", doc="An activation. mode: its name; alpha and beta: its parameters, 0 for an unused "
                                      "one.", layer="Neuron",
        inputs=("x",), attrs={"mode": text(choices=tuple(NEURONS)), "alpha": number(0.0), "beta": number(0.0)}, shape=same,
        dtype=floating, ref=ref, cases=tuple(case(mode, neuron) for mode, neuron in NEURONS.items()),
    )  # fmt: skip


def _affine_slot(gain: Any, offset: Any, axis: int) -> Any:
    return slot("gain_offset", gain=1 if gain is not None else -1, offset=2 if offset is not None else -1, axis=axis)


def _goc_shape(x: Shape, gain: Shape | None, offset: Shape | None, axis: int) -> Shape:
    there = [tensor_type(FP32, s) for s in (gain, offset) if s is not None]
    if not there:
        raise Error("got neither gain nor offset, need one of them")
    places = {"gain": 1 if gain is not None else -1, "offset": len(there) if offset is not None else -1}
    return chain_type(tensor_type(FP32, x), [slot("gain_offset", **places, axis=axis)], there, 1).shape


def _goc_dtype(x: Any, *constants: Any, **_: Any) -> Any:
    """Constants may be wider than x; the result of the multiplication is then rounded only to fp32."""
    for kind in constants:
        if kind is not None:
            floating(kind)
    return floating(x)


def _in_shape(b: Any, x: Any, v: Any, axis: int) -> Any:
    return b.reshape(v, shape=(-1, *[1] * (len(x.shape) - 1 - axis))) if v is not None and v.shape else v


def _goc() -> Op:
    def along(v: Array, axis: int, rank: int) -> Array:
        return v.reshape([-1 if i == axis else 1 for i in range(rank)]) if v.ndim else v

    def ref(x: Array, gain: Array | None, offset: Array | None, axis: int) -> Array:
        y = x if gain is None else x * along(gain, axis, x.ndim)
        return y if offset is None else y + along(offset, axis, x.ndim)

    def core(b: Any, x: Any, gain: Any, offset: Any, axis: int) -> Any:
        gain, offset = (_in_shape(b, x, v, axis) for v in (gain, offset))
        if gain is None or offset is None:
            return ("add", [x, offset], {}) if gain is None else ("mul", [x, gain], {})
        wide = FP32 if x.dtype in HALVES else x.dtype
        x, gain = (v if v.dtype is wide else b.cast(v, dtype=wide) for v in (x, gain))
        return "add", [b.mul(x, gain), offset], {}

    return slotted(
        core, name="anec.gain_offset_control", doc="x * gain + offset, each constant: one number, or one for each index of `axis`.",
        layer="GOC", inputs=("x", "gain?", "offset?"), attrs={"axis": integer(0)}, shape=_goc_shape, dtype=_goc_dtype, ref=ref,
        cases=(Case(((2, 3, 4, 5), (3,), (3,)), {"axis": 1}), Case(((2, 3, 4), None, ()), {}), Case(((2, 3), (3,)), {"axis": 1})),
    )  # fmt: skip


# ---- pools and reductions ----


def _pool(user: Mapping[str, Op]) -> Op:
    def own(kind: str, attrs: Mapping[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in attrs.items() if k != "exclude_padding" or kind == "avg"} | {"layout": "nchw"}

    def core(b: Any, x: Any, kind: str, **attrs: Any) -> Any:
        return f"{kind}_pool", [x], own(kind, attrs)

    def canonical(types: Any, attrs: Any) -> dict[str, Any]:
        rest = user["avg_pool"].canonical(types, {k: v for k, v in attrs.items() if k != "kind"})  # type: ignore[misc]
        return {"kind": attrs["kind"], **rest}

    return slotted(
        core, name="anec.pool", doc="The maximum or the mean of each window of x "
                                    "(N, C, spatial...).", layer="Pool", inputs=("x",),
        attrs={"kind": text(choices=("max", "avg")), **POOL, "exclude_padding": flag(True)},
        shape=lambda x, kind, **a: user[f"{kind}_pool"].shape(x, **own(kind, a)), dtype=numeric, canonical=canonical,
        ref=lambda x, kind, **a: user[f"{kind}_pool"].ref(x, **own(kind, a)),
        cases=(Case(((1, 3, 8, 8),), {"kind": "max", "kernel_sizes": 2, "strides": 2}),
               Case(((2, 3, 9, 7),), {"kind": "avg", "kernel_sizes": 3, "strides": 2, "pad": 1})),
    )  # fmt: skip


def _reduction(user: Mapping[str, Op]) -> Op:
    """Returns a reduction of x, of its squares or of its magnitudes. Squares are not rounded before their reduction."""
    inner: dict[str, Callable[..., Any]] = {"none": lambda x: x, "sqr": np.square, "abs": np.abs}

    def core(b: Any, x: Any, kind: str, operand: str, axes: tuple[int, ...], keep_dims: bool) -> Any:
        if operand != "none":
            wide = FP32 if x.dtype in HALVES else x.dtype
            x = b.apply(NEURONS[operand].op, x if wide is x.dtype else b.cast(x, dtype=wide))
        return REDUCTIONS[kind], [x], {"axes": axes, "keep_dims": keep_dims}

    def canonical(types: Any, attrs: Any) -> dict[str, Any]:
        rank = types[0].rank
        return {**attrs, "axes": axis_indices(attrs["axes"], rank) or tuple(range(rank))}

    return slotted(
        core, name="anec.reduction", doc="The sum, mean, maximum or minimum over axes of x, of its squares or of its "
            "magnitudes.",
        layer="Reduction", inputs=("x",),
        attrs={"kind": text(choices=tuple(REDUCTIONS)), "operand": text("none", tuple(inner)), "axes": integers(), "keep_dims": flag(True)},
        shape=lambda x, kind, operand, **a: reduced(x, **a), dtype=numeric, canonical=canonical,
        ref=lambda x, kind, operand, **a: user[REDUCTIONS[kind]].ref(inner[operand](x), **a),
        cases=tuple(Case(((2, 3, 17),), {"kind": kind, "operand": operand, "axes": (-1,)}) for kind in REDUCTIONS for operand in inner),
    )  # fmt: skip


def _arg(user: Mapping[str, Op], name: str, layer: str, whole: bool) -> Op:
    """Returns a layer for argmax and argmin. whole: over all elements, which are flattened to one axis."""
    names = {"max": "reduce_argmax", "min": "reduce_argmin"}
    plain = user["reduce_argmax"]

    def flat(x: Any) -> Any:
        return x.reshape(-1) if whole else x

    def expand(b: Any, x: Any, kind: str, **a: Any) -> Any:
        return b.apply(names[kind], b.reshape(x, shape=(-1,)) if whole else x, **a)

    def shape(x: Shape, kind: str, **a: Any) -> Any:
        return plain.shape((int(np.prod(x)),) if whole else x, **a)

    return Op(
        name=name, doc="The index of the largest or smallest element " + ("of all." if whole else "along an axis."), level="engine",
        layer=layer, inputs=("x",), attrs={"kind": text(choices=tuple(names)), **(plain.attrs or {})}, shape=shape,
        dtype=lambda x, kind, **a: plain.dtype(x, **a),
        canonical=None if whole else lambda types, a: {"kind": a["kind"], **plain.canonical(types, {k: v for k, v in a.items() if k != "kind"})},  # type: ignore[misc]
        expand=expand, ref=lambda x, kind, **a: user[names[kind]].ref(flat(x), **a),
        cases=(Case(((3, 17),), {"kind": "max"}), Case(((2, 9),), {"kind": "min"})),
    )  # fmt: skip


# ---- norms and others that equal no op of users ----


def _min_max_norm(b: Any, x: Any, axes: tuple[int, ...], epsilon: float) -> Any:
    low, high = b.reduce_min(x, axes=axes), b.reduce_max(x, axes=axes)
    return b.real_div(b.sub(x, low), b.add(b.sub(high, low), epsilon))


def _min_max_ref(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    low, high = x.min(axes, keepdims=True), x.max(axes, keepdims=True)
    return (x - low) / (high - low + epsilon)


def _no_rate(types: Any, attrs: Any) -> None:
    if attrs["rate"] != 0:
        raise Error(f"rate: got {attrs['rate']}, need 0: the engine's random numbers are not published")


_SCALED: dict[str, Callable[..., Any]] = {
    "add": np.add, "mult": np.multiply, "max": np.maximum, "min": np.minimum, "sum_square": lambda x, y: x * x + y * y,
}  # fmt: skip


def _scaled(b: Any, x: Any, y: Any, kind: str, scale: float) -> Any:
    if kind == "sum_square":
        return b.mul(b.add(b.square(x), b.square(y)), scale)
    result = b.apply({"add": "add", "mult": "mul", "max": "maximum", "min": "minimum"}[kind], x, y)
    return result if kind == "mult" else b.mul(result, scale)


def _others(user: Mapping[str, Op]) -> tuple[Op, ...]:
    return (
        replace(derived(user["softmax"], "anec.softmax", "Softmax"), expand=softmax_expand),
        replace(derived(user["l2_norm"], "anec.l2_norm", "L2Norm"), expand=rounded_once(lambda b, x, **a: b.l2_norm(x, **a))),
        Op(name="anec.min_max_norm", doc="(x - minimum) / (maximum - minimum + "
            "epsilon) over axes.", level="engine", layer="MinMaxNorm",
           inputs=("x",), attrs={"axes": integers((-1,)), "epsilon": number(1e-3)}, shape=same, dtype=floating,
           expand=rounded_once(_min_max_norm), ref=_min_max_ref, cases=(Case(((1, 2, 3, 9),)),)),
        Op(name="anec.dynamic_goc", doc="x * scale + bias, both computed; without a scale x + bias.", level="engine", layer="DynamicGOC",
           inputs=("x", "scale?", "bias"), shape=same, dtype=floating,
           expand=rounded_once(lambda b, x, scale, bias: b.add(x if scale is None else b.mul(x, scale), bias)),
           ref=lambda x, scale, bias: (x if scale is None else x * scale) + bias,
           cases=(Case(((1, 4, 3, 5), (1, 4, 1, 1), (1, 4, 1, 1))),)),
        Op(name="anec.scaled_elementwise", doc="scale * (x + y), or with max, min or the sum of squares in place of x "
            "+ y; mult has no scale.",
           level="engine", layer="ScaledElementWise", inputs=("x", "y"),
           attrs={"kind": text("add", tuple(_SCALED)), "scale": number(1.0)}, shape=user["add"].shape, dtype=floating,
           expand=rounded_once(_scaled), ref=lambda x, y, kind, scale: _SCALED[kind](x, y) * (1 if kind == "mult" else scale),
           cases=tuple(Case(((2, 3, 5), (2, 3, 5)), {"kind": kind, "scale": 0.5}) for kind in _SCALED)),
        Op(name="anec.dropout", doc="x. Only a rate of 0 is supported.", level="engine", layer="Dropout", inputs=("x",),
           attrs={"rate": number(0.0)}, shape=same, dtype=floating, check=(_no_rate,), expand=lambda b, x, rate: b.identity(x),
           ref=lambda x, rate: x, cases=(Case(((2, 3),)),)),
    )  # fmt: skip


def ops(user: Mapping[str, Op]) -> tuple[Op, ...]:
    return (
        *(_elementwise(user[op], name) for name, op in WITH_SLOTS.items()),
        *(derived(user[op], f"anec.{name}", "ElementWise") for name, op in WITHOUT.items()),
        *(derived(user[op], f"anec.{name}", layer) for name, op, layer in SAME if name != "layer_norm"),
        _layer_norm(user["layer_norm"]),
        _neuron(user),
        _goc(),
        _pool(user),
        _reduction(user),
        _arg(user, "anec.arg_min_max", "ArgMinMax", whole=False),
        _arg(user, "anec.global_arg_min_max", "GlobalArgMinMax", whole=True),
        *_others(user),
    )
