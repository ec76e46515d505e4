"""The gradients of values, from the last op back to the first, by the rules in the records of the ops.

    y = mul(x, w)            dy given
    loss = reduce_sum(y)     dx = dy * w,  dw = dy * x

An op without a rule is differentiated through its expansion, with its inputs held fixed. Loops and branches have rules
in `bodies.py`, which differentiate their bodies. The starts and results of a checkpoint are aliases of other values.
Contributions to a gradient go to the aliased values, in the same order as without a checkpoint.
"""

from collections.abc import Iterable, Mapping, Sequence

from hexane.autograd.bodies import RULES
from hexane.dtypes import FP32, FP64, DType
from hexane.errors import Error
from hexane.graph import Node, Value
from hexane.ops import LEAVES, OPS
from hexane.ops.checkpoints import CHECKPOINTED, checkpoint_names
from hexane.ops.compose import cast
from hexane.ops.fold import Folder

MOST_SHOWN = 6  # largest number of ops that an error lists of a path


def backward(
    seeds: Mapping[Value, Value],
    wanted: Sequence[Value],
    sums: DType | None = None,
    held: frozenset[Value] = frozenset(),
) -> list[Value | None]:
    """Returns the gradient of each wanted value, or None if no seeded value depends on it.

    seeds: known gradients, by value. sums: the dtype in which several contributions are added; None: at least fp32.
    held: wanted values that are treated as inputs, however they are computed. Raises Error for an op that cannot be
    differentiated, with the path from it to the loss.
    """
    targets = frozenset(wanted)
    order = _before(seeds, held)
    depends = _depending(order, targets, held)
    names = {v: x for v, x in checkpoint_names(order).items() if v not in targets}
    by_value: dict[Value, list[Value]] = {}
    for value, seed in seeds.items():
        by_value.setdefault(_named(value, names), []).append(seed)
    totals: dict[Value, Value] = {}
    for node in reversed(order):
        gradients: list[Value | None] = []
        for value in node.values:
            total: Value | None = _total(by_value.pop(value, []), value, sums, node.sources)
            if total is not None and value in targets:
                totals[value] = total
            gradients.append(None if value in held else total)
        if all(g is None for g in gradients) or id(node) not in depends:
            continue
        needed = frozenset(v for v in node.inputs if v is not None and (v in targets or id(v.node) in depends))
        for operand, gradient in zip(node.inputs, _of_inputs(node, gradients, order, needed), strict=True):
            if operand is None or gradient is None or operand not in needed:
                continue
            assert gradient.type == operand.type, f"{node.op}: got {gradient.type} for an input of {operand.type}"
            by_value.setdefault(_named(operand, names), []).append(gradient)
    return [totals.get(value) for value in wanted]


def _before(seeds: Iterable[Value], held: frozenset[Value]) -> list[Node]:
    """The nodes that compute the seeded values, operands first, up to held values."""
    order: list[Node] = []
    seen: set[int] = set()
    stack: list[tuple[Node, bool]] = [(value.node, False) for value in seeds]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            if not held.issuperset(node.values):
                # Follow only the first operand of a checkpoint, its result: the result depends on the other operands,
                # the starts. So the order is the same as without checkpoints.
                inputs = node.inputs[:1] if node.op == CHECKPOINTED else node.inputs
                stack += [(value.node, False) for value in inputs if value is not None]
    return order


def _named(value: Value, names: Mapping[Value, Value]) -> Value:
    while value in names:
        value = names[value]
    return value


def _depending(order: Sequence[Node], targets: frozenset[Value], held: frozenset[Value]) -> set[int]:
    """The ids of nodes that read a target, or a float value that depends on a target."""
    depends: set[int] = set()
    for node in order:
        if node.op in LEAVES or held.issuperset(node.values):
            continue
        floats = [v for v in node.inputs if v is not None and v.dtype.kind == "float"]
        if any(v in targets or (v not in held and id(v.node) in depends) for v in floats):
            depends.add(id(node))
    return depends


def _total(parts: Sequence[Value], value: Value, sums: DType | None, sources: tuple[str, ...]) -> Value | None:
    """The sum of the contributions in the order of their arrival, in the dtype of the value."""
    if not parts:
        return None
    if len(parts) == 1:
        return parts[0]
    b = Folder(*sources, aligned=True)
    wide = sums or (value.dtype if value.dtype in (FP32, FP64) else FP32)
    total = cast(b, parts[0], wide)
    for part in parts[1:]:
        total = b.add(total, cast(b, part, wide))
    return cast(b, total, value.dtype)


def _of_inputs(
    node: Node, gradients: Sequence[Value | None], order: Sequence[Node], needed: frozenset[Value]
) -> Sequence[Value | None]:
    """The needed gradients of a node's inputs, from the rule of its op or through the op's expansion."""
    op, b = OPS[node.op], Folder(*node.sources, aligned=True)  # a gradient has the sources of its node
    try:
        if op.grad is not None:
            return op.grad(b, node, *gradients)
        if (rule := RULES.get(node.op)) is not None:
            return rule(b, node, gradients, needed, _of_body)
        if (expand := op.expand_for_gradients or op.expand) is None:
            why = op.no_grad or "its record has no gradient rule"
            raise Error(f"got an op that has no gradient: {why}")
    except Error as error:
        raise Error(f"[grad] {node.where}: {error}; on the way {_path(node, order)}") from None
    result = expand(b, *node.inputs, **node.attrs)
    outputs = (result,) if isinstance(result, Value) else tuple(result)
    seeds: dict[Value, Value] = {}
    for output, gradient in zip(outputs, gradients, strict=True):
        if gradient is not None:
            seeds[output] = gradient if output not in seeds else b.add(seeds[output], gradient)
    inputs = frozenset(v for v in node.inputs if v is not None)
    wanted = list(dict.fromkeys(v for v in node.inputs if v is not None and v in needed))
    by_value = dict(zip(wanted, backward(seeds, wanted, held=inputs), strict=True))
    # If two inputs are the same value, the first one gets the whole gradient.
    return [None if v is None else by_value.pop(v, None) for v in node.inputs]


def _of_body(seeds: Mapping[Value, Value], wanted: Sequence[Value], held: frozenset[Value]) -> list[Value | None]:
    return backward(seeds, wanted, held=held)


def _path(node: Node, order: Sequence[Node]) -> str:
    """The ops on the way from a node to the differentiated value."""
    path, last = [node], node
    for later in order[order.index(node) + 1 :]:
        if any(v is not None and v.node is last for v in later.inputs):
            path.append(later)
            last = later
    names = [n.op for n in path]
    if len(names) > MOST_SHOWN:
        names = [*names[: MOST_SHOWN - 1], "...", names[-1]]
    return " -> ".join(names)
