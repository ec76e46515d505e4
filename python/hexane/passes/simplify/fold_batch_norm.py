"""Multiplies batch norms, and other per-channel scales and shifts, into the weights of the op before them."""

from hexane.graph import Graph, Node, Value
from hexane.lowering.affine import Affine, affine_of, float_product
from hexane.lowering.channel_scales import scaled_operands
from hexane.ops import OPS, apply
from hexane.ops.match import joined_sources
from hexane.ops.predicates import channel_axis
from hexane.targets import Chip, Target


def fold_batch_norm(graph: Graph, target: Target) -> Graph:
    """batch_norm(conv(%x, %w, %b), %mean, %var, %gamma, %beta)  ->  conv(%x, %w * s, (%b - %mean) * s + %beta)

    In the result s = %gamma / sqrt(%var + epsilon), and all operands but %x are constants. Products and sums with one
    constant per channel (convolutions) or column (matmul) are folded into weights and bias, too. Nothing else may read
    the product. The new weights of a whole chain are computed in fp64 and rounded once. A chain is kept if its weights
    overflow or lose more digits than by rounding to fp32. For a chip, a chain is also kept if fp16 holds fewer digits
    of the new weights than of the old.
    """
    return _folded(graph, isinstance(target, Chip))


def fold_batch_norm_halves(graph: Graph, target: Target) -> Graph:
    """mul(conv(%x, %w), const [C, 1, 1])  ->  conv(%x, %w * const)

    Like fold_batch_norm, for a network that becomes fp16. Requires that the new weights keep as many fp16 digits as the
    old ones.
    """
    return _folded(graph, True)


def _folded(graph: Graph, in_halves: bool) -> Graph:
    """Folds scales and shifts into weights. in_halves: whether the weights are rounded to fp16 later."""
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
