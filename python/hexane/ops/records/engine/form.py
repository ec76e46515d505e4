"""Builders of layer records: derived from a user's record, or a core op followed by a chain of slots."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hexane.dtypes import DTYPES, FP16, FP32
from hexane.graph import EpilogueSlot
from hexane.ops.attributes import SLOTS, Attr, texts
from hexane.ops.neurons import NEURONS
from hexane.ops.slot_steps import run_chain
from hexane.ops.slots import POINTS
from hexane.ops.spec import Op

Array = Any
Core = Callable[
    ..., tuple[str, list[Any], dict[str, Any]]
]  # (b, *inputs, **attrs) -> an op of users, its operands, its attributes
HALVES = (FP16, DTYPES["bf16"])
ROUNDS: Mapping[str, Attr] = {"rounds": texts(("output",), POINTS)}
BIASED = ("conv", "conv_transpose", "matmul")
KERNELS = (*BIASED, "add", "sub", "mul", "real_div")  # kernels that can end with activations


def derived(op: Op, name: str, layer: str) -> Op:
    """Returns a layer that is defined as the user's op."""

    def expand(b: Any, *inputs: Any, **attrs: Any) -> Any:
        return b.several(op.name, *inputs, **attrs)

    return replace(
        op, name=name, level="engine", layer=layer, kernel="", kernel_attrs=None, expand=expand, view=False, layout="",
        epilogue=False, onnx=(), ragged=None,
    )  # fmt: skip


def slotted(core: Core, **record: Any) -> Op:
    """Returns a layer with slots: the core, one op of users in the precision of the accumulator, followed by the chain
    of slots."""
    names = record["inputs"]

    def expand(b: Any, *inputs: Any, epilogue: tuple[EpilogueSlot, ...], rounds: tuple[str, ...], **attrs: Any) -> Any:
        own = inputs[: len(names)]
        op, operands, core_attrs = core(b, *own, **attrs)
        if rounds == ("output",):
            direct = _direct(b, op, operands, core_attrs, epilogue, inputs)
            if direct is not None:
                return direct
        store = own[0].dtype
        wide = FP32 if store in HALVES else store
        if "accumulate" in rounds and all(v is None or v.dtype is store for v in operands):
            y = b.apply(op, *operands, **core_attrs)
            return run_chain(b, y if store is wide else b.cast(y, dtype=wide), epilogue, inputs, rounds, store)
        operands = [v if v is None or v.dtype is wide else b.cast(v, dtype=wide) for v in operands]
        return run_chain(b, b.apply(op, *operands, **core_attrs), epilogue, inputs, rounds, store)

    attrs = {**record.pop("attrs", {}), "epilogue": SLOTS, **ROUNDS}
    return Op(**record, attrs=attrs, level="engine", epilogue=True, expand=expand)


def _direct(
    b: Any,
    op: str,
    operands: Sequence[Any],
    attrs: Mapping[str, Any],
    slots: Sequence[EpilogueSlot],
    inputs: Sequence[Any],
) -> Any:
    """Returns the layer as one kernel of the accumulator's precision that rounds once at the end, or None if no kernel
    can compute the whole layer."""
    mixed = any(v is not None and v.dtype is not inputs[0].dtype for v in operands)
    if mixed or not is_finished(op, operands, slots, inputs):
        return None
    chain, perm, operands = [], None, list(operands)
    for s in slots:
        v = dict(s.attributes)
        if s.op == "transpose":
            perm = v["perm"]
        elif s.op == "gain_offset":
            operands = [*[*operands, None][:2], inputs[v["offset"]]]
        else:
            neuron = NEURONS[v["mode"]]
            chain.append(EpilogueSlot(neuron.op, tuple(neuron.attrs(v["alpha"], v["beta"]).items())))
    if not chain and perm is None:
        return b.apply(op, *operands, **attrs)
    y = b.apply(f"cpu.{op}", *operands, **attrs, epilogue=tuple(chain)) if chain else b.apply(op, *operands, **attrs)
    return y if perm is None else b.transpose(y, perm=perm)


def is_finished(op: str, operands: Sequence[Any], slots: Sequence[EpilogueSlot], inputs: Sequence[Any]) -> bool:
    """True if the kernel of a user's op can perform all these slots: a bias, activations, and a transpose of the
    result."""
    is_active = False
    for s in slots:
        if s.op in ("pre_activation", "post_activation"):
            is_active = True
        elif s.op == "gain_offset":
            v = dict(s.attributes)
            if v["gain"] >= 0 or is_active or not _is_bias(op, operands, v, inputs):
                return False
        elif s.op != "transpose":
            return False
    return not is_active or op in KERNELS


def _is_bias(op: str, operands: Sequence[Any], v: Mapping[str, Any], inputs: Sequence[Any]) -> bool:
    offset, rank = inputs[v["offset"]], max(len(o.shape) for o in operands if o is not None)
    axis = {"conv": 1, "conv_transpose": 1, "matmul": rank - 1}.get(op)
    return axis == v["axis"] and len(offset.shape) == 1 and offset.dtype is operands[0].dtype and len(operands) < 3


def rounded_once(body: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an expansion that computes the body in the accumulator's precision, and rounds once."""

    def expand(b: Any, x: Any, *others: Any, **attrs: Any) -> Any:
        wide = FP32 if x.dtype in HALVES else x.dtype
        if wide is x.dtype:
            return body(b, x, *others, **attrs)
        operands = [v if v is None else b.cast(v, dtype=wide) for v in (x, *others)]
        return b.cast(body(b, *operands, **attrs), dtype=x.dtype)

    return expand
