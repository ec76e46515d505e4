"""Which graph inputs decide shapes by their value: walked back from the inputs of ops that read shapes."""

from collections.abc import Iterable, Mapping

import onnx

from hexane.importers.onnx.order import reads

# Inputs that have to be known at import, by op.
DECIDING: Mapping[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "Compress": (1,),
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
    "OneHot": (1,),
    "Pad": (1, 2, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
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


def deciding_inputs(model: onnx.ModelProto) -> set[str]:
    """The names of inputs, among all the names that shapes depend on by value."""
    functions = {(f.domain, f.name): f for f in model.functions}
    summaries: dict[tuple[str, str], set[int]] = {}

    def positions(node: onnx.NodeProto) -> Iterable[int]:
        key = (node.domain, node.op_type)
        if key not in functions:
            return DECIDING.get(node.op_type, ()) if node.domain in ("", "ai.onnx") else ()
        if key not in summaries:
            summaries[key] = set()  # what a recursive call sees; recursion is refused later
            function = functions[key]
            found = walk(function.node)
            summaries[key] = {i for i, name in enumerate(function.input) if name in found}
        return summaries[key]

    def walk(nodes: Iterable[onnx.NodeProto]) -> set[str]:
        every = list(_nested(nodes))
        makers = {name: node for node in every for name in node.output if name}
        pending = [n.input[i] for n in every for i in positions(n) if i < len(n.input)]
        found: set[str] = set()
        while pending:
            name = pending.pop()
            if name and name not in found:
                found.add(name)
                maker = makers.get(name)
                if maker is not None and maker.op_type not in SHAPE_ONLY:
                    pending += reads(maker)
        return found

    return walk(model.graph.node) & {value.name for value in model.graph.input}


def _nested(nodes: Iterable[onnx.NodeProto]) -> Iterable[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attr in node.attribute:
            if attr.type == attr.GRAPH:
                yield from _nested(attr.g.node)
