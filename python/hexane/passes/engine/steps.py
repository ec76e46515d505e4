"""Builds steps in fp16 from the expansions of layers."""

from typing import Any

from hexane.dtypes import FP16, FP32
from hexane.graph import Node, Value
from hexane.ops import OPS, apply
from hexane.ops.compose import Operand, cast, lift
from hexane.ops.rewriter import Rewriter

_SCALED = ("quantize", "dequantize")  # scales stay fp32


def _has_kernel(node: Node) -> bool:
    return bool(OPS[node.op].kernel)


class Steps(Rewriter):
    """Builds ops in fp16 even where an expansion asks for fp32, the accumulator's dtype."""

    __slots__ = ("_products",)

    def __init__(self, *sources: str) -> None:
        super().__init__(*sources, legal=_has_kernel)
        self._products: dict[Value, list[Value | None]] = {}  # operands: product and sum round once together

    def several(self, name: str, *inputs: Operand, **attrs: Any) -> tuple[Value, ...]:
        operands = lift(inputs, self.sources)
        if name == "cast" and attrs["dtype"] is FP32:
            return (self._narrow(operands[0]),)  # type: ignore[return-value]
        if name not in _SCALED:
            operands = [self._narrow(v) for v in operands]
        if name == "add" and operands[0] in self._products:
            product = self._apply("mul", *(self._wide(v) for v in self._products[operands[0]]))
            return (cast(self, self._apply("add", product, self._wide(operands[1])), FP16),)
        values = super().several(name, *operands, **attrs)
        if name == "mul":
            self._products[values[0]] = operands
        return values

    def wide(self, name: str, *inputs: Operand, **attrs: Any) -> Value:
        """Applies the op in fp32 without rounding its result to fp16. Constants are still rounded to fp16."""
        operands = [v if v is None or v.node.op != "const" else self._narrow(v) for v in lift(inputs, self.sources)]
        return self._apply(name, *(self._wide(v) for v in operands), **attrs)

    def _apply(self, name: str, *operands: Value | None, **attrs: Any) -> Value:
        (value,) = apply(OPS[name], operands, attrs, self.sources)
        return value

    def _narrow(self, x: Value | None) -> Value | None:
        return x if x is None or x.dtype is not FP32 else apply(OPS["cast"], [x], {"dtype": FP16}, self.sources)[0]

    def _wide(self, x: Value | None) -> Value | None:
        return x if x is None or x.dtype is FP32 else apply(OPS["cast"], [x], {"dtype": FP32}, self.sources)[0]
