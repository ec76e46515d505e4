"""A node of an ONNX model that is imported for several shapes."""

from collections.abc import Sequence
from typing import Any

import onnx

from hexane.graph import Value


class KeptNode:
    """The fields of a NodeProto, read from the message once.

    names_read: the result of `order.reads`. attributes_given: the attributes as Python values, checked against the
    op's schema. constants: the constant operands and the constant results of the last import, if the op computed
    constants from constants. All three are None until they are known.
    """

    __slots__ = (
        "attribute", "attributes_given", "constants", "domain", "input", "name", "names_read", "op_type", "output",
        "overload", "proto",
    )  # fmt: skip

    def __init__(self, proto: onnx.NodeProto) -> None:
        self.proto = proto
        self.op_type, self.domain, self.overload, self.name = proto.op_type, proto.domain, proto.overload, proto.name
        self.input, self.output = tuple(proto.input), tuple(proto.output)
        self.attribute = proto.attribute
        self.names_read: list[str] | None = None
        self.attributes_given: dict[str, Any] | None = None
        self.constants: tuple[Sequence[Any], Sequence[Any]] | None = None

    def results(self, inputs: Sequence[Any]) -> Sequence[Any] | None:
        """Returns the results of the last import if it computed constants from these constants, else None."""
        if self.constants is None or len(inputs) != len(self.constants[0]):
            return None
        same = all(a is b for a, b in zip(inputs, self.constants[0], strict=True))
        return self.constants[1] if same else None

    def keep(self, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        """Keeps the results for the next import if all operands and results are constants."""
        if all(v is None or (isinstance(v, Value) and v.node.op == "const") for v in (*inputs, *results)):
            self.constants = inputs, results


NodeLike = onnx.NodeProto | KeptNode
