"""Rewrites matrix products with large weights as 1 x 1 convolutions."""

from hexane.graph import Graph, Node, Value
from hexane.graph.decisions import Decision
from hexane.ops import LEAVES, OPS, apply
from hexane.ops.encodings import encoding_of
from hexane.ops.rewriter import Rewriter
from hexane.passes.engine.legalize.compression import kernel_bytes
from hexane.passes.layout.images import columns_to_image, filters_of, from_image, on_image, to_image
from hexane.targets import Chip, Target
from hexane.validate.constants import is_constant
from hexane.validate.node import judge

STAGE = "products_as_convolutions"
SOURCE = "guide ch22; constraint 17 (maderix, measured)"
PRODUCTS = ("matmul", "linear")


def products_as_convolutions(graph: Graph, target: Target) -> Graph:
    """gelu(matmul(%x : fp16[1, 64, 768], const [768, 3072], %b))
      ->  transpose(gelu(conv(transpose(%x) : [1, 768, 1, 64], const [3072, 768, 1, 1], %b)))

    The engine's own compiler rewrites a product as a convolution if its weights fit the working set.
    `products_as_convolutions` rewrites products with larger weights. A convolution reads each weight once, and its
    layer absorbs bias and activation. A product would read its weights as a tensor and write its result to main memory
    before the activation. Elementwise ops that follow are computed on the image, so that the next product needs no
    transpose. Weights must be constants, encoded or not. The product is kept if the chip does not run the convolution.
    """
    if not isinstance(target, Chip) or graph.ops.isdisjoint(PRODUCTS):
        return graph
    images = _Images(target)
    return graph.rewrite(images.written).decided(*images.decisions)


class _Images:
    """images: for each new value with channels as its last axis, the value as (batch, channels, rows, tokens)."""

    def __init__(self, chip: Chip) -> None:
        self.chip = chip
        self.images: dict[Value, Value] = {}
        self.filters: dict[tuple[Value, bool], Value | None] = {}
        self.decisions: list[Decision] = []

    def written(self, node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node.op in PRODUCTS:
            return self._product(node, inputs)
        if self.images and node.op in OPS and OPS[node.op].elementwise and len(node.types) == 1:
            return self._elementwise(node, inputs)
        return None

    def _product(self, node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        x, weight, bias = (*inputs, None)[:3]
        assert x is not None
        assert weight is not None
        encoding, size = encoding_of(weight), self.chip.memory.working_set
        if kernel_bytes(encoding, self.chip) <= size or encoding.stored.node.op != "const":
            return None
        if weight.type.rank != 2 or not _is_rows(node, x, bias):
            return None
        made = Rewriter(*node.sources)
        columns = bool(node.attrs.get("transpose_x"))
        image = columns_to_image(made, x) if columns else self.images.get(x) or to_image(made, x)
        filters = self.filters_of(weight, node.op == "linear" or bool(node.attrs["transpose_y"]))
        if filters is None:
            return None
        own = bias if bias is not None and is_constant(bias.node) else None
        result = made.conv(image, filters, own)
        if bias is not None and own is None:  # a computed bias, such as the residual of one token
            result = made.add(result, made.reshape(bias, shape=(1, bias.type.size, 1, 1)))
        value = from_image(made, result, node.types[0].shape)
        if not self._runs(value, x, bias):
            return None
        self.images[value] = result
        if not columns:
            self.images[x] = image
        reason = (
            f"as a convolution: {kernel_bytes(encoding, self.chip)} bytes of weights, the working set has {size}:"
            " a product would load them as a tensor"
        )
        self.decisions.append(Decision(STAGE, node.where, "rewritten", reason, SOURCE))
        return (value,)

    def _elementwise(self, node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        shape = node.types[0].shape
        operands = [on_image(v, shape, self.images) for v in inputs if v is not None]
        if None in operands or len(operands) < len(inputs) or self.images.keys().isdisjoint(inputs):
            return None
        result = apply(OPS[node.op], operands, node.attrs, node.sources)[0]
        value = from_image(Rewriter(*node.sources), result, shape)
        if not self._runs(value, *inputs):
            return None
        self.images[value] = result
        return (value,)

    def _runs(self, value: Value, *inputs: Value | None) -> bool:
        """True if the chip runs every node from these inputs, or from their images, to the value."""
        known = {v.node for v in inputs if v is not None}
        known |= {self.images[v].node for v in inputs if v in self.images}
        stack = [value.node]
        while stack:
            node = stack.pop()
            if node in known or is_constant(node):
                continue
            if node.op in LEAVES or judge(node, self.chip).verdict != "native":
                return False
            stack += [v.node for v in node.inputs if v is not None]
        return True

    def filters_of(self, weight: Value, out_first: bool) -> Value | None:
        """Returns the matrix as 1 x 1 weights with output channels first, in its encoding. Returns None if the encoding
        cannot store them."""
        if (weight, out_first) not in self.filters:
            self.filters[weight, out_first] = filters_of(weight, out_first)
        return self.filters[weight, out_first]


def _is_rows(node: Node, x: Value, bias: Value | None) -> bool:
    """True if the left operand has rows, and the bias has one number per column of the result."""
    if x.type.rank < 2 or 0 in node.types[0].shape:
        return False
    return bias is None or (bias.type.rank == 1 and bias.type.size == node.types[0].shape[-1])
