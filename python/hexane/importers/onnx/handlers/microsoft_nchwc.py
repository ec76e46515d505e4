"""onnxruntime's ops on images in blocks of channels (domain com.microsoft.nchwc), written by its optimiser at level
`all`. The importer represents an image in blocks as (N, C, H, W), with channels padded to whole blocks.

The file does not store the number of channels in a block. onnxruntime uses the number of its machine: 16 with AVX-512
and on arm64, else 8. `block_of` infers the block from the shapes of weights if these allow only one.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from hexane import _core
from hexane.dtypes import FP32
from hexane.errors import Error
from hexane.graph import Array, Value, constant
from hexane.importers.onnx.foreign import NCHWC
from hexane.importers.onnx.handlers.microsoft_fused import (
    ACTIVATION,
    CONVOLUTION,
    WINDOWS,
    activated,
    channels_first,
    channels_last,
)
from hexane.importers.onnx.kept_node import NodeLike
from hexane.importers.onnx.node import Builder, Item, OnnxNode, Result
from hexane.importers.onnx.registry import domain_op
from hexane.importers.onnx.standard import given, standard
from hexane.ops.compose import part

SMALL, LARGE = 8, 16


def block_of(nodes: Iterable[NodeLike], scope: Mapping[str, Item | None]) -> int:
    """Returns the number of channels in a block of this model: the number that the weights imply, else onnxruntime's
    for this CPU."""
    makers: dict[str, tuple[str, int]] = {}  # by image: the op that made it, and the channels of a convolution
    for node in nodes:
        if node.domain != NCHWC:
            continue
        weight = scope.get(node.input[1]) if node.op_type == "Conv" and len(node.input) > 1 else None
        channels = 0
        if isinstance(weight, Value) and len(weight.shape) == 4:
            bias = scope.get(node.input[2]) if len(node.input) > 2 else None
            group = next((a.i for a in node.attribute if a.name == "group"), 1)
            block = _shown(weight.shape, group, node.input[0] in makers, bias)
            if block:
                return block
            channels = weight.shape[0]
        wanted = next((a.i for a in node.attribute if a.name == "channels"), 0)
        maker = makers.get(node.input[0], ("", 0))[1]
        if node.op_type == "ReorderOutput" and maker and -(-wanted // SMALL) * SMALL != maker:
            return LARGE
        if node.op_type != "ReorderOutput":
            makers[node.output[0]] = (node.op_type, channels)
    best = _core.instruction_sets()[0]
    return LARGE if best.startswith(("AVX3", "AVX10", "NEON", "SVE")) else SMALL


def _shown(shape: tuple[int, ...], group: int, blocks: bool, bias: Item | None) -> int:
    """Returns the block size that a weight (out, in / group, height, width) implies, or 0 if both sizes are possible.
    blocks: the convolution reads an image in blocks, not one with fewer channels than a block."""
    out, read = shape[:2]
    if out % LARGE:
        return SMALL
    if group == 1 and ((not blocks and read >= SMALL) or (blocks and read % SMALL)):
        return LARGE
    if group == 1 and blocks and read % LARGE:
        return SMALL
    data = bias.node.data if isinstance(bias, Value) else None
    return LARGE if data is not None and data.shape == (out,) and not data[-SMALL:].any() and data.any() else 0


def _check_block(n: OnnxNode) -> None:
    """Raises Error for a model that does not import the domain: the size of its blocks is not known then."""
    if not n.block:
        raise Error(f"got no opset import of {NCHWC}, need one")


@domain_op(NCHWC, "ReorderInput", inputs=(1, 1), attributes={"channels_last": 0})
def reorder_input(b: Builder, n: OnnxNode) -> Result:
    x = channels_first(b, n.value(0)) if n.attrs["channels_last"] else n.value(0)
    _check_block(n)
    missing = -x.shape[1] % n.block
    return b.pad(x, begin=(0, 0, 0, 0), end=(0, missing, 0, 0)) if missing else x


@domain_op(
    NCHWC, "ReorderOutput", inputs=(1, 1), attributes={"channels": int, "channels_last": 0}, required=("channels",)
)
def reorder_output(b: Builder, n: OnnxNode) -> Result:
    x, channels = n.value(0), n.attrs["channels"]
    if not 0 < channels <= x.shape[1]:
        raise Error(f"channels: got {channels}, need 1 to {x.shape[1]}")
    x = x if channels == x.shape[1] else part(b, x, 1, 0, channels)
    return channels_last(b, x) if n.attrs["channels_last"] else x


@domain_op(NCHWC, "Conv", inputs=(2, 4), attributes={**CONVOLUTION, **ACTIVATION})
def conv(b: Builder, n: OnnxNode) -> Result:
    """Returns a convolution whose weight is in blocks of channels. The fourth input is added before the activation."""
    x, weight = n.value(0), n.value(1)
    if len(x.shape) != 4 or len(weight.shape) != 4 or weight.dtype is not FP32:
        raise Error(f"got x {x.shape} and a weight {weight.type}, need an image and four axes in fp32")
    out, read = weight.shape[:2]
    _check_block(n)
    if out % n.block or (read >= n.block and read % n.block):
        raise Error(f"got a weight of shape {weight.shape}, need channels in blocks of {n.block}")
    whole = constant(_plain(n.array(1), n.block), weight.node.sources)
    options = given(n, list(CONVOLUTION))
    result = standard(b, n, "Conv", x, whole, n.optional(2), **options)
    if n.has(3):
        result = b.add(result, n.value(3))
    return activated(b, n, result)


def _plain(weight: Array, block: int) -> Array:
    """Returns the weight as (out, in, height, width). The stored weight is in blocks of outputs, and of inputs if there
    is a whole block. A block has the window's pixels, each with the inputs and outputs of the block."""
    out, read, *window = weight.shape
    inner = block if read >= block else 1
    split = weight.reshape(out // block, read // inner, *window, inner, block)
    return np.ascontiguousarray(split.transpose(0, 5, 1, 4, 2, 3)).reshape(weight.shape)


_POOL = {**WINDOWS, "ceil_mode": 0, "count_include_pad": 0, "storage_order": 0}


@domain_op(NCHWC, "AveragePool", "MaxPool", inputs=(1, 1), attributes=_POOL)
def pool(b: Builder, n: OnnxNode) -> Result:
    names = [*WINDOWS, "ceil_mode", "count_include_pad" if n.op == "AveragePool" else "storage_order"]
    return standard(b, n, n.op, n.value(0), **given(n, names))


@domain_op(NCHWC, "GlobalAveragePool", "GlobalMaxPool", inputs=(1, 1), attributes={})
def global_pool(b: Builder, n: OnnxNode) -> Result:
    return standard(b, n, n.op, n.value(0))


@domain_op(
    NCHWC, "Upsample", inputs=(1, 1),
    attributes={"coordinate_transformation_mode": "asymmetric", "mode": "nearest", "scales": tuple[int, ...]},
)  # fmt: skip
def upsample(b: Builder, n: OnnxNode) -> Result:
    scales = n.attrs.get("scales") or (1, 1, 1, 1)
    factors = b.const(np.array(scales, np.float32))
    options = given(n, ["coordinate_transformation_mode", "mode"])
    return standard(b, n, "Resize", n.value(0), None, factors, nearest_mode="floor", **options)
