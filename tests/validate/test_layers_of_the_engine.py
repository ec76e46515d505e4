"""The validators of the engine's compiler: each row is a layer, what it is given, and what the compiler says."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from hexane.errors import Error
from hexane.graph import TensorType, tensor_type
from hexane.targets.floors import layers
from hexane.targets.query import load_chip
from hexane.validate import validate
from hexane.validate.convolution import kernel_memory, largest_kernel
from hexane.validate.layer import RULES
from hexane.validate.rule import Dims, dims

Published = Callable[[str], list[dict[str, str]]]


def t(*shape: int, dtype: str = "fp16") -> TensorType:
    return tensor_type(dtype, shape)


class Row(NamedTuple):
    """says: what the compiler says, "" where it accepts, None for words of our own; on: the chips it says that on."""

    layer: str
    types: tuple[TensorType, ...]
    attrs: dict[str, Any]
    says: str | None
    chip: str = "h13"
    output: TensorType | None = None


X = t(1, 8, 16, 16)
QKV = (t(1, 64, 1, 32), t(1, 64, 1, 32), t(1, 64, 1, 32), t(1, 1, 1, 1))

# ---- bytes of the chip: layer, what is said where the byte is 0, a chip without and one with it ----
GATED = [
    ("Softmax", "Softmax is not supported by this ANE architecture", "h12", "h13"),
    ("InstanceNorm", "InstanceNorm layer not supported for this ANE architecture", "h11", "h13"),
    ("Dropout", "Dropout layer is not supported on this architecture.", "h14", "h15"),
    ("Random", "Random layer is not supported on this architecture.", "h13", "m11"),
    ("AffineTransform", "affine transform is not supported on this architecture", "h13", "h14"),
    ("DynamicGOC", None, "m9", "h11"),
    ("GlobalArgMinMax", None, "h12", "h13"),
    ("Resample", None, "h13g", "h14"),
]

MATMUL = (t(1, 4, 1, 6), t(1, 6, 1, 5))
ROWS = [
    # products and convolutions
    Row("MatrixMult", MATMUL, {}, "", output=t(1, 4, 1, 5)),
    Row("MatrixMult", MATMUL[:1], {}, "Matrix mult. layer can only have two bottoms"),
    Row("MatrixMult", (t(1, 4, 2, 1, 6), t(1, 6, 1, 5)), {}, "depth > 1 is not supported for MatMult"),
    Row("MatrixMult", MATMUL, {}, "Error: invalid output channel = 5. Expecting it to be input A's channel dimension = 4 for MatMult", output=t(1, 5, 1, 5)),
    Row("MatrixMult", (t(1, 4, 1, 6), t(1, 8, 1, 5)), {"pad": 1}, "Error: invalid input dim : input tensor A's width (6) + padding (1) != tensor B's channel (8)"),
    Row("MatrixMult", (t(1, 4, 1, 7), t(1, 8, 1, 5)), {"pad": 1}, ""),
    Row("MatrixMult", (t(1, 4, 1, 40000), t(1, 40000, 1, 5)), {}, "can not fit the Kmem", "h17s"),
    Row("MatrixMult", (t(1, 4, 1, 40000), t(1, 40000, 1, 5)), {"shared": True}, "", "h17s"),
    Row("Conv", (X,), {"kernel_sizes": (3, 3)}, "", output=t(1, 4, 16, 16)),
    Row("Conv", (t(8, 16, 16),), {"kernel_sizes": (3, 3)}, None),
    Row("Conv", (X,), {"kernel_sizes": (3, 14)}, "Invalid conv kernel width = 14, It should be in [1,13]"),
    Row("Conv", (X,), {"kernel_sizes": (3, 15)}, "", "h16"),
    Row("Conv", (t(1, 8, 64, 64),), {"kernel_sizes": (30, 3)}, "Invalid conv kernel height = 30, It should be in [1,29]"),
    Row("Conv", (t(1, 8, 64, 64),), {"kernel_sizes": (30, 3)}, "", "h14"),
    Row("Conv", (X,), {"kernel_sizes": (3, 9), "strides": (1, 2), "transposed": True}, "Invalid conv kernel width = 9, It should be in [1,7]"),
    Row("Conv", (X,), {"kernel_sizes": (3, 9), "strides": (1, 1), "transposed": True}, ""),
    Row("Conv", (X,), {"groups": 3}, "input/output channels should be divisible by num group", output=t(1, 6, 16, 16)),
    Row("Conv", (X,), {"channelwise": True, "groups": 4}, "ChannelWise Conv must have num_groups == out_dims.c", output=X),
    Row("Conv", (X,), {"channelwise": True, "groups": 8}, "ChannelWise Conv must have in_dims.c == out_dims.c", output=t(1, 16, 16, 16)),
    Row("Conv", (t(1, 8, 2, 2),), {"kernel_sizes": (3, 3)}, None),
    Row("Conv", (t(1, 8, 2, 2),), {"kernel_sizes": (3, 3), "pad": (1, 1)}, ""),
    Row("Conv", (X,), {"kernel_sizes": (3, 9), "groups": 8}, "Error: grouped conv with large kernel size is not supported", output=X),
    Row("Conv", (X,), {"kernel_sizes": (3, 9), "dilations": (1, 1)}, ""),
    Row("Conv", (t(1, 8, 64, 64),), {"kernel_sizes": (3, 9), "dilations": (2, 2)}, "Error: dilated conv with large kernel size is not supported"),
    Row("Conv", (X,), {"kernel_sizes": (3, 9), "large_kernel": True}, None),
    Row("Conv", (X,), {"kernel_sizes": (8, 8), "large_kernel": True}, ""),
    Row("Linear", (t(4, 8),), {}, ""),
    Row("Linear", (t(4, 8), t(4, 8)), {}, "Linear layer must have only one single input."),
    Row("Linear", (t(1, 1, 1, 4, 8),), {}, "ANE cannot support Linear with input rank >= 5"),
    Row("SDPA", QKV, {}, ""),
    Row("SDPA", QKV[:3], {}, "4 or 5 bottoms must be present for SDPA"),
    Row("SDPA", (t(1, 1, 64, 1, 32), *QKV[1:]), {}, "SDPA does not currently support rank 5 operands"),
    Row("SDPA", (t(1, 64, 1, 16), *QKV[1:]), {}, "Q and K must have same embedding size i.e W dim"),
    Row("SDPA", (QKV[0], t(1, 8, 1, 32), *QKV[2:]), {}, "K and V must have same sequence length i.e C dim"),
    Row("SDPA", (t(1, 64, 1, 32, dtype="fp32"), *QKV[1:]), {}, "Q, K and V must have same format"),
    Row("SDPA", QKV, {"scale_constant": False}, "Scale is expected to be constant."),
    Row("SDPA", (*QKV, t(1, 64, 1, 64)), {}, ""),
    Row("SDPA", (*QKV, t(1, 1, 1, 64)), {}, ""),
    Row("SDPA", (*QKV, t(1, 64, 1, 64, dtype="fp32")), {}, "Mask format must be same as Q, K and V"),
    Row("SDPA", (*QKV, t(1, 64, 1, 32)), {}, "Mask Width axis must match K and V Channel axis"),
    Row("SDPA", (*QKV, t(1, 8, 1, 64)), {}, "Mask Channel axis must match Q Channel axis or broadcastable"),
    Row("CrossCorrelation", (t(1, 1, 16, 16), t(1, 1, 1, 9)), {"template": (3, 3)}, ""),
    Row("CrossCorrelation", (X,), {}, "Input size for Cross Correlation layer must be 2"),
    Row("CrossCorrelation", (t(1, 1, 16, 16), t(1, 1, 1, 9)), {"template": (3, 3), "groups": 0}, "Cross Correlation: Num Groups must be positive"),
    Row("CrossCorrelation", (t(1, 1, 2, 2), t(1, 1, 1, 9)), {"template": (3, 3)}, None),
    Row("CrossProduct", (t(1, 3, 1, 1), t(1, 3, 1, 1)), {}, ""),
    Row("CrossProduct", (t(1, 4, 1, 1), t(1, 4, 1, 1)), {}, None),
    # norms
    Row("BatchNorm", (X,), {}, "", output=X),
    Row("BatchNorm", (X, X), {}, "BatchNorm layer must have only one single input"),
    Row("BatchNorm", (X,), {"kernel": False}, "BatchNorm must have kernel"),
    Row("BatchNorm", (X,), {}, "BatchNorm output tensor must be in Float format", output=t(1, 8, 16, 16, dtype="int8")),
    Row("InstanceNorm", (X,), {"axes": ("height", "width")}, "", output=X),
    Row("InstanceNorm", (X,), {"axes": ("channels",)}, None),
    Row("InstanceNorm", (X,), {}, "InstanceNorm output tensor must be in Float format", output=t(1, 8, 16, 16, dtype="int8")),
    Row("LayerNorm", (X,), {"num_groups": 4}, "", output=X),
    Row("LayerNorm", (X,), {"num_groups": 3}, "LayerNorm input channels 8 must be divisible by num_groups (Specified: 3)"),
    Row("LayerNorm", (t(1, 8, 2, 4, 4),), {"num_groups": 2}, "... does not yet support depth > 1"),
    Row("LayerNorm", (X,), {}, "LayerNorm output tensor format must be Float (Specified int8)", output=t(1, 8, 16, 16, dtype="int8")),
    Row("L2Norm", (X,), {"axes": ("width",)}, "", output=X),
    Row("L2Norm", (X,), {"axes": ("batch",)}, "L2 norm does not support batch axis"),
    Row("L2Norm", (X,), {}, "Error: L2 norm output tensor format must be Float16", output=t(1, 8, 16, 16, dtype="int8")),
    Row("LRN", (X,), {"kernel_sizes": (5, 1, 1)}, ""),
    Row("LRN", (X,), {"kernel_sizes": (5, 3, 1)}, "LRN height and width kernel dimensions must be 1. Height: 3, Width: 1"),
    Row("LRN", (X,), {"kernel_sizes": (8, 1, 1)}, "LRN Channel count must be greater than kernel channel. Channel: 8, Kernel Depth: 8"),
    Row("LRN", (t(1, 8, 2, 4, 4),), {"kernel_sizes": (5, 1, 1)}, "Tensor depth must be 1 for a channelwise LRN. Depth: 2"),
    Row("LRN", (t(1, 16, 4, 4),), {"kernel_sizes": (5, 1, 1)}, "", "h14"),
    Row("MinMaxNorm", (X,), {"axes": ("width",)}, ""),
    Row("MinMaxNorm", (X,), {"axes": ("channels",)}, "Min/max norm layer does not support batch/channel axis"),
    Row("Softmax", (X,), {"axes": ("channels",)}, "", output=X),
    Row("Softmax", (X,), {"axes": ()}, None),
    Row("Softmax", (X,), {}, "Softmax output tensor must be in Float format", output=t(1, 8, 16, 16, dtype="int8")),
    # elementwise, types, random numbers
    Row("ElementWise", (X, X), {}, ""),
    Row("ElementWise", (X, X, X), {}, None),
    Row("ScaledElementWise", (X, X), {"kind": "add"}, ""),
    Row("ScaledElementWise", (X, X, X), {}, "Scaled Elementwise must have 1 or 2 input"),
    Row("ScaledElementWise", (X, X), {"kind": "sub"}, None),
    Row("GOC", (X, t(8), t(8)), {}, ""),
    Row("GOC", (X, t(1, 8, 2, 1)), {}, None),
    Row("DynamicGOC", (X, t(8), t(8)), {}, ""),
    Row("DynamicGOC", (t(1, 5, 4, 4), t(5)), {}, None),
    Row("Neuron", (X,), {"mode": 46}, ""),
    Row("Neuron", (X,), {"mode": 47}, "This platform doesn't support Neuron 47"),
    Row("Neuron", (X,), {"limit": 0}, None),
    Row("Dropout", (X,), {"rate": 0.5}, "", "h15"),
    Row("Dropout", (X,), {"rate": 1.0}, None, "h15"),
    Row("Random", (), {"low": 0, "high": 1}, "", "h15", X),
    Row("Random", (), {"low": 1, "high": 1}, None, "h15"),
    Row("Random", (), {}, None, "h15", t(4, dtype="fp32")),
    Row("Quant", (X,), {}, "", output=t(1, 8, 16, 16, dtype="int8")),
    Row("Quant", (t(4, dtype="int8"),), {}, "Quant layer must have fp16 or fp32 input format"),
    Row("Quant", (X,), {}, "Quant layer must have int8, uint8, e4m3 or e5m2 output format", output=X),
    Row("Quant", (X,), {"zero_point": 3}, "Asym quantization is not supported", output=t(1, 8, 16, 16, dtype="int8")),
    Row("Quant", (X,), {"zero_point": 3}, "Zero point is not supported for quant with E4M3 output format", output=t(1, 8, 16, 16, dtype="fp8e4m3")),
    Row("DeQuant", (t(4, dtype="int8"),), {}, "", output=t(4)),
    Row("DeQuant", (t(4, dtype="int8"),), {}, "Dequant layer must have fp16 output format", output=t(4, dtype="fp32")),
    Row("DeQuant", (t(4),), {}, "Dequant layer must have int8, uint8, int4 or e4m3 input format"),
    Row("DeQuant", (t(4, dtype="int8"),), {"blockwise": True}, "ANE doesn't support blockwise scale"),
    Row("DeQuant", (t(4, dtype="int4"),), {"per_channel": True}, "Int4 Per-Cout Dequant is not supported"),
    # windows, extremes
    Row("Pool", (X,), {"kernel_sizes": (3, 3), "strides": (2, 2), "pad": (1, 1)}, ""),
    Row("Pool", (X, X), {}, "Pool layer must have only one single input."),
    Row("Pool", (X,), {"mode": "median"}, 'Pooling mode "median" is not available on this ANE architecture.'),
    Row("Pool", (t(1, 8, 64, 64),), {"kernel_sizes": (3, 30)}, "Invalid Pool kernel width (30), must be [1-29] or 64"),
    Row("Pool", (t(1, 8, 64, 64),), {"kernel_sizes": (3, 30)}, "", "h14"),
    Row("Pool", (t(1, 8, 64, 64),), {"kernel_sizes": (64, 64)}, ""),
    Row("Pool", (t(1, 8, 64, 64),), {"kernel_sizes": (30, 3)}, None),
    Row("Pool", (X,), {"kernel_sizes": (2, 2), "pad": (2, 2)}, None),
    Row("Pool", (t(1, 8, 4, 9, 9),), {"kernel_sizes": (2, 3, 3), "pad": (1, 0, 1, 1, 2, 2)}, ""),
    Row("Pool", (t(1, 8, 4, 9, 9),), {"kernel_sizes": (2, 3, 3), "pad": (2, 0, 1, 1, 2, 2)}, None),
    Row("Pool", (t(1, 8, 4, 9, 9),), {"kernel_sizes": (5, 3, 3)}, None),
    Row("Pool", (t(1, 8, 4, 9, 64),), {"kernel_sizes": (2, 3, 30)}, "Invalid Pool kernel width (30), must be [1-29] or 64"),
    Row("Pool", (X,), {"kernel_sizes": (17, 17)}, None),
    Row("Pool", (X,), {"kernel_sizes": (3, 3), "pad": (1, 1), "padding_mode": "zero"}, "MaxPool padding mode must be Negative"),
    Row("Pool", (X,), {"kernel_sizes": (3, 3), "pad": (1, 1), "mode": "min", "padding_mode": "zero"}, "MinPool padding mode must be Positive"),
    Row("Pool", (X,), {"kernel_sizes": (3, 3), "pad": (1, 1), "mode": "l2", "padding_mode": "negative"}, "L2Pool padding mode must be Replication or Zero"),
    Row("Pool", (X,), {"kernel_sizes": (3, 3), "strides": (3, 3)}, "Pool with strides of 3 is only supported with Avg mode"),
    Row("Pool", (X,), {"kernel_sizes": (3, 3), "strides": (3, 3), "mode": "average"}, ""),
    Row("Pool", (X,), {"kernel_sizes": (3, 3), "dilations": (2, 2)}, None),
    Row("Reduction", (X,), {"axis": 1}, "", output=t(1, 1, 16, 16)),
    Row("Reduction", (X, X), {}, "Reduction layer can only have one bottom"),
    Row("Reduction", (X,), {"axis": 5}, None),
    Row("Reduction", (X,), {"axis": 1}, None, output=X),
    Row("Reduction", (X,), {"square": True}, "square operation after reduction is not supported"),
    Row("Reduction", (X,), {"square": True}, "", "h14"),
    Row("ArgMinMax", (X,), {"kernel_sizes": (2, 2), "pad": (1, 1, 1, 1)}, ""),
    Row("ArgMinMax", (X, X), {}, "ArgMinMax layer must have one input"),
    Row("ArgMinMax", (X,), {"kernel_sizes": (2, 2), "pad": (2, 2)}, "ArgMinMax left padding value should be smaller than kernel width 2, but 2 is given"),
    Row("ArgMinMax", (X,), {"strides": (3, 3)}, "Invalid ArgMinMax pool stride x:3, must be within [1, 2, 4]"),
    Row("ArgMinMax", (X,), {"kernel_sizes": (2, 2), "pad": (1, 0)}, "ArgMinMax must have equal left and right padding, but left:1 and right:0 are given"),
    Row("ArgMinMax", (X,), {"pad": (0, 0, 1, 0)}, "ArgMinMax must have equal top and bottom padding, but top:1 and bot:0 are given"),
    Row("ArgMinMax", (X,), {"pad": (0, 0, 0, 0, 1, 1)}, "ArgMinMax must have zero front and back padding, but front:1 and back:1 are given"),
    Row("ArgMinMax", (t(1, 2048, 1, 1),), {}, ""),
    Row("ArgMinMax", (t(1, 2049, 1, 1),), {}, None),
    Row("ArgMinMax", (t(1, 1, 1, 2049),), {"axes": "spatial"}, None),
    Row("GlobalArgMinMax", (X,), {"mode": 2}, ""),
    Row("GlobalArgMinMax", (X,), {"mode": 3}, None),
    Row("GlobalArgMinMax", (X,), {"dimension": 5}, None),
    Row("Sort", (X,), {"direction": "descending"}, "", "h14", X),
    Row("Sort", (X,), {"direction": "up"}, None, "h14"),
    Row("Sort", (X,), {}, "Sort unit output format must be FP16 or Uint16", "h14", t(1, 8, 16, 16, dtype="int8")),
    Row("Sort", (X,), {"vector_size": 9, "record_limit": 8}, "Sort/TopK layer's vector_dimension size exceeds the record limit", "h14"),
    Row("TopK", (X,), {"k": 5, "extent": 8}, "", "h14"),
    Row("TopK", (X,), {"k": 9, "extent": 8}, None, "h14"),
    Row("TopK", (X,), {}, "TopK unit output format must be FP16 or Uint16", "h14", t(1, 8, 16, 16, dtype="int8")),
    Row("NMS", (t(1, 4, 1, 9), t(2, 1, 1, 9)), {}, "NMS Boxes batch must equal Scores batch"),
    Row("NMS", (t(1, 5, 1, 9), t(1, 1, 1, 9)), {}, "NMS Boxes channels must be 4"),
    Row("NMS", (t(1, 4, 1, 9), t(1, 1, 1, 8)), {}, "NMS Boxes width must equal Scores width"),
    Row("NMS", (t(1, 4, 1, 9), t(1, 1, 1, 9)), {}, "NMS output format must be either Float 16 or UInt 16", output=t(4, dtype="int8")),
    Row("RingBufferWriter", (X, X), {}, ""),
    Row("RingBufferWriter", (X, X), {"live_state": False}, None),
    Row("RingBufferWriter", (X, X), {"circular": True}, "Circular buffer is not supported on this architecture"),
    Row("FurthestPointSampling", (t(1, 3, 1, 9),), {"points": 8192, "centroids": 1024}, ""),
    Row("FurthestPointSampling", (t(1, 3, 1, 9),), {"points": 8193}, None),
    Row("FurthestPointSampling", (t(1, 3, 1, 9),), {"centroids": 1025}, None),
    Row("FurthestPointSampling", (t(1, 3, 1, 9),), {"distance": "l1"}, None),
    Row("RadiusSearch", (t(1, 3, 1, 9), t(1, 3, 1, 4)), {}, ""),
    Row("RadiusSearch", (t(1, 4, 1, 9), t(1, 3, 1, 4)), {}, None),
    Row("CostVolume", (t(1, 1, 1, 8), t(1, 1, 1, 12)), {"range": 4}, ""),
    Row("CostVolume", (t(1, 1, 1, 8), t(1, 1, 1, 11)), {"range": 4}, None),
    # movement
    Row("Reshape", (X,), {}, "", output=t(1, 2048)),
    Row("Reshape", (X,), {}, "Cannot reshape a tensor of rank > 5", output=t(1, 1, 1, 8, 16, 16)),
    Row("Reshape", (X,), {}, "Error: Invalid output dimensions for Reshape unit", output=t(1, 2047)),
    Row("Flatten", (X,), {"layout": "nhwc"}, ""),
    Row("Flatten", (X,), {"layout": "ncdhw"}, "Flatten is not supported on this architecture"),
    Row("Shape", (X,), {}, ""),
    Row("Transpose", (X,), {"perm": (0, 2, 3, 1)}, ""),
    Row("Transpose", (X,), {"perm": (0, 2, 2, 1)}, None),
    Row("Transpose", (t(2, 3, 4, 5, 6),), {"perm": (1, 0, 2, 3, 4)}, None),
    Row("Transpose", (X,), {"batch_to_channels": True}, "TransposeNC: Invalid input channel 8, must be 1"),
    Row("Transpose", (X,), {"on_input": True}, "NE Input Transpose is not supported for this arch", "h11"),
    Row("Concat", (X, X), {"axis": 1}, ""),
    Row("Concat", (X,), {"axis": 1}, "Concat layer must have at least 2 inputs"),
    Row("Concat", (X, X), {"axis": -1}, "ANE Concat supports only supports const positive axis"),
    Row("Concat", (X, X), {"axis": 1, "layouts": ("nchw", "nhwc")}, "both concat inputs must have the same layout"),
    Row("Concat", (X, t(1, 8, 16, 15)), {"axis": 1}, None),
    Row("Pad", (X,), {"axes": ("height", "width")}, ""),
    Row("Pad", (X,), {"axes": ("channels",)}, "Channel padding is not supported on ANE"),
    Row("Pad", (X,), {"axes": ("width",), "mode": "edge"}, "Replication padding mode is not supported", "h17s"),
    Row("Pad", (X,), {"axes": ("width",), "mode": "reflect"}, "Architecture does not support padding mode."),
    Row("Pad", (X,), {"axes": ("width",), "mode": "symmetric"}, "Architecture does not support padding mode."),
    Row("Pad", (X,), {"axes": ("width",), "mode": "reflect"}, "", "h14"),
    Row("Pad", (X,), {"axes": ("width",), "modes": ("constant", "reflect")}, "Padding mode must be the same on all axes"),
    Row("Tile", (X,), {"factors": (1, 6, 24, 1)}, ""),
    Row("Tile", (X,), {"factors": (1, 5, 1, 1)}, None),
    Row("Broadcast", (t(1, 8, 16, 1),), {"axis": "width"}, ""),
    Row("Broadcast", (X,), {"axis": "width"}, None),
    Row("Broadcast", (t(1, 8, 1, 4, 4),), {"axis": "depth"}, "Broadcast along depth axis is not supported on this architecture"),
    Row("Broadcast", (t(1, 8, 16, 1),), {"axis": "width"}, "Broadcast output tensor channel must be 1 or match input_channel size", output=t(1, 9, 16, 4)),
    Row("InputView", (X,), {"axis": "width", "offset": 4, "size": 8}, ""),
    Row("InputView", (X,), {"axis": "time"}, "InvalidInputViewDimension"),
    Row("InputView", (X,), {"offset": 16, "size": 1}, "InvalidInputViewOffset"),
    Row("InputView", (X,), {"offset": 10, "size": 8}, "InvalidInputViewSize"),
    Row("InputView", (X,), {"step": 0}, "InvalidInputViewStep"),
    Row("InputView", (X,), {"size": 4, "step": -1}, "Error: View unit cannot be a partial view with negative strides"),
    Row("InputView", (X,), {"step": -1}, ""),
    Row("InputView", (X,), {"axis": "channels", "offset": 2, "size": 4, "interleave": 4}, None),
    Row("InputView", (X,), {"after_reshape": False}, None),
    Row("PixelShuffle", (X,), {"factors": (2, 2, 1)}, ""),
    Row("PixelShuffle", (X,), {"factors": (2, 2, 2)}, "returned invalid:"),
    Row("PixelShuffle", (t(1, 25, 4, 4),), {"factors": (5, 5, 1)}, "returned invalid:"),
    Row("PixelShuffle", (t(1, 6, 4, 4),), {"factors": (2, 2, 1)}, "Error: PixelShuffle's channel dimension must be divisible by the product of its factors"),
    Row("PixelUnshuffle", (X,), {"factors": (2, 2, 2)}, "PixelUnshuffle on z axis is not supported"),
    Row("PixelUnshuffle", (X,), {"factors": (3, 1, 1)}, "Error: Input dimensions should be divisible by the PixelUnshuffle factor"),
    Row("PixelUnshuffle", (X,), {"factors": (16, 1, 1)}, None),
    Row("ChannelToSpace", (X,), {"factors": (2, 2, 2)}, "ChannelToSpace in z dimension is not supported, current factor.z = 2."),
    Row("SpaceToChannel", (X,), {}, ""),
    Row("SpaceToChannel", (X, X), {}, "SpaceToChannel layer must have only one input"),
    Row("SpaceToBatch", (X,), {"factors": (4, 6, 1)}, "Error: Input dimensions should be divisible by the SpaceToBatch factor"),
    Row("SpaceToBatch", (X,), {"factors": (7, 1, 1)}, None),
    Row("BatchToSpace", (t(24, 8, 4, 4),), {"factors": (4, 6, 1)}, ""),
    Row("BatchToSpace", (t(6, 8, 4, 4),), {"factors": (2, 2, 1)}, "Input batch n = 6 is not divisible by factor x = 2 * factor y = 2"),
    Row("BatchToSpace", (t(8, 8, 4, 4),), {"factors": (2, 2, 2)}, "batch-to-space on z axis is not supported"),
    # texture
    Row("Resize", (X,), {"scales": (2, 2)}, ""),
    Row("Resize", (X,), {"scales": (2, 2), "sizes": (32, 32)}, None, "h14"),
    Row("Resize", (X,), {"axes": ("channels",)}, None, "h14"),
    Row("Resize", (X,), {"software": False}, "failed to map resize layer on this arch"),
    Row("Resize", (X,), {"software": False}, "", "h14"),
    Row("CropResize", (X, t(1, 4)), {}, "", "h14"),
    Row("CropResize", (X, t(1, 4, dtype="int32")), {}, "Crop Resize index format must be FP16", "h14"),
    Row("CropResize", (X, t(1, 4)), {"crop": (0, 4)}, "Invalid crop_resize crop width/height size, it should be in the range of [1, 16384]", "h14"),
    Row("CropResize", (t(2, 8, 16, 16), t(3, 4, 1, 1)), {}, "Illegal crop_resize batch sizes for index tensor and input tensor", "h14"),
    Row("CropResize", (X, t(1, 4)), {"methods": ("linear", "nearest")}, None, "h14"),
    Row("Resample", (X, t(1, 2, 16, 16)), {}, "", "h14"),
    Row("Resample", (X, t(1, 3, 16, 16)), {}, "Channel size in coordinates should be 1 or 2", "h14"),
    Row("Resample", (X, t(1, 2, 2, 16, 16)), {}, None, "h14"),
    Row("Resample", (X, t(1, 2, 16, 16)), {"padding_mode": "background", "method": "nearest"}, "Background padding with NearestNeighbor is not supported for Resample on this chip", "h14"),
    Row("AffineTransform", (X, t(1, 6)), {}, "", "h14"),
    Row("AffineTransform", (X, t(1, 6, dtype="fp32")), {}, None, "h14"),
    Row("AffineTransform", (X, t(1, 9)), {}, None, "h14"),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.layer}-{row.chip}-{row.says or row.says is None}"[:60])
def test_a_layer_is_accepted_or_refused_with_its_words(row: Row) -> None:
    got = validate(row.layer, row.types, row.attrs, load_chip(row.chip), row.output)
    if row.says == "":
        assert not got
    elif row.says is None:
        assert got
        assert not got[0].published
        assert got[0].reject == got[0].reason.removeprefix(f"{row.layer}: ")
    else:
        assert row.says in [verdict.reject for verdict in got if verdict.published]


@pytest.mark.parametrize(("layer", "says", "without", "having"), GATED)
def test_a_byte_of_the_chip_gates_a_layer(layer: str, says: str | None, without: str, having: str) -> None:
    (got,) = validate(layer, (X,), {}, load_chip(without))
    assert got.published == (says is not None)
    assert says in (None, got.reject)
    assert got.rule.startswith("gate byte 0x")
    assert not any(v.rule.startswith("gate byte") for v in validate(layer, (X,), {}, load_chip(having)))


# layer, operands, attributes, a chip where code generation fails behind the validator, one where it does not ("-": none)
FAIL = [
    ("TopK", (X,), {"k": 5}, "h13", "h14"),
    ("TopK", (X,), {"k": 3}, "h17s", "-"),
    ("TopK", (X,), {"k": 4}, "h14", "-"),
    ("Sort", (X,), {}, "h13", "h14"),
    ("DynamicSlice", (X, t(1)), {}, "h13", "h14"),
    ("CropResize", (X, t(1, 4)), {}, "h13", "h14"),
    ("Conv", (t(1, 8, 4, 4, 4),), {"kernel_sizes": (3, 3, 3), "pad": (1, 1, 1)}, "h17s", "-"),
    ("Conv", (t(1, 8, 4, 4, 4),), {"kernel_sizes": (3, 3, 3), "pad": (1, 1, 1)}, "h13", "-"),
    ("Unflatten", (X,), {}, "h18", "-"),
    ("LRN", (t(1, 16, 4, 4),), {"kernel_sizes": (5, 1, 1)}, "h13", "h14"),
    ("NMS", (t(1, 4, 1, 9), t(1, 1, 1, 9)), {}, "h17s", "-"),
    ("MatrixDecomposition", (X,), {}, "h17s", "-"),
]


@pytest.mark.parametrize(("layer", "types", "attrs", "chip", "works"), FAIL)
def test_attested_is_not_reachable(layer: str, types: Any, attrs: Any, chip: str, works: str) -> None:
    (got,) = validate(layer, types, attrs, load_chip(chip))
    assert got.rule == "attested is not reachable"
    assert got.verdict == "rejected"
    if works != "-":
        assert not validate(layer, types, attrs, load_chip(works))


@pytest.mark.parametrize("layer", ["RCAS", "Reverse"])
def test_a_layer_without_an_export_is_out_of_reach(layer: str) -> None:
    for chip in ("h13", "h17s"):
        (got,) = validate(layer, (X,), {}, load_chip(chip))
        assert got.rule == "no export"


# The check of gathers on the first generation: its conditions and its words.
GATHERS = [
    ((t(1, 8, 4, 4), t(1, 3, 5, 1)), {}, ""),
    ((t(1, 8, 4, 4), t(1, 3, 5, 1)), {"axes": 2}, "Invalid gather axes size 2, must be 3"),
    ((t(2, 8, 4, 4), t(1, 3, 5, 1)), {}, "Invalid gather data tensor batch size 2, must be 1"),
    ((t(1, 8, 2, 4, 4), t(1, 3, 5, 1)), {}, "Invalid gather data tensor depth size 2, must be 1"),
    ((t(1, 8, 4, 4), t(1, 2, 5, 1)), {}, "Invalid gather index tensor channel size 2, must be 3"),
    ((t(1, 8, 4, 4), t(1, 3, 5, 2)), {}, "Invalid gather index tensor width size 2, must be 1"),
    ((t(1, 8, 4, 4), t(1, 3, 2, 5, 1)), {}, "depth of the index: got 2, need 1"),
    ((t(1, 8, 4, 4), t(1, 3, 5, 1)), {"layout": "chw"}, "layout of the axes: got chw, need nch"),
    ((t(1, 8, 4, 4), t(1, 3, 5, 1)), {"decomposes": False}, "Cannot decompose layer on this architecture"),
]


@pytest.mark.parametrize(("types", "attrs", "says"), GATHERS)
def test_gather_has_a_check_of_its_own_on_a13_alone(types: Any, attrs: Any, says: str) -> None:
    for chip in ("h13", "h13g", "t1"):
        assert [v.reject for v in validate("Gather", types, attrs, load_chip(chip))] == ([says] if says else [])
    for chip in ("h14", "h15", "h16", "h17s", "h18"):
        assert not validate("Gather", types, attrs, load_chip(chip))


def test_remedies_name_chips_where_a_family_is_meant() -> None:
    """The chip A13 is of an older family than "family A13": its users must not take themselves for a later one."""
    (shape,) = validate("Reshape", (t(1, 8, 4, 4),), {}, load_chip("h12"), t(1, 4, 8, 4))
    assert shape.change == "needs iPhone 12 (A14, M1) or later"
    (batch,) = validate("Gather", (t(2, 8, 4, 4), t(1, 3, 5, 1)), {}, load_chip("h13"))
    assert batch.change == "gather one item of the batch at a time; iPhone 13 (A15, M2) and later take several"


def test_kernel_memory_is_shared_only_where_both_ask_for_it() -> None:
    assert kernel_memory(load_chip("h13"), shared=False) == 65536
    assert kernel_memory(load_chip("h13"), shared=True) == 16777216
    assert kernel_memory(load_chip("h12"), shared=True) == 65536


@pytest.mark.parametrize(("chip", "fp16", "want"), [("h13", True, (16, 29, 13)), ("h13", False, (16, 29, 29)), ("h12", True, (1, 29, 13)), ("h17s", True, (16, 32, 15)), ("h17s", False, (16, 32, 32))])  # fmt: skip
def test_the_largest_kernels(chip: str, fp16: bool, want: tuple[int, int, int]) -> None:
    assert largest_kernel(load_chip(chip), fp16) == want


def test_every_layer_has_rules_or_needs_none() -> None:
    assert set(layers()) - set(RULES) == {"RCAS", "Reverse"}


def test_shapes_have_extents_by_name() -> None:
    assert dims((2, 3, 4, 5, 6)) == Dims(2, 3, 4, 5, 6)
    assert dims((2, 3, 5, 6)) == Dims(2, 3, 1, 5, 6)
    assert dims((3, 6)) == Dims(1, 3, 1, 1, 6)
    assert dims(()) == Dims(1, 1, 1, 1, 1)


def test_no_such_layer_is_an_error() -> None:
    with pytest.raises(Error, match="got 'Convolution', need one of AffineTransform"):
        validate("Convolution", (X,), {}, load_chip("h13"))


def _words() -> set[str]:
    words = {rule.reject for rules in RULES.values() for rule in rules if rule.published}
    return words | {layer.reject for layer in layers().values() if layer.published}


def test_every_published_string_is_here(published: Published) -> None:
    mine = _words()
    # Descriptions in the table, not strings; and rows that stand for several.
    described = {"(encoded assert on 0x4f2)", "(encoded assert on 0x818)", "InvalidInputViewDimension/Offset/Size/Step"}
    for row in published("validators"):
        for text in filter(None, row["reject_strings (| separated)"].split(" | ")):
            words = text.removesuffix(" (same for batch/depth/height/width)")
            assert words in mine or words in described, (row["validator (_ANECValidate<name>Layer)"], words)


def test_no_string_is_called_published_that_is_not(published: Published) -> None:
    known = "\n".join(row["reject_strings (| separated)"] for row in published("validators"))
    split = {f"InvalidInputView{what}" for what in ("Dimension", "Offset", "Size", "Step")}
    in_chapter_35 = {"cannot be lowered as Flatten on ANE"}
    assert {words for words in _words() if words not in known} <= split | in_chapter_35


@pytest.mark.parametrize(
    ("layer", "attrs"),
    [
        ("Tile", {"factors": (1, 3, 1, 1)}),
        ("SpaceToBatch", {"factors": (3, 1, 1)}),
        ("PixelUnshuffle", {"factors": (3, 1, 1)}),
    ],
)
def test_factors_are_those_of_the_chip(layer: str, attrs: dict[str, object]) -> None:
    chip, x = load_chip("h13"), tensor_type("fp16", (1, 9, 12, 12))
    assert validate(layer, [x], attrs, chip) == []
    fewer = replace(chip, extents=replace(chip.extents, stride_factors=(2, 4)))
    assert validate(layer, [x], attrs, fewer)
