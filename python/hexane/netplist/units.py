"""The parts of a netplist: its units and their parameters.

Sources: each type of unit and parameter was compiled on chips, or is read by the compiler's parser (ANE guide, chapters
22 and 26, appendix B; ANEForge's netplists). Scalars that the engine computes with are written as the bits of an fp16.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

VERSION = "1.0.10"
AXES = ("Batch", "Channel", "Depth", "Height", "Width")
DTYPES = {"Float16": "fp16", "UInt16": "uint16", "Int8": "int8", "UInt8": "uint8"}

Dims = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class NetPort:
    """An input, whose `bottom` is "", or an output, whose `dims` are zero because the file does not have them."""

    name: str
    type: str
    dims: Dims = (0, 0, 0, 0, 0)
    bottom: str = ""


@dataclass(frozen=True, slots=True)
class Unit:
    """One layer. bottoms: names of units, constants and inputs."""

    name: str
    type: str
    bottoms: tuple[str, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    output_type: str = "Float16"
    channels: int = 0
    groups: int = 1


@dataclass(frozen=True, slots=True)
class NetConstant:
    """Numbers at a byte offset of the weights."""

    name: str
    type: str
    offset: int
    dims: Dims


@dataclass(frozen=True, slots=True)
class Netplist:
    """A network of units in the order they run, and the bytes of its file of weights."""

    name: str
    inputs: tuple[NetPort, ...]
    units: tuple[Unit, ...]
    constants: tuple[NetConstant, ...]
    outputs: tuple[NetPort, ...]
    weights: bytes = b""


class Kind(NamedTuple):
    """A type of unit: its parameters with their kinds, the required ones, and the number of bottoms.

    Kinds: int, bool, number, text, fp16 (bits, 0 to 65535), ints, texts, tables. A tuple of words means that the value
    is one of the words.
    """

    params: Mapping[str, str | tuple[str, ...]]
    bottoms: tuple[int, int]
    needed: tuple[str, ...] = ()


_PAD = dict.fromkeys(("PadLeft", "PadRight", "PadTop", "PadBot", "PadFront", "PadBack"), "int")
_KERNEL = dict.fromkeys(("KernelWidth", "KernelHeight", "KernelDepth"), "int")
_FACTORS = Kind(dict.fromkeys(("FactorX", "FactorY", "FactorZ"), "int"), (1, 1), ("FactorX", "FactorY"))
_SORTED: Mapping[str, str | tuple[str, ...]] = {
    "SortDimension": AXES,
    "VectorDimension": AXES,
    "SortIndices": "bool",
    "Indices": "bool",
}
NEURON_TYPES = (
    *("ReLU", "SigmoidHighPrecision", "GELU", "Tanh", "Sqrt", "Rsqrt", "Exp2", "Log2", "Inv", "Sin", "Cos", "Ceil"),
    *("Floor", "RoundNearest", "ELU", "LeakyReLU", "ClampedReLU"),
)
ELEMENTWISE_TYPES = ("Add", "Mult", "Sub", "Min", "Max", "GreaterThan", "LessThan", "Equal", "NotEqual", "Abs")

UNITS: Mapping[str, Kind] = {
    "Neuron": Kind(
        {"Type": NEURON_TYPES} | dict.fromkeys(("EluAlpha", "ReluSlope", "ReluOffset", "ReluMin", "ReluMax"), "fp16"),
        (1, 1),
        ("Type",),
    ),
    "ElementWise": Kind({"Type": ELEMENTWISE_TYPES}, (1, 2), ("Type",)),
    "ScaledElementWise": Kind({"Type": ("Add", "Mult", "Min", "Max"), "Scale": "fp16"}, (2, 2), ("Type",)),
    "GOC": Kind({"ScaleScalar": "fp16", "BiasScalar": "fp16"}, (1, 1)),
    "DynamicGOC": Kind({"BiasOnly": "bool"}, (2, 3)),
    "Broadcast": Kind({"BroadcastInfo": "tables"}, (1, 1), ("BroadcastInfo",)),
    "Softmax": Kind({"Dimension": AXES}, (1, 1), ("Dimension",)),
    "Pooling": Kind(
        _KERNEL
        | _PAD
        | {
            "PaddingMode": ("Negative", "Zero"),
            "Step": "ints",
            "Type": ("Max", "Avg"),
            "AverageCountExcludePadding": "bool",
        },
        (1, 1),
        ("Type", "KernelWidth", "KernelHeight", "Step"),
    ),
    "Reduction": Kind({"Dimension": "texts", "Type": ("Sum", "Avg", "Max", "Min")}, (1, 1), ("Dimension", "Type")),
    "MinMaxNormalization": Kind(
        {"Dimension": ("Width", "Height"), "Epsilon": "fp16"}, (1, 1), ("Dimension", "Epsilon")
    ),
    "LocalResponseNormalization": Kind(
        {"Type": "text", "Alpha": "fp16", "Beta": "fp16", "K": "fp16"}
        | dict.fromkeys(("KernelWidth", "KernelHeight", "KernelChannel"), "int"),
        (1, 1),
        ("Alpha", "KernelChannel"),
    ),
    "KernelRasterizer": Kind(
        {"KernelWidth": "int", "KernelHeight": "int", "NumGroups": "int", "RasterizerMode": ("UnfoldedChannels",)},
        (1, 1),
    ),
    "CrossCorrelation": Kind(
        _PAD | {"TemplateWidth": "int", "TemplateHeight": "int", "NumGroups": "int"},
        (2, 2),
        ("TemplateWidth", "TemplateHeight"),
    ),
    "CrossProduct": Kind({}, (2, 2)),
    "CostVolume": Kind(
        dict.fromkeys(("DisparityDirection", "DisparityRange", "ScaleFactorX", "ScaleFactorY"), "int"), (2, 2)
    ),
    "FurthestPointSampling": Kind({"CentroidCount": "int", "DistanceMetric": "text"}, (1, 1), ("CentroidCount",)),
    "RadiusSearch": Kind({"Radius": "number"}, (2, 2), ("Radius",)),
    "MatrixDecomposition": Kind(
        {"Type": ("NonQRGivens", "CrossProductOrthoNormalization"), "Epsilon": "fp16", "RotationAxis": "ints"},
        (1, 1),
        ("Type",),
    ),
    "MatrixMultiplication": Kind({}, (2, 2)),
    "Linear": Kind(_KERNEL | {"KernelIndex": "int", "KernelOffset": "int", "KernelType": ("Float16",)}, (1, 1)),
    "Conv": Kind(
        _KERNEL
        | _PAD
        | {
            "Type": ("Conv", "ChannelWiseDeConv"),
            "KernelMode": ("Dense", "Unity"),
            "KernelType": ("Float16",),
            "KernelIndex": "int",
            "KernelOffset": "int",
            "KernelGroupReuse": "bool",
            "KernelMutable": "bool",
            "PaddingMode": ("Zero",),
            "Step": "ints",
        },
        (1, 1),
        ("Type", "KernelWidth", "KernelHeight", "Step"),
    ),
    "SDPA": Kind({"SubtractMax": "bool"}, (4, 5), ("SubtractMax",)),
    "InputView": Kind(
        {"Dimension": AXES, "Offset": "int", "Size": "int", "Step": "int"}, (1, 1), ("Dimension", "Offset", "Size")
    ),
    "Concat": Kind({"Dimension": AXES}, (2, 1 << 16), ("Dimension",)),
    "Reshape": Kind(
        dict.fromkeys(("ReshapedBatch", "ReshapedChannel", "ReshapedDepth", "ReshapedHeight", "ReshapedWidth"), "int"),
        (1, 1),
        ("ReshapedBatch", "ReshapedChannel", "ReshapedHeight", "ReshapedWidth"),
    ),
    "Transpose": Kind({"TransposeDimensions": "tables"}, (1, 1), ("TransposeDimensions",)),
    "Tile": Kind(dict.fromkeys(AXES, "int"), (1, 1)),
    "Gather": Kind({"GatherNDAxes": "texts"}, (2, 2), ("GatherNDAxes",)),
    "DynamicSlice": Kind(
        {
            "BackgroundValue": "number",
            "CoordinateInfo": "tables",
            "CoordinateMode": ("NonNormalized", "Normalized"),
            "DynamicSliceAxisOrder": "texts",
            "DynamicSliceInfo": "tables",
            "PaddingInfo": "tables",
        },
        (2, 2),
        ("DynamicSliceInfo",),
    ),
    "Sort": Kind({**_SORTED, "Direction": "text"}, (1, 1), ("Direction", "SortDimension")),
    "TopK": Kind({**_SORTED, "Type": ("Max", "Min"), "K": "int"}, (1, 1), ("Type", "K", "SortDimension")),
    "ArgMinMax": Kind(
        _PAD
        | {
            "Mode": ("SpatialArgMax", "ChannelArgMax", "SpatialArgMin", "ChannelArgMin"),
            "KernelWidth": "int",
            "KernelHeight": "int",
        },
        (1, 1),
        ("Mode",),
    ),
    "GlobalArgMinMax": Kind({"Type": ("Max", "Min"), "Dimension": AXES}, (1, 1), ("Type", "Dimension")),
    **dict.fromkeys(
        ("PixelShuffle", "PixelUnshuffle", "ChannelToSpace", "SpaceToChannel", "SpaceToBatch", "BatchToSpace"), _FACTORS
    ),
    "Flatten": Kind({"FlattenType": "text", "Mode": "text"}, (1, 1)),
    "Dropout": Kind({"DropoutRate": "number", "Seed": "int"}, (1, 1)),
    "RandomGenerator": Kind({"Type": ("Normal", "Bernoulli", "Categorical", "Gaussian")}, (0, 0)),
    "Shape": Kind({}, (1, 1)),
    "Resample": Kind({"Type": ("NearestNeighbor",)}, (2, 2)),
}
