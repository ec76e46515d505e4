"""A node of an ONNX model that is imported for several shapes."""

from typing import Any

import onnx


class KeptNode:
    """The fields of a NodeProto, read from the message once.

    names_read: the result of `order.reads`. attributes_given: the attributes as Python values, checked against the
    op's schema. Both fields are None until they are needed.
    """

    __slots__ = (
        "attribute", "attributes_given", "domain", "input", "name", "names_read", "op_type", "output", "overload",
        "proto",
    )  # fmt: skip

    def __init__(self, proto: onnx.NodeProto) -> None:
        self.proto = proto
        self.op_type, self.domain, self.overload, self.name = proto.op_type, proto.domain, proto.overload, proto.name
        self.input, self.output = tuple(proto.input), tuple(proto.output)
        self.attribute = proto.attribute
        self.names_read: list[str] | None = None
        self.attributes_given: dict[str, Any] | None = None


NodeLike = onnx.NodeProto | KeptNode
