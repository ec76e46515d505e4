"""Computes an op in a wider dtype if no kernel supports its own dtype: bf16 in fp32, small integers in larger ones."""

from collections.abc import Mapping
from functools import lru_cache
from itertools import chain, combinations

from hexane.dtypes import DTYPES, DType
from hexane.graph import Graph, Node, Value
from hexane.ops import LEAVES, OPS, Op, apply
from hexane.ops.fold import fold_node
from hexane.ops.records.control import COMPILED
from hexane.targets import Kernels, Target

# Dtypes that hold all values of a dtype, nearest first. Integers wrap, so the low bits of a wider result equal the
# narrow result.
WIDER: Mapping[str, tuple[str, ...]] = {
    "bf16": ("fp32",),
    "fp16": ("fp32",),
    "int8": ("int16", "int32", "int64"),
    "uint8": ("int16", "int32", "int64"),
    "int16": ("int32", "int64"),
    "uint16": ("int32", "int64"),
    "int32": ("int64",),
    "uint32": ("int64",),
}

# Kernels that flush subnormals when they compute in bf16. Only the pass use_bf16 runs them in bf16.
IN_FP32 = ("matmul", "conv")
COMBINED = ("fp32", "int32", "int64")  # dtypes in which scatters combine updates; fp16 would round after each one

Dtypes = tuple[str | None, ...]


def legalize_dtypes(graph: Graph, target: Target) -> Graph:
    """add(%x, %y) : bf16  ->  cast(add(cast(%x) : fp32, cast(%y) : fp32)) : bf16

    Applies if no kernel supports these dtypes and one supports wider ones. The op computes in the wider dtype and its
    result is rounded once. Scatters that add or multiply always use a wide dtype, because in fp16 the sum would be
    rounded after each update.
    """

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        op = OPS.get(node.op)
        if node.op in LEAVES or op is None or not op.kernel or op.view or op.kernel in ("copy", "cast"):
            return None
        wider = _wider(target.kernels, op.kernel, *_dtypes(node), _refused(node))
        return None if wider is None else _widened(op, node, inputs, {DTYPES[n]: DTYPES[w] for n, w in wider})

    return graph.rewrite(change)


def _refused(node: Node) -> frozenset[str]:
    """Returns the dtypes in which the op may not compute its result, even if a kernel supports them."""
    kernel = OPS[node.op].kernel
    if kernel.startswith("scatter") and node.attrs["mode"] != "update":
        return frozenset(DTYPES) - frozenset(COMBINED)
    return frozenset(["bf16"]) if kernel in IN_FP32 and not node.op.startswith("cpu.bf16_") else frozenset()


def has_kernel(node: Node, kernels: Kernels) -> bool:
    """True if a kernel supports the node's dtypes, or wider ones instead of them."""
    kernel, dtypes = OPS[node.op].kernel, _dtypes(node)
    if node.op in COMPILED:  # the kernel's full signature is known only after the bodies are compiled
        return kernel in kernels
    return kernel in kernels and (kernels.has(kernel, *dtypes) or _wider(kernels, kernel, *dtypes) is not None)


def _dtypes(node: Node) -> tuple[Dtypes, Dtypes]:
    return tuple(v and v.dtype.name for v in node.inputs), tuple(t.dtype.name for t in node.types)


@lru_cache(maxsize=4096)
def _wider(
    kernels: Kernels, kernel: str, inputs: Dtypes, outputs: Dtypes, refused: frozenset[str] = frozenset()
) -> tuple[tuple[str, str], ...] | None:
    """Returns the smallest replacement of dtypes by wider ones for which a kernel exists: one pair (dtype, wider
    dtype), or two. Returns None if no replacement is needed or helps. A topk of int8 with indices in uint16 needs two
    pairs. refused: dtypes that the result may not have."""

    def runs(inputs: Dtypes, outputs: Dtypes) -> bool:
        return outputs[0] not in refused and kernels.has(kernel, inputs, outputs)

    if runs(inputs, outputs):
        return None
    swaps = [(d, wide) for d in dict.fromkeys(chain(inputs, outputs)) if d for wide in WIDER.get(d, ())]
    for result in (*((swap,) for swap in swaps), *combinations(swaps, 2)):
        change = dict(result)
        swapped = [tuple(change.get(d or "", d) for d in side) for side in (inputs, outputs)]
        if len(change) == len(result) and runs(*swapped):
            return result
    return None


def _widened(op: Op, node: Node, inputs: tuple[Value | None, ...], wider: Mapping[DType, DType]) -> tuple[Value, ...]:
    operands = [_cast(v, wider[v.dtype]) if v is not None and v.dtype in wider else v for v in inputs]
    attrs = {k: wider.get(v, v) if isinstance(v, DType) else v for k, v in node.attrs.items()}
    results = apply(op, operands, attrs, node.sources)
    return tuple(_cast(v, t.dtype) if v.dtype is not t.dtype else v for v, t in zip(results, node.types, strict=True))


def _cast(value: Value, dtype: DType) -> Value:
    cast = apply(OPS["cast"], [value], {"dtype": dtype}, value.node.sources)
    return (fold_node(cast[0].node) or cast)[0]
