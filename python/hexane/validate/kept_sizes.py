"""Ops whose results are about as large as their largest operand."""

from hexane.graph import Array, Node, Value
from hexane.ops import LEAVES, OPS

VIEWS = ("reshape", "expand_dims", "squeeze", "transpose")
NORMS = ("layer_norm", "instance_norm", "group_norm", "rms_norm")  # Ops whose results do not depend on the size of x.
# Ops whose results are about as large as their largest operand, or bounded on one side.
KEEPING: tuple[str, ...] = (
    "add",
    "sub",
    "max_pool",
    "avg_pool",
    "relu",
    "silu",
    "gelu",
    "mish",
    "hard_swish",
    "softplus",
    "leaky_relu",
    "elu",
    "abs",
    "neg",
    "prelu",
    "sqrt",
    "maximum",
    "minimum",
    "reduce_max",
    "reduce_min",
    "reduce_mean",
    "reduce_l2_norm",
)
RECIPROCALS = ("inverse", "rsqrt", "real_div", "exp", "softmax", "log", *NORMS, "l2_norm")
BESIDE = ("add", "mul", "sub", "maximum", "broadcast_to", "reshape", "transpose", "expand_dims")
MOST_BESIDE = 4


def keeps_size(node: Node) -> bool:
    """True if the results are about as large as the largest operand."""
    return node.op in KEEPING or bool(OPS[node.op].moves) or _is_gated(node) or 0 < _exponent(node) <= 1


def _is_gated(node: Node) -> bool:
    """True for a product of two computed tensors of the same shape, such as %x * sigmoid(%x), neither of them a
    reciprocal."""
    values = [v for v in node.inputs if v is not None]
    if node.op != "mul" or any(v.node.op in LEAVES or v.shape != node.types[0].shape for v in values):
        return False  # a broadcast operand is a scale, which may make numbers small again
    for value in values:
        depth = 0
        while depth < MOST_BESIDE and (value.node.op in BESIDE or _is_over_constant(value.node)):
            computed = next((v for v in value.node.inputs if v is not None and v.node.op not in LEAVES), None)
            value, depth = computed or value, depth + 1
        if value.node.op in RECIPROCALS or _exponent(value.node) < 0:
            return False
    return True


def _exponent(node: Node) -> float:
    """The exponent of a power by a constant; 0 for other ops."""
    numbers = numbers_of(node.inputs[1]) if node.op == "pow" and node.inputs[1] is not None else None
    return 0.0 if numbers is None or numbers.size != 1 else float(numbers.reshape(-1)[0])


def _is_over_constant(node: Node) -> bool:
    divisor = node.inputs[1] if node.op == "real_div" else None
    return divisor is not None and divisor.node.op == "const"


def numbers_of(value: Value) -> Array | None:
    """The elements of a constant, or of a view of one, in any shape."""
    while value.node.op in VIEWS and value.node.inputs[0] is not None:
        value = value.node.inputs[0]
    return value.node.data if value.node.op == "const" else None
