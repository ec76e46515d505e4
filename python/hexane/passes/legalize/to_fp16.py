"""Stores everything between the ports in fp16."""

from collections.abc import Container, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from hexane.dtypes import BF16, FP16, FP32, FP64, DType
from hexane.errors import Error
from hexane.graph import Array, Graph, Node, Value, constant, unique
from hexane.graph.decisions import Decision
from hexane.lowering.halves import half, keeps_scale, weights_of_products
from hexane.ops import OPS, Op, apply
from hexane.ops.fold import fold_node
from hexane.ops.records.control import COND, LOOP
from hexane.ops.records.decode import DECODE
from hexane.ops.records.encoded_product import ENCODED
from hexane.system.large_pages import LargePages
from hexane.targets import Chip, Target
from hexane.targets.floors import route_of

_SINGLE = (FP32, FP64, BF16)  # The dtypes that become fp16.
_MULTIPLIES = ("conv", "conv_transpose", "matmul", "linear", "mul")  # Ops whose constants are factors.
_LARGEST = float(np.finfo(np.float16).max)
_NORMAL = 0x0400  # the bits of the smallest normal number of fp16


def to_fp16(graph: Graph, target: Target, wide: Container[int] = frozenset()) -> Graph:
    """add(%x, const fp32) : fp32  ->  cast(add(cast(%x) : fp16, const fp16) : fp16) : fp32

    Inputs and outputs keep the model's dtypes. Constants, params, states and all wider floats between the ports become
    fp16, each rounded once. A constant that overflows fp16 becomes fp16's largest number, a constant that underflows
    becomes fp16's smallest. The model's own casts to fp32 become casts to fp16. In weights of a chip's products, block
    scales become fp16 if fp16 has them exactly or as normal numbers. Other weights in blocks are decoded unless fp16
    holds their scales exactly. A factor that fp16 cannot hold is reported as a decision "hazard". wide: the ids of
    nodes that stay unchanged.
    """
    table: dict[Value, Value] = {}
    kept: dict[Value, Value] = {}  # results of wide nodes, before they are rounded
    room = LargePages()
    hazards = []
    in_mil = isinstance(target, Chip) and route_of(target) == "mil"
    narrowed = weights_of_products(graph) if in_mil and "decode_blocks" in graph.ops else set[Node]()
    for node in graph.nodes:
        if id(node) in wide or node.op in (LOOP, COND):  # a loop body keeps its own dtypes
            whole = [None if v is None else kept.get(v) or _widened(v, table[v]) for v in node.inputs]
            kept.update(zip(node.values, apply(OPS[node.op], whole, node.attrs, node.sources), strict=True))
            table.update((v, _cast(kept[v], FP16) if v.dtype in _SINGLE else kept[v]) for v in node.values)
            continue
        inputs = [None if v is None else table[v] for v in node.inputs]
        table.update(zip(node.values, _halved(node, inputs, room, node in narrowed), strict=True))
        if node.op in _MULTIPLIES:
            operands = [(i < 2, v, table[v]) for i, v in enumerate(node.inputs) if v is not None]  # input 2 is a bias
            losses = [_lost(v.node.data, now.node.data, is_factor) for is_factor, v, now in operands]
            hazards += [Decision("to_fp16", node.where, "hazard", reason) for reason in losses if reason]
    outputs = tuple(p._replace(value=kept.get(p.value) or _cast(table[p.value], p.value.dtype)) for p in graph.outputs)
    updates = tuple(table[v] for v in graph.updates)
    result = replace(graph, outputs=outputs, updates=updates, taps=graph.tapped(table.__getitem__))
    return result.decided(*hazards)


def lost_factors(decisions: Iterable[Decision]) -> list[Decision]:
    """Returns the decisions of `to_fp16` about factors that fp16 cannot hold."""
    return [d for d in decisions if d.verdict == "hazard" and d.stage == "to_fp16"]


def may_lose_factors(node: Node) -> bool:
    """True if a product may have constants that fp16 cannot hold. A quick test that may err on the safe side."""
    if node.op not in _MULTIPLIES:
        return False
    for value in node.inputs:
        data = None if value is None or value.node.op != "const" else value.node.data
        if data is None or data.dtype != np.float32 or not data.size:
            continue
        if np.abs(data.reshape(-1)[:64]).max() < 2.0**-14 or max(float(data.max()), -float(data.min())) >= 65520:
            return True
    return False


def _lost(factors: Array | None, halves: Array | None, is_factor: bool = True) -> str:
    """Returns what a constant loses in fp16: it overflows, or all its numbers lose digits. Returns "" without a loss.

    A factor may multiply a large number, so its digits count. The rounding of a summand matters no more than the
    rounding of the sum to fp16 does, unless the summand overflows.
    """
    if (
        factors is None
        or halves is None
        or halves.dtype != np.float16
        or factors.dtype == np.float16
        or not halves.size
    ):
        return ""
    bits = halves.view(np.uint16).reshape(-1) & 0x7FFF
    if (bits == 0x7BFF).any() and (largest := float(np.abs(factors[np.isfinite(factors)]).max())) >= 65520:
        what = "factors are" if is_factor else "bias is"
        return f"its {what} as large as {largest:.3g}, and {_LARGEST:.0f} in fp16"
    if is_factor and bits[:64].max() < _NORMAL and 0 < (largest := float(np.abs(factors).max())) < 2.0**-14:
        lost = float(np.abs(halves.astype(np.float64) - factors).max())
        return f"its factors are {largest:.3g} at most, of which fp16 keeps few digits" if lost > largest / 2048 else ""
    return ""


def _halved(node: Node, inputs: list[Value | None], room: LargePages, narrows: bool) -> tuple[Value, ...]:
    single = node.types[0].dtype in _SINGLE
    if node.op == "input":
        return apply(OPS["cast"], node.values, {"dtype": FP16}, node.sources) if single else node.values
    if node.op == "const":
        assert node.data is not None
        return (constant(half(node.data, room), node.sources),) if single else node.values
    if node.op in ("param", "state"):
        data = None if node.data is None else half(node.data) if single else node.data
        kind = type(node.types[0])(FP16, node.types[0].shape)
        return (unique(node.op, str(node.attrs["name"]), kind, data, node.sources),) if single else node.values
    if "scale" in (n.rstrip("?") for n in OPS[node.op].inputs):
        return _quantised(node, inputs)
    if node.op in ENCODED:  # the kernel rounds each number when it decodes it
        x, weight, numbers, bias = inputs[0], *node.inputs[1:3], inputs[3]
        return apply(OPS[node.op], [x, weight, numbers, bias], node.attrs, node.sources)
    if node.op == DECODE:
        return apply(OPS[DECODE], node.inputs, {**node.attrs, "dtype": FP16}, node.sources)
    if node.op in ("decode_blocks", "decode_scaled_palette"):
        return _blocks(node, inputs, room, narrows)
    attrs = {k: FP16 if isinstance(v, DType) and v in _SINGLE else v for k, v in node.attrs.items()}
    if not _takes_halves(OPS[node.op], inputs, attrs):
        operands = [
            v if v is None or old is None or v.dtype is not FP16
            else _cast(v, old.dtype if node.op == "bit_cast" else FP32)  # a bit cast depends on its dtype
            for v, old in zip(inputs, node.inputs, strict=True)
        ]  # fmt: skip
        results = apply(OPS[node.op], operands, node.attrs, node.sources)
        halves = tuple(_cast(v, FP16) if v.dtype in _SINGLE else v for v in results)
        # Numbers just below 1 round to 1, which is outside the interval [0, 1), so they are clipped.
        return apply(OPS["clip"], halves, {"beta": 1 - 2.0**-11}, node.sources) if node.op == "random" else halves
    if single:
        attrs |= {k: float(half(np.asarray(attrs[k], np.float32))) for k in OPS[node.op].results}
    return apply(OPS[node.op], inputs, attrs, node.sources)


def _takes_halves(op: Op, inputs: list[Value | None], attrs: dict[str, Any]) -> bool:
    """True if the op's record allows it to compute in fp16; otherwise it computes in fp32."""
    try:
        dtypes = op.dtype(*(None if v is None else v.dtype for v in inputs), **attrs)
    except Error:
        return False
    return FP32 not in (dtypes if isinstance(dtypes, list) else [dtypes])


def _quantised(node: Node, inputs: list[Value | None]) -> tuple[Value, ...]:
    """Keeps scales and biases in fp32, the dtype of products of integers before they are rounded to fp16."""
    whole = list(inputs)
    for i, (old, new) in enumerate(zip(node.inputs, inputs, strict=True)):
        if old is not None and new is not None and old.dtype in _SINGLE and (i > 0 or node.op != "quantize"):
            whole[i] = old if old.node.op == "const" else _cast(new, old.dtype)
    if node.op == "dequantize":
        return apply(OPS["dequantize"], whole, {**node.attrs, "dtype": FP16}, node.sources)
    values = apply(OPS[node.op], whole, node.attrs, node.sources)
    return apply(OPS["cast"], values, {"dtype": FP16}, node.sources) if values[0].dtype in _SINGLE else values


def _blocks(node: Node, inputs: list[Value | None], room: LargePages, narrows: bool) -> tuple[Value, ...]:
    """Keeps the encoding with fp16 scales if they are exact in fp16 or, with `narrows`, normal numbers of fp16.
    A weight whose scales fp16 does not keep is decoded, with numbers rounded once."""
    scales, narrow = node.inputs[-1], inputs[-1]
    assert scales is not None
    assert narrow is not None
    wide, known = scales.node.data, narrow.node.data
    is_exact = wide is not None and known is not None and np.array_equal(known, wide)
    if scales.dtype is FP16 or is_exact or (narrows and wide is not None and keeps_scale(wide)):
        return apply(OPS[node.op], inputs, node.attrs, node.sources)
    whole = fold_node(node)
    if whole is not None and whole[0].node.data is not None:
        return (constant(half(whole[0].node.data, room), node.sources),)
    operands = [*inputs[:-1], scales if wide is not None else _cast(narrow, FP32)]
    return (_cast(apply(OPS[node.op], operands, node.attrs, node.sources)[0], FP16),)


def _widened(value: Value, halved: Value) -> Value:
    """Returns a value in the model's dtype. A constant is not rounded."""
    return value if value.node.op == "const" else _cast(halved, value.dtype)


def _cast(value: Value, kind: DType) -> Value:
    return value if value.dtype is kind else apply(OPS["cast"], [value], {"dtype": kind}, value.node.sources)[0]
