"""Values that can be stored with a layer as its weights."""

from hexane.graph import Value
from hexane.ops.encodings import encoding_of, is_encoded

WEIGHTS = ("const", "param")  # ops whose values can be stored with a layer as its weights


def is_constant(value: Value | None) -> bool:
    return value is None or value.node.op == "const"


def is_weight(value: Value | None) -> bool:
    """True if the value is not computed, so that it can lie in kernel memory as part of a layer."""
    return value is not None and (value.node.op in WEIGHTS or is_encoded(value.node))


def decoded(weight: Value) -> Value:
    """Returns an encoded constant decoded, or another value unchanged."""
    return encoding_of(weight).decode() if is_encoded(weight.node) else weight
