"""Folds batch normalisation, and other scales and shifts of channels, into the weights before it."""

from hexane.graph import Graph, Node, Value
from hexane.lowering.channel_scales import Affine, affine_of, float_product, scaled_operands
from hexane.ops import OPS, apply
from hexane.ops.match import channel_axis, joined_sources
from hexane.targets import Chip, Target


def fold_batch_norm(graph: Graph, target: Target) -> Graph:
    """batch_norm(conv(%x, %w, %b), %mean, %var, %gamma, %beta)  ->  conv(%x, %w * s, (%b - %mean) * s + %beta)

    Where s = %gamma / sqrt(%var + epsilon) and all but %x are constants; likewise products and sums with one constant
    for each channel (convolutions) or column (matmul). Nothing else may read the product. The weights become new
    constants, a chain is computed in fp64 and rounded once; it stays where that overflows or loses more than fp32
    rounding does. For a chip it stays too where fp16 keeps fewer digits of the new weights than of the old ones.
    """
    return _folded(graph, isinstance(target, Chip))


def fold_batch_norm_halves(graph: Graph, target: Target) -> Graph:
    """mul(conv(%x, %w), const [C, 1, 1])  ->  conv(%x, %w * const)

    Like fold_batch_norm, for a network that becomes fp16. Requires that the new weights keep as many fp16 digits as the
    old ones.
    """
    return _folded(graph, True)


def _folded(graph: Graph, in_halves: bool) -> Graph:
    """in_halves: whether the weights are rounded to fp16 afterwards."""
    counts = graph.use_counts()
    folded: dict[Value, tuple[Node, Affine]] = {}  # the folded product -> its old maker and the affine it absorbed

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        for i, product in enumerate(inputs[:2]):
            maker = float_product(product)
            if product is None or maker is None or counts[node.inputs[i]] != 1 or maker.types != node.types:  # type: ignore[index]
                continue
            affine = affine_of(node, inputs, i, channel_axis(maker))
            if affine is None:
                continue
            base, before = folded.get(product, (maker, None))
            affine = affine if before is None else before.then(affine)
            operands = scaled_operands(base, affine, in_halves)
            if operands is None:
                continue
            sources = joined_sources(maker, node)
            result = apply(OPS[base.op], operands, base.attrs, sources)
            folded[result[0]] = (base, affine)
            return result
        return None

    return graph.rewrite(change, ("batch_norm", "add", "sub", "mul", "real_div"))
