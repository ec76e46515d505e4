"""Writes the weights of a graph in the requested encodings."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase

from hexane.compression.encode import as_stored, encode, kept_whole, stored_bytes, without_zeros
from hexane.compression.fit import Fitted
from hexane.compression.request import ALIASES, Compression
from hexane.compression.streams import said
from hexane.compression.weights import LEAST_NUMBERS, Weight, find_weights, operand_of, with_tied_weights
from hexane.errors import Error
from hexane.graph import Graph, Node, Value
from hexane.graph.decisions import Decision
from hexane.targets import Target

STAGE = "compress"


def compress(graph: Graph, asked: Compression, target: Target, threads: int = 1) -> Graph:
    """conv(%x, const fp16)  ->  conv(%x, dequantize(const int8, const fp32))

    Returns the graph with the weights of `find_weights` in the mode of each layer, which must not be "auto". Raises
    Error for a pattern that matches no layer. No network is run, so the scales of blocks are not calibrated.
    """
    graph = with_tied_weights(graph)
    weights = find_weights(graph)
    return compress_weights(graph, dict(zip(weights, modes(weights, asked), strict=True)), target, threads)[0]


def modes(weights: Sequence[Weight], asked: Compression) -> list[str]:
    """Returns the mode of each weight. Raises Error for a pattern that matches no layer."""
    places = [weight.node.where for weight in weights]
    for pattern in asked.per_layer:
        if not any(fnmatchcase(place, pattern) for place in places):
            if not places:
                raise Error(
                    f"[compress] per_layer: got the pattern {pattern!r}, but no layer can be compressed: every weight"
                    f" that can be encoded has fewer than {LEAST_NUMBERS} numbers"
                )
            listed = ", ".join(places[:5]) + (f" and {len(places) - 5} more" if len(places) > 5 else "")
            raise Error(
                f"[compress] per_layer: got the pattern {pattern!r}, which fits no layer, need one that fits one of:"
                f" {listed}"
            )
    wanted = (
        next((mode for pattern, mode in asked.per_layer.items() if fnmatchcase(place, pattern)), asked.mode)
        for place in places
    )
    return [ALIASES.get(mode, mode) for mode in wanted]


def compress_weights(
    graph: Graph,
    chosen: Mapping[Weight, str],
    target: Target,
    threads: int = 1,
    fitted: Mapping[Weight, Fitted] | None = None,
    made: Mapping[tuple[Weight, str], Value] | None = None,
) -> tuple[Graph, list[Value]]:
    """Returns the graph with each weight in its encoding and a decision for each, and the weights as stored. fitted:
    encoded weights whose scales are fitted to activations. made: weights that are encoded already."""
    known, ready = fitted or {}, made or {}

    def make(weight: Weight, encoding: str) -> Value:
        if weight in known:
            return known[weight].value
        return ready.get((weight, encoding)) or encode(weight, encoding, threads)

    with ThreadPoolExecutor(threads) as pool:
        encoded = list(pool.map(make, chosen, chosen.values()))
    decisions = [
        _decision(w, encoding, v, target, known.get(w))
        for (w, encoding), v in zip(chosen.items(), encoded, strict=True)
    ]
    return exchanged(graph, dict(zip(chosen, encoded, strict=True))).decided(*decisions), encoded


def exchanged(graph: Graph, became: Mapping[Weight, Value]) -> Graph:
    """Returns the graph in which layers read the values of `became` for their weights; other readers are unchanged."""
    table = {weight.value: value for weight, value in became.items()}

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        place = operand_of(node)
        weight = None if place is None else node.inputs[place]
        if place is None or weight is None or weight not in table:
            return None
        return node.with_inputs((*inputs[:place], table[weight], *inputs[place + 1 :])).values

    return graph.rewrite(change)


def _decision(weight: Weight, encoding: str, value: Value, target: Target, fitted: Fitted | None) -> Decision:
    place = weight.node.where
    if encoding == "none":
        return Decision(STAGE, place, "whole", f"{weight.bytes} bytes")
    size = f"{weight.bytes} -> {stored_bytes(weight, encoding, value)} bytes"
    stored = as_stored(encoding, value)
    parts: tuple[str, ...] = (size, kept_whole(weight, encoding))
    if stored != encoding:
        parts += (f"a palette alone: {without_zeros(weight, encoding) or 'a mask saves nothing'}",)
    if fitted is not None:
        channels = weight.whole.shape[weight.axis]
        parts += (f"scales fitted to activations in {fitted.channels} of {channels} output channels",)
    reason = "; ".join(filter(None, (*parts, said(weight, stored, target))))
    return Decision(STAGE, place, encoding, reason, "formats.streams")
