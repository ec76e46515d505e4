"""Which graph inputs decide shapes by their value: walked back from the inputs of ops that read shapes."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import onnx

from hexane.importers.onnx.order import reads

# Inputs that have to be known at import, by op.
SHAPE_INPUTS: Mapping[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "CumProd": (1,),
    "CumSum": (1,),
    "DFT": (1, 2),
    "Dropout": (1, 2),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "If": (0,),
    "Loop": (0, 1),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "NonMaxSuppression": (2, 3, 4),
    "OneHot": (1,),
    "Pad": (1, 2, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "SequenceAt": (1,),
    "SequenceErase": (1,),
    "SequenceInsert": (2,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "STFT": (1, 3),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
    **dict.fromkeys(
        ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
         "ReduceSum", "ReduceSumSquare"), (1,),
    ),
}  # fmt: skip
SHAPE_ONLY = ("Shape", "Size")  # their results do not depend on the input's value


def find_shape_inputs(
    nodes: Sequence[onnx.NodeProto],
    functions: Iterable[onnx.FunctionProto],
    inputs: Collection[str],
    conditions: bool = True,
) -> set[str]:
    """The names of inputs, among all the names that shapes depend on by value; with or without those that choose branches."""
    by_name = {(f.domain, f.name): f for f in functions}
    summaries: dict[tuple[str, str], set[int]] = {}

    def positions(node: onnx.NodeProto) -> Iterable[int]:
        key = (node.domain, node.op_type)
        if node.op_type == "If" and not conditions:
            return ()
        if key not in by_name:
            return SHAPE_INPUTS.get(node.op_type, ()) if node.domain in ("", "ai.onnx") else ()
        if key not in summaries:
            summaries[key] = set()  # what a recursive call sees; recursion is refused later
            function = by_name[key]
            found = _depended_on(function.node, positions)
            summaries[key] = {i for i, name in enumerate(function.input) if name in found}
        return summaries[key]

    return _depended_on(nodes, positions) & set(inputs)


def _depended_on(nodes: Sequence[onnx.NodeProto], positions: Callable[[onnx.NodeProto], Iterable[int]]) -> set[str]:
    """All names that the values at those positions are computed from, and theirs."""
    pending = [n.input[i] for node in nodes for n in (node, *_inside(node)) for i in positions(n) if i < len(n.input)]
    # The node itself only where it is in a subgraph: `nodes` may be a file, parsed when it is looked at.
    makers: dict[str, int | onnx.NodeProto] = {}
    for index, node in enumerate(nodes if pending else ()):
        makers.update((name, index) for name in node.output if name)
        makers.update((name, n) for n in _inside(node) for name in n.output if name)
    found: set[str] = set()
    while pending:
        name = pending.pop()
        if name and name not in found:
            found.add(name)
            maker = makers.get(name)
            if maker is not None:
                node = nodes[maker] if isinstance(maker, int) else maker
                pending += reads(node) if node.op_type not in SHAPE_ONLY else ()
    return found


def _inside(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a node's subgraphs, and of theirs."""
    for attr in node.attribute:
        if attr.type == attr.GRAPH:
            for inner in attr.g.node:
                yield inner
                yield from _inside(inner)
