"""Converts ops to Core ML's form: the forms of MIL text, and additional ones for packages."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hexane.dtypes import BOOL
from hexane.emit.coreml.control import CONTROL, around_step, with_bodies
from hexane.emit.coreml.dtypes import narrow_attributes, narrowed
from hexane.emit.coreml.rules import RULES
from hexane.emit.coreml.systems import least_system
from hexane.errors import Error
from hexane.graph import Graph, Node, Value
from hexane.importers.coreml import ops as _ops
from hexane.importers.coreml.ops.indexing import COMBINES
from hexane.importers.coreml.registry import HANDLERS
from hexane.mil.arguments import Parameter, parameters
from hexane.mil.forms import WRITE, MilCall
from hexane.mil.forms.form import Write
from hexane.mil.forms.quantised import palette
from hexane.ops import LEAVES, OPS, apply
from hexane.ops.compose import Operand, lift
from hexane.ops.encodings import encoding_of, is_encoded
from hexane.ops.recording import check, recorded
from hexane.ops.rewriter import Rewriter, expansion

assert _ops is not None  # Importing `_ops` registers the arguments of ops that MIL text lacks.
MOST_AXES = 5  # Most axes of a tensor in Core ML.


def form_of(node: Node) -> MilCall | None:
    """Returns the node as an op of MIL in some iOS version, or None if it has no form."""
    write = _BEYOND.get(node.op) or WRITE.get(node.op)
    if write is None or any(len(kind.shape) > MOST_AXES or 0 in kind.shape for kind in node.types):
        return None
    view = recorded(node)
    form = write(view)
    if form is None:
        return None
    check(view, "form in Core ML")
    if not _takes(form, node):
        return None
    for p in arguments_known(form.op):
        value = form.arguments.get(p.name)
        if p.kind == "weight" and isinstance(value, Value) and not (value.node.op == "const" or is_encoded(value.node)):
            return None
        if p.kind == "float" and value is not None and node.types[0].dtype is BOOL:
            return None
    return form if least_system(form, node) is not None else None


def _takes(form: MilCall, node: Node) -> bool:
    """True if Core ML's type inference accepts the form, and the op has the same meaning in Core ML."""
    given = form.arguments
    if form.op == "local_response_norm":  # for 3 axes, Core ML normalises over the first axis
        return len(node.types[0].shape) == 4
    if form.op in ("max_pool", "avg_pool") and node.attrs["ceil_mode"]:
        return _is_ceiled(node)
    if form.op == "select":  # the result has the shape of both values, not the condition's
        return np.broadcast_shapes(given["a"].shape, given["b"].shape) == node.types[0].shape
    if form.op == "scaled_dot_product_attention":
        return len({given[name].shape[:-2] for name in ("query", "key", "value")}) == 1
    if form.op in ("layer_norm", "batch_norm", "instance_norm"):
        return given["gamma"] is not None or given["beta"] is None
    return True


def _is_ceiled(node: Node) -> bool:
    """True if Core ML's ceil_mode, which supports only equal pads, gives the shape of a pool."""
    x, attrs = node.inputs[0], node.attrs
    assert x is not None
    extents = zip(x.shape[2:], node.types[0].shape[2:], attrs["kernel_sizes"], attrs["strides"],
                  attrs["pad"][::2], attrs["pad"][1::2], strict=True)  # fmt: skip
    for extent, out, kernel, stride, before, after in extents:
        count = (extent + before + after - kernel + stride - 1) // stride + 1
        if (count - 1) * stride >= extent + before and before + after > 0:
            count -= 1
        if before != after or count != out:
            return False
    return len(x.shape) <= 4


def arguments_known(op: str) -> Sequence[Parameter]:
    """Returns the arguments of an op in order."""
    return parameters()[op] if op in parameters() else HANDLERS[op].parameters


def is_stored(node: Node) -> bool:
    """True for an encoded weight whose encoding Core ML has."""
    return is_encoded(node) and (form := form_of(node)) is not None and form.op.startswith("constexpr_")


def in_coreml_ops(graph: Graph) -> Graph:
    """celu(%x)  ->  mul(elu(real_div(%x, a)), a)

    Rewrites each node to a form in Core ML. Raises Error that lists all ops without a form.
    """
    problems: dict[str, list[str]] = {}
    result = _written(graph, problems)
    if problems:
        listed = "\n  ".join(f"{what}: {', '.join(where[:3])}" for what, where in problems.items())
        kinds = f"{len(problems)} kind{'s' if len(problems) > 1 else ''} of ops"
        raise Error(f"[emit] {kinds} cannot be written for Core ML:\n  {listed}")
    return result


def _written(graph: Graph, problems: dict[str, list[str]]) -> Graph:
    """Returns the graph and its bodies in ops of Core ML. problems: collects the ops without a form, and their
    places."""
    b = _CoreMLOps()
    table: dict[Value, Value] = {}
    for node in graph.nodes:
        if not node.inputs:
            continue
        inputs = tuple(None if v is None else table.get(v, v) for v in node.inputs)
        if node.op in CONTROL:
            values = with_bodies(node, inputs, around_step(lambda body: _written(body, problems)))
        else:
            values = b.written(node, inputs)
        table.update(zip(node.values, values, strict=True))
    result = graph.replace(table)
    for node in result.nodes:
        if not _is_legal(node):
            why = _why(node) or b.reasons.get(node.op) or "no form in Core ML"
            given = ", ".join(str(v.type) for v in node.inputs if v is not None)
            problems.setdefault(f"{node.op} of {given}: {why}", []).append(node.where)
    return result


def _why(node: Node) -> str:
    kinds = [*node.types, *(v.type for v in node.inputs if v is not None)]
    if any(0 in kind.shape for kind in kinds):
        return "got no elements, need some"
    most = max(len(kind.shape) for kind in kinds)
    return f"got {most} axes, need at most {MOST_AXES}" if most > MOST_AXES else ""


def _is_legal(node: Node) -> bool:
    if node.op in CONTROL:
        return not _why(node)
    return node.op in (*LEAVES, "write_state") or form_of(node) is not None


class _CoreMLOps(Rewriter):
    """Rewrites ops for Core ML. Encoded weights stay encoded if Core ML has the encoding. reasons: why patterns did not
    apply, by op."""

    __slots__ = ("active", "reasons")

    def __init__(self) -> None:
        super().__init__(legal=_is_legal, patterns=RULES, folds=True)
        self.reasons: dict[str, str] = {}
        self.active: set[Node] = set()  # nodes being rewritten; if a pattern returns one of them, the op has no form

    def written(self, node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...]:
        """Returns the values of a node with these inputs, where inputs with 64-bit integers may have become int32."""
        self.sources = node.sources
        return self.settled(node.with_inputs(inputs))

    def several(self, name: str, *inputs: Operand, **attrs: Any) -> tuple[Value, ...]:
        operands = [narrowed(v) for v in lift(inputs, self.sources)]
        return self.settled(apply(OPS[name], operands, narrow_attributes(attrs), self.sources)[0].node)

    def settled(self, node: Node) -> tuple[Value, ...]:
        if node.op == "cast" and node.inputs[0] is not None and node.inputs[0].type == node.types[0]:
            return (node.inputs[0],)  # int64 and int32 have become one dtype
        if is_encoded(node):
            stored = as_stored(node)
            if is_stored(stored):
                return stored.values
        return super().settled(node)

    def rewritten(self, node: Node) -> tuple[Value, ...]:
        if node in self.active or _why(node):
            return node.values
        self.active.add(node)
        try:
            for pattern in (*self.patterns.get(node.op, ()), expansion):
                try:
                    result = pattern(self, node)
                except Error as error:
                    self.reasons[node.op] = str(error).partition("] ")[2].partition(", need it on the host")[0]
                    continue
                if result is not None:
                    return (result,) if isinstance(result, Value) else tuple(result)
        finally:
            self.active.discard(node)
        return self.stuck(node)


def as_stored(node: Node) -> Node:
    """Returns a palette with an entry for every index of its width, and any other node unchanged."""
    return palette(node) or node if node.op == "gather" and encoding_of(node.values[0]).kind == "palette" else node


# ---- ops that MIL text of the engine lacks ----

_MODES = {own: mil for mil, own in COMBINES.items()}


def _write_scatter(node: Node) -> MilCall | None:
    x, indices, updates = node.inputs
    if node.attrs["mode"] not in _MODES:
        return None
    given: dict[str, Any] = {"data": x, "indices": indices, "updates": updates}
    given |= {"axis": node.attrs["axis"]} if node.op == "scatter_along_axis" else {}
    return MilCall(node.op, {**given, "mode": _MODES[node.attrs["mode"]], "validate_indices": False})


_BEYOND: Mapping[str, Write] = {"scatter_nd": _write_scatter, "scatter_along_axis": _write_scatter}
