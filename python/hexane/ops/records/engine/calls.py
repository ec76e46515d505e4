"""Describes layers, by their nodes, as calls for the rules of the engine's compiler (hexane/validate).

The rules expect images (N, C, H, W) or (N, C, D, H, W), and floats in fp16. Weights are no operands of a layer.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from hexane.dtypes import FP16
from hexane.graph import Node, TensorType, tensor_type
from hexane.ops.records.engine.mac import SDPA_OPERANDS
from hexane.ops.spec import LayerCall

IMAGE_AXES = ("batch", "channels", "height", "width")
Call = Callable[[Node], LayerCall]


def as_fp16(t: TensorType) -> TensorType:
    """Returns the type on the engine, which computes all floats and bools in fp16."""
    return tensor_type(FP16, t.shape) if t.dtype.kind in ("float", "bool") else t


def _given(node: Node) -> list[TensorType]:
    return [as_fp16(v.type) for v in node.inputs if v is not None]


def _first(node: Node, layer: str, **attrs: Any) -> LayerCall:
    """Returns a call of the layer with the node's first operand alone."""
    return LayerCall(layer, (_given(node)[0],), attrs, as_fp16(node.types[0]))


def _image(*shape: int) -> TensorType:
    return tensor_type(FP16, shape)


def _conv(node: Node) -> LayerCall:
    a, pads = node.attrs, node.attrs["explicit_padding"]
    x, weight = (v.type for v in node.inputs[:2] if v is not None)
    transposed = node.op == "anec.deconvolution"
    channels = weight.shape[1] * a["groups"] if transposed else weight.shape[0]
    attrs = {
        "kernel_sizes": weight.shape[2:],
        "strides": a["strides"],
        "dilations": a["dilation_rates"],
        "pad": pads[::2] + pads[1::2],
        "groups": a["groups"],
        "transposed": transposed,
    }
    return LayerCall("Conv", (as_fp16(x),), attrs, _image(x.shape[0], channels, *x.shape[2:]))


def _matmul(node: Node) -> LayerCall:
    """Rows are channels, columns are the width, and the leading axes are the batch. From rank 5 on the depth is 2,
    which the rules refuse."""
    depth = 2 if node.types[0].rank >= 5 else 1
    types = []
    for t, flag in zip(_given(node)[:2], ("transpose_lhs", "transpose_rhs"), strict=True):
        *lead, rows, columns = t.shape
        if node.attrs[flag]:
            rows, columns = columns, rows
        types.append(_image(prod(lead), rows, depth, 1, columns))
    return LayerCall("MatrixMult", tuple(types), {})


def _attention(node: Node) -> LayerCall:
    """Positions are channels, features are the width, and heads are merged into the batch, for up to four axes. The
    scale is an operand of its own."""

    def four(t: TensorType) -> TensorType:
        rows, columns = (1, 1, *t.shape)[-2:]
        return _image(prod(t.shape[:-2]), rows, 1, columns) if t.rank <= 4 else t

    types = _given(node)
    for i, name in enumerate(SDPA_OPERANDS):
        if node.attrs.get(name):
            types[i] = tensor_type(types[i].dtype, (*types[i].shape[:-2], types[i].shape[-1], types[i].shape[-2]))
    given = [four(t) for t in types]
    return LayerCall("SDPA", (*given[:3], _image(1, 1, 1, 1), *given[3:]), {})


def _pool(node: Node) -> LayerCall:
    """A pool over one axis is a pool over an image of height 1."""
    a, x, pad = node.attrs, _given(node)[0], tuple(node.attrs["pad"])
    attrs = {name: tuple(a[name]) for name in ("kernel_sizes", "strides", "dilations")}
    if x.rank == 3:
        x, pad = _image(*x.shape[:2], 1, x.shape[2]), (0, 0, *pad)
        attrs = {name: (1, *sizes) for name, sizes in attrs.items()}
    mode = {"avg": "average"}.get(a["kind"], a["kind"])
    return LayerCall("Pool", (x,), {**attrs, "pad": pad, "mode": mode})


def _concat(node: Node) -> LayerCall:
    return LayerCall("Concat", tuple(_given(node)), {"axis": node.attrs["axis"] % node.types[0].rank})


def _pad(node: Node) -> LayerCall:
    a, rank = node.attrs, node.types[0].rank
    last = {rank - 1: "width", rank - 2: "height"}
    axes = [last.get(i, "channels") for i in range(rank) if a["begin"][i] or a["end"][i]]
    return _first(node, "Pad", axes=axes, mode=a["mode"])


def _broadcast(node: Node) -> LayerCall:
    """A broadcast is a tile of the axes with extent 1."""
    x, shape = _given(node)[0], node.types[0].shape
    spread = (1,) * (len(shape) - x.rank) + x.shape
    return LayerCall("Tile", (x,), {"factors": tuple([n // max(own, 1) for own, n in zip(spread, shape, strict=True)])})


def _gather(node: Node) -> LayerCall:
    """The lowering has normalised index and axes, so that only the data vary."""
    return LayerCall("Gather", (_given(node)[0], _image(1, 3, 1, 1)), {})


def _gather_nd(node: Node) -> LayerCall:
    x, index = _given(node)
    return LayerCall("Gather", (x, _image(1, index.shape[-1], 1, 1)), {"axes": index.shape[-1]})


def _topk(node: Node) -> LayerCall:
    a, x = node.attrs, _given(node)[0]
    return LayerCall("TopK", (x,), {"k": a["k"], "extent": x.shape[a["axis"]]})


def _arg(node: Node) -> LayerCall:
    return LayerCall("ArgMinMax", (_image(1, _given(node)[0].shape[node.attrs["axis"]], 1, 1),), {})


def _l2_norm(node: Node) -> LayerCall:
    """Axes are passed by name, from rank 3 on. A tensor without a batch starts with channels; all axes before a
    volume's axes are batches."""
    rank = node.types[0].rank
    names = IMAGE_AXES if rank <= 4 else (*["batch"] * (rank - 4), "channels", "depth", "height", "width")
    given = names[-rank:] if rank >= 3 else ()
    return _first(node, "L2Norm", axes=tuple([given[a] for a in node.attrs["axes"] if given]))


def _resample(node: Node) -> LayerCall:
    """The coordinates of a pixel are channels. Padding mode "zeros" is called background by the layer."""
    a, (x, grid) = node.attrs, _given(node)
    n, *spatial, count = grid.shape
    outside = "background" if a["padding_mode"] == "zeros" else a["padding_mode"]
    return LayerCall("Resample", (x, _image(n, count, *spatial)), {"padding_mode": outside, "method": a["mode"]})


def _shuffle(layer: str, factor: str) -> Call:
    return lambda node: LayerCall(
        layer, (_given(node)[0],), {"factors": (node.attrs[factor], node.attrs[factor], 1)}, as_fp16(node.types[0])
    )


def _plain(layer: str) -> Call:
    return lambda node: _first(node, layer)


CALLS: Mapping[str, Call] = {
    "anec.convolution": _conv,
    "anec.deconvolution": _conv,
    "anec.matmul": _matmul,
    "anec.linear": _plain("Linear"),
    "anec.sdpa": _attention,
    "anec.pool": _pool,
    "anec.batch_norm": _plain("BatchNorm"),
    "anec.layer_norm": _plain("LayerNorm"),
    "anec.instance_norm": _plain("InstanceNorm"),
    "anec.local_response_norm": lambda node: _first(node, "LRN", kernel_sizes=(node.attrs["size"], 1, 1)),
    "anec.l2_norm": _l2_norm,
    "anec.resample": _resample,
    "anec.softmax": lambda node: _first(node, "Softmax", axes=(node.attrs["axis"],)),
    "anec.pad": _pad,
    "anec.tile": lambda node: _first(node, "Tile", factors=tuple(node.attrs["reps"])),
    "anec.broadcast": _broadcast,
    "anec.transpose": lambda node: _first(node, "Transpose", perm=tuple(node.attrs["perm"])),
    "anec.reshape": _plain("Reshape"),
    "anec.flatten": _plain("Reshape"),
    "anec.concat": _concat,
    "anec.gather": _gather,
    "anec.gather_along_axis": _gather,
    "anec.gather_nd": _gather_nd,
    "anec.topk": _topk,
    "anec.arg_min_max": _arg,
    "anec.channel_to_space": _shuffle("PixelShuffle", "block_size"),
    "anec.pixel_shuffle": _shuffle("PixelShuffle", "upscale_factor"),
    "anec.space_to_channel": _shuffle("PixelUnshuffle", "block_size"),
    "anec.pixel_unshuffle": _shuffle("PixelUnshuffle", "downscale_factor"),
}
