"""How a chip stores and reads the encoded weights of a graph."""

from collections.abc import Iterator

from hexane.compression.streams import SOURCE, block_of, group_of, is_streamed, size_of, why_folded
from hexane.graph import Graph, Node
from hexane.graph.decisions import Decision
from hexane.mil.forms.products import PRODUCTS
from hexane.ops.encodings import encoding_of, fewest_bits, is_encoded
from hexane.targets import Chip


def stored_kernels(graph: Graph, chip: Chip) -> Iterator[tuple[Node, str, bool]]:
    """Yields products whose weights are stored as integers or indices: the node, the encoding, and True if it streams.
    Weights with a zero point do not stream, because the engine's integers are symmetric. Weights of a transposed
    convolution do not stream, because it reads them in the input's dtype. In MIL, integers of four bits are stored in
    blocks."""
    for node in graph.nodes:
        weight = node.inputs[1] if node.op in PRODUCTS else None
        if weight is None or not is_encoded(weight.node):
            continue
        encoding = encoding_of(weight)
        if encoding.kind == "palette":
            size, group = size_of(weight), group_of(weight)
            name = f"palette{encoding.bits}{f':v{size}' if size > 1 else ''}{group}"
            does = is_streamed("palette" if size == 1 else "vectors", encoding.bits, chip)
            if encoding.masked_bits is not None:
                name, does = f"sparse+palette{encoding.masked_bits}{group}", False
            if weight.node.op == "decode_scaled_palette":
                name, does = f"{name}:int8", False
        elif encoding.kind == "blocks":
            name, does = f"blockwise{encoding.bits}{block_of(weight)}", is_streamed("blockwise", encoding.bits, chip)
        else:
            zero = weight.node.inputs[2]
            small = encoding.bits == 8 and fewest_bits(encoding.stored) <= 4
            name = encoding.stored.dtype.name.replace("8", "4") if small else encoding.stored.dtype.name
            does = "blockwise" in chip.formats.streams if small else is_streamed("integers", encoding.bits, chip)
            does = does and (zero is None or zero.node.data is None or not zero.node.data.any())
        yield node, name, does and node.op != "conv_transpose"


def stored_decisions(graph: Graph, chip: Chip) -> tuple[Decision, ...]:
    """Returns a decision for each weight that the model itself has compressed, unless one exists."""
    known = {d.node for d in graph.decisions if d.stage == "compress"}
    return tuple(
        Decision("weights", node.where, name, "streams" if does else why_folded(name), SOURCE)
        for node, name, does in stored_kernels(graph, chip)
        if node.where not in known
    )
