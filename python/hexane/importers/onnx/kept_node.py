"""A node of an ONNX model that is imported for several shapes."""

from collections.abc import Iterable, Sequence
from typing import Any

import onnx

from hexane.graph import Value


class KeptNode:
    """The fields of a NodeProto, read from the message once.

    names_read: the result of `order.reads`. attributes_given: the attributes as Python values, checked against the
    op's schema. constants: the constant operands and the constant results of the last import, if the op computed
    constants from constants. These three fields, names_read, attributes_given and constants, are None until known.
    is_fixed: the operands do not depend on shapes.
    """

    __slots__ = (
        "attribute", "attributes_given", "constants", "domain", "input", "is_fixed", "name", "names_read", "op_type",
        "output", "overload", "proto",
    )  # fmt: skip

    def __init__(self, proto: onnx.NodeProto) -> None:
        self.proto = proto
        self.op_type, self.domain, self.overload, self.name = proto.op_type, proto.domain, proto.overload, proto.name
        self.input, self.output = tuple(proto.input), tuple(proto.output)
        self.attribute = proto.attribute
        self.names_read: list[str] | None = None
        self.attributes_given: dict[str, Any] | None = None
        self.constants: tuple[Sequence[Any], Sequence[Any]] | None = None
        self.is_fixed = False

    def results(self, inputs: Sequence[Any]) -> Sequence[Any] | None:
        """Returns the results of the last import if it computed constants from these constants, else None."""
        if self.constants is None or len(inputs) != len(self.constants[0]):
            return None
        same = all(a is b for a, b in zip(inputs, self.constants[0], strict=True))
        return self.constants[1] if same else None

    def keep(self, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        """Keeps the results for the next import if all operands and results are the same constants for all shapes."""
        if self.is_fixed and all(
            v is None or (isinstance(v, Value) and v.node.op == "const") for v in (*inputs, *results)
        ):
            self.constants = inputs, results


def kept_nodes(nodes: Iterable[onnx.NodeProto], initializers: Iterable[str]) -> tuple[KeptNode, ...]:
    """Returns the nodes. initializers: the names of constants that no input replaces."""
    result, fixed = tuple(map(KeptNode, nodes)), set(initializers)
    for node in result:
        node.is_fixed = all(name in fixed for name in node.input if name)
        if node.is_fixed:
            fixed.update(node.output)
    return result


NodeLike = onnx.NodeProto | KeptNode
