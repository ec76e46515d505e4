"""The cases of the sweep: ONNX operators at the sizes of real networks, each with its op of the catalogue."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hexane.ops import USER_OPS, Op

Array = np.ndarray[Any, Any]

IMAGE = (1, 64, 56, 56)
ROWS = (128, 768)
SQUARE = (512, 512)
HEADS = (12, 128, 64)


@dataclass(frozen=True, slots=True)
class Random:
    """An input of the model: uniform numbers, drawn when the case runs."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    low: float = -2.0
    high: float = 2.0

    def array(self, rng: np.random.Generator) -> Array:
        values = rng.uniform(self.low, self.high, self.shape)
        return values > 0 if self.dtype == "bool" else values.astype(self.dtype)

    def __str__(self) -> str:
        return "x".join(map(str, self.shape)) + ("" if self.dtype == "float32" else f" {self.dtype}")


@dataclass(frozen=True, slots=True)
class SweepCase:
    """One node. Each input is Random, an array, which becomes an initializer, or None for an omitted input."""

    op: str
    onnx: str
    inputs: tuple[Random | Array | None, ...]
    attrs: dict[str, Any]
    outputs: int = 1

    def __str__(self) -> str:
        shapes = ", ".join(_describe(i) for i in self.inputs if i is not None)
        attrs = "".join(f" {k}={str(v).replace(' ', '')}" for k, v in self.attrs.items())
        return f"{self.onnx} {shapes}{attrs}"


def _describe(x: Random | Array) -> str:
    if isinstance(x, Random):
        return str(x)
    return str(np.asarray(x).tolist()).replace(" ", "") if np.size(x) <= 6 else "x".join(map(str, x.shape)) + " const"


def weights(*shape: int) -> Array:
    return (np.random.default_rng(1).standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def integers(*values: int) -> Array:
    return np.array(values, np.int64)


def one(op: str, onnx: str, *inputs: Random | Array | None, outputs: int = 1, **attrs: Any) -> SweepCase:
    return SweepCase(op, onnx, inputs, attrs, outputs)


def cases() -> list[SweepCase]:
    return [
        case for part in (plain, typed, linear, spatial, windows, rows, sequences, moves, indices) for case in part()
    ]


def plain() -> Iterator[SweepCase]:
    """Elementwise ops with an ONNX op in their record, at an image's size, on the record's ranges of numbers."""
    for op in USER_OPS.values():
        if not op.onnx or op.cases[0].shapes not in (((2, 3, 17),), ((2, 3, 17),) * 2) or op.name.startswith("reduce"):
            continue
        first = op.cases[0]
        dtype = "bool" if first.dtypes[0] == "bool" else "float32"
        x = Random(IMAGE, dtype, first.low, first.high)
        yield one(op.name, op.onnx[0], *[x] * len(first.shapes))
        if len(first.shapes) == 2 and dtype != "bool":
            yield one(op.name, op.onnx[0], x, Random((64, 1, 1), dtype, first.low, first.high))
    yield from elementwise(Random(IMAGE))


def elementwise(x: Random) -> Iterator[SweepCase]:
    positive, f = Random(IMAGE, low=0.1), np.float32
    yield one("gelu", "Gelu", x)
    yield one("gelu_tanh", "Gelu", x, approximate="tanh")
    yield one("clip", "Clip", x, f(-1), f(0.5))
    yield one("selu", "Selu", x)
    yield one("prelu", "PRelu", x, weights(64, 1, 1))
    yield one("pow", "Pow", positive, Random(IMAGE))
    for exponent in (2, 3, 0.5, -0.5, 1.7):
        yield one("pow", "Pow", positive, np.array(exponent, f))
    yield one("fmod", "Mod", x, positive, fmod=1)
    yield one("maximum", "Max", x, x)
    yield one("minimum", "Min", x, x)
    yield one("select", "Where", Random(IMAGE, "bool"), x, x)
    yield one("select", "Where", Random((128, 128), "bool"), Random((12, 128, 128)), np.array(-1e9, f))
    for onnx in ("Add", "Mul", "Div"):
        yield one(onnx, onnx, x, np.array(3, f))
    yield one("add", "Add", Random((1, 3136, 64)), Random((64,)))
    yield one("mul", "Mul", Random(ROWS), Random((128, 1)))


def typed() -> Iterator[SweepCase]:
    for dtype in ("int64", "int32", "uint8", "int8"):
        x, low = Random(IMAGE, dtype, 0 if dtype[0] == "u" else -100, 100), Random(IMAGE, dtype, 1, 9)
        for op, onnx in (("add", "Add"), ("mul", "Mul"), ("real_div", "Div"), ("maximum", "Max"), ("less", "Less")):
            yield one(op, onnx, x, low)
        yield one("equal", "Equal", x, low)
        yield one("mod", "Mod", x, low)
        yield one("select", "Where", Random(IMAGE, "bool"), x, x)
        yield one("abs", "Abs", x)
        yield one("neg", "Neg", x)
        yield one("relu", "Relu", x)
        yield one("reduce_sum", "ReduceSum", Random(ROWS, dtype, 0, 9), integers(1))
        yield one("reduce_max", "ReduceMax", Random(ROWS, dtype, 0, 9), integers(1))
        yield one("max_pool", "MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
        yield one("transpose", "Transpose", x, perm=[0, 2, 3, 1])
    unsigned = Random(IMAGE, "uint32", 0, 31)
    for op, onnx in (("bitwise_and", "BitwiseAnd"), ("bitwise_or", "BitwiseOr"), ("bitwise_xor", "BitwiseXor")):
        yield one(op, onnx, unsigned, unsigned)
    for op, way in (("shift_left", "LEFT"), ("shift_right", "RIGHT")):
        yield one(op, "BitShift", unsigned, unsigned, direction=way)
    for source, target in (
        ("float32", 10), ("float16", 1), ("float32", 6), ("float32", 7), ("float32", 2), ("float32", 3), ("float32", 9),
        ("int32", 1), ("int64", 1), ("int64", 6), ("int32", 7), ("uint8", 1), ("int8", 1), ("bool", 1), ("bool", 7), ("int64", 9),
    ):  # fmt: skip
        yield one("cast", "Cast", Random(IMAGE, source, 0, 99), to=target)


def linear() -> Iterator[SweepCase]:
    yield one("matmul", "MatMul", Random(SQUARE), Random(SQUARE))
    yield one("matmul", "MatMul", Random(SQUARE), weights(*SQUARE))
    yield one("matmul", "MatMul", Random(ROWS), weights(768, 3072))
    yield one("matmul", "MatMul", Random((1, 768)), weights(768, 3072))
    yield one("matmul", "MatMul", Random((1, 12, 128, 64)), Random((1, 12, 64, 128)))
    yield one("matmul", "MatMul", Random((1, 12, 128, 128)), Random((1, 12, 128, 64)))
    yield one("matmul", "MatMul", Random((12, 1, 64)), Random((12, 64, 256)))
    yield one("linear", "Gemm", Random(ROWS), weights(768, 768), weights(768, 1)[:, 0], transB=1)
    yield one("linear", "Gemm", Random((1, 512)), weights(1000, 512), weights(1000, 1)[:, 0], transB=1)
    yield one("linear", "Gemm", Random((768, 128)), Random((768, 768)), transA=1)
    yield one("matmul", "Einsum", Random(HEADS), Random(HEADS), equation="hqd,hkd->hqk")
    for heads in (1, 128):
        yield one(
            "scaled_dot_product_attention", "Attention", Random((1, 12, heads, 64)), *[Random((1, 12, 128, 64))] * 2
        )
    angles = weights(1, 128, 32)
    yield one("rotary_embedding", "RotaryEmbedding", Random((1, 12, 128, 64)), np.cos(angles), np.sin(angles))


def conv(onnx: str, image: tuple[int, ...], kernel: tuple[int, ...], **attrs: Any) -> SweepCase:
    out = kernel[0] if onnx == "Conv" else kernel[1] * attrs.get("group", 1)
    op = "conv" if onnx == "Conv" else "conv_transpose"
    return one(op, onnx, Random(image), weights(*kernel), weights(out, 1)[:, 0], **attrs)


def spatial() -> Iterator[SweepCase]:
    big, small = (1, 64, 112, 112), (1, 512, 7, 7)
    yield conv("Conv", IMAGE, (64, 64, 3, 3), pads=[1] * 4)
    yield conv("Conv", IMAGE, (256, 64, 1, 1))
    yield conv("Conv", IMAGE, (64, 1, 3, 3), pads=[1] * 4, group=64)
    yield conv("Conv", IMAGE, (64, 1, 5, 5), pads=[2] * 4, group=64)
    yield conv("Conv", (1, 128, 56, 56), (128, 4, 3, 3), pads=[1] * 4, group=32)
    yield conv("Conv", IMAGE, (64, 64, 3, 3), pads=[2] * 4, dilations=[2, 2])
    yield conv("Conv", (1, 3, 224, 224), (64, 3, 7, 7), pads=[3] * 4, strides=[2, 2])
    yield conv("Conv", small, (512, 512, 3, 3), pads=[1] * 4)
    yield conv("Conv", (1, 64, 3000), (64, 64, 3), pads=[1, 1])
    yield conv("Conv", (1, 64, 3000), (64, 1, 31), pads=[15, 15], group=64)
    yield conv("Conv", (1, 16, 16, 28, 28), (16, 16, 3, 3, 3), pads=[1] * 6)
    yield conv("ConvTranspose", IMAGE, (64, 32, 2, 2), strides=[2, 2])
    yield conv("ConvTranspose", (1, 64, 28, 28), (64, 64, 4, 4), strides=[2, 2], pads=[1] * 4)
    yield conv("ConvTranspose", (1, 64, 28, 28), (64, 64, 3, 3), pads=[1] * 4)
    yield conv("ConvTranspose", (1, 64, 1000), (64, 64, 4), strides=[2], pads=[1, 1])
    yield conv("ConvTranspose", (1, 64, 28, 28), (64, 1, 4, 4), strides=[2, 2], pads=[1] * 4, group=64)
    for op, onnx in (("max_pool", "MaxPool"), ("avg_pool", "AveragePool")):
        yield one(op, onnx, Random(big), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
        yield one(op, onnx, Random(IMAGE), kernel_shape=[2, 2], strides=[2, 2])
        yield one(op, onnx, Random((1, 64, 3000)), kernel_shape=[3], strides=[2])
        yield one(op, onnx, Random((1, 16, 16, 28, 28)), kernel_shape=[2] * 3, strides=[2] * 3)
    yield one("max_pool", "MaxPool", Random((1, 256, 20, 20)), kernel_shape=[5, 5], pads=[2] * 4)
    yield one("reduce_mean", "GlobalAveragePool", Random(small))
    yield one("reduce_max", "GlobalMaxPool", Random(IMAGE))
    channels = [weights(64, 1)[:, 0]] * 2
    mean, variance = np.zeros(64, np.float32), np.ones(64, np.float32)
    yield one("batch_norm", "BatchNormalization", Random(IMAGE), *channels, mean, variance)
    yield one("instance_norm", "InstanceNormalization", Random(IMAGE), *channels)
    yield one("group_norm", "GroupNormalization", Random(IMAGE), *channels, num_groups=8)
    yield one("local_response_norm", "LRN", Random(IMAGE), size=5)
    scales, down = np.array([1, 1, 2, 2], np.float32), np.array([1, 1, 0.5, 0.5], np.float32)
    for op, mode in (
        ("resize_nearest_neighbor", "nearest"),
        ("resize_bilinear", "linear"),
        ("resize", "cubic"),
    ):
        yield one(op, "Resize", Random(IMAGE), None, scales, mode=mode)
        yield one(op, "Resize", Random((1, 3, 224, 224)), None, down, mode=mode)
    yield one("resize_nearest_neighbor", "Resize", Random(IMAGE), None, scales, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
    yield one("resize_bilinear", "Resize", Random(IMAGE), None, scales, mode="linear", coordinate_transformation_mode="align_corners")  # fmt: skip
    yield one("grid_sample", "GridSample", Random((1, 16, 56, 56)), Random((1, 56, 56, 2), low=-1, high=1))


def windows() -> Iterator[SweepCase]:
    """Windows, regions and images of other kinds."""
    f = np.float32
    yield one("lp_pool", "LpPool", Random(IMAGE), kernel_shape=[2, 2], strides=[2, 2])
    yield one("max_pool_with_indices", "MaxPool", Random(IMAGE), kernel_shape=[2, 2], strides=[2, 2], outputs=2)
    yield one("col2im", "Col2Im", Random((1, 64 * 4, 784)), integers(56, 56), integers(2, 2), strides=[2, 2])
    yield one("col2im", "Col2Im", Random((1, 64 * 9, 784)), integers(28, 28), integers(3, 3), pads=[1] * 4)
    yield one(
        "col2im", "Col2Im", Random((1, 64 * 9, 784)), integers(56, 56), integers(3, 3), pads=[1] * 4, strides=[2, 2]
    )
    rois = np.random.default_rng(3).uniform(0, 28, (50, 4)).astype(f) + np.array([0, 0, 27, 27], f)
    image = Random((1, 64, 56, 56))
    yield one(
        "roi_align", "RoiAlign", image, rois, np.zeros(50, np.int64), output_height=7, output_width=7, sampling_ratio=2
    )
    offsets = Random((1, 18, 28, 28), low=-1, high=1)
    yield one("deform_conv", "DeformConv", Random((1, 64, 28, 28)), weights(64, 64, 3, 3), offsets, pads=[1] * 4)
    yield one("affine_grid", "AffineGrid", Random((1, 2, 3)), integers(1, 3, 56, 56))
    yield one("center_crop_pad", "CenterCropPad", Random((224, 256, 3)), integers(200, 200), axes=[0, 1])


def sequences() -> Iterator[SweepCase]:
    """Recurrent networks, signals, products over named axes."""
    for op, onnx, gates in (("rnn", "RNN", 1), ("gru", "GRU", 3), ("lstm", "LSTM", 4)):
        for hidden in (64, 256):
            width = gates * hidden
            yield one(
                op,
                onnx,
                Random((32, 1, hidden)),
                weights(1, width, hidden),
                weights(1, width, hidden),
                hidden_size=hidden,
            )
    yield one("dft", "DFT", Random((16, 512, 1)), None, np.array(1, np.int64), onesided=1)
    yield one("dft", "DFT", Random((511, 2048, 1)), None, np.array(1, np.int64), onesided=1)  # 3 s of BirdNET's sound
    yield one("dft", "DFT", Random((100, 1021, 2)), None, np.array(1, np.int64))  # a prime
    window = np.hanning(400).astype(np.float32)
    yield one("stft", "STFT", Random((1, 16000, 1)), np.array(160, np.int64), window, onesided=1)
    yield one("einsum", "Einsum", Random((1, 128, 12, 64)), Random((1, 128, 12, 64)), equation="bqhd,bkhd->bhqk")
    yield one("einsum", "Einsum", Random(SQUARE), Random(SQUARE), equation="ij,kj->ik")
    yield one("det", "Det", Random((1000, 3, 3)))
    lengths = np.random.default_rng(4).integers(1, 128, 16)
    yield one("reverse_sequence", "ReverseSequence", Random((128, 16, 64)), lengths)
    for axis in (0, 1):
        yield one("cumprod", "CumProd", Random(ROWS, low=0.9, high=1.1), np.array(axis, np.int64))


def rows() -> Iterator[SweepCase]:
    """Along an axis: reductions, softmax, norms, cumulative sums."""
    for op in USER_OPS.values():
        if op.name.startswith("reduce_") and op.onnx:
            low = 0.1 if "log_sum" in op.name else -2.0
            x, image = Random(ROWS, low=low), Random(IMAGE, low=low)
            yield one(op.name, op.onnx[0], x, integers(1))
            yield one(op.name, op.onnx[0], x, integers(0))
            yield one(op.name, op.onnx[0], image, integers(2, 3))
            yield one(op.name, op.onnx[0], image, integers(1))
            yield one(op.name, op.onnx[0], image)
    for op, onnx in (("reduce_argmax", "ArgMax"), ("reduce_argmin", "ArgMin")):
        yield one(op, onnx, Random((128, 1000)), axis=1)
        yield one(op, onnx, Random(IMAGE), axis=1)
    for op, onnx in (("softmax", "Softmax"), ("log_softmax", "LogSoftmax")):
        yield one(op, onnx, Random(ROWS))
        yield one(op, onnx, Random((12, 128, 128)))
        yield one(op, onnx, Random((1, 21, 56, 56)), axis=1)
    yield one("hardmax", "Hardmax", Random(ROWS))
    for axis in (0, 1):
        yield one("cumsum", "CumSum", Random(ROWS), np.array(axis, np.int64))
    yield one("cumsum", "CumSum", Random(ROWS, "int64", 0, 9), np.array(1, np.int64))
    gain = weights(768, 1)[:, 0]
    yield one("layer_norm", "LayerNormalization", Random(ROWS), gain, gain)
    yield one("rms_norm", "RMSNormalization", Random(ROWS), gain)
    yield one("mean_variance_norm", "MeanVarianceNormalization", Random(IMAGE))
    yield one("lp_norm", "LpNormalization", Random(ROWS))


def moves() -> Iterator[SweepCase]:
    """Ops that only move elements."""
    x = Random(IMAGE)
    yield one("identity", "Identity", x)
    yield one("reshape", "Reshape", x, integers(1, 64, 3136))
    for shape, perm in (
        (IMAGE, [0, 2, 3, 1]), ((1, 56, 56, 64), [0, 3, 1, 2]), ((1024, 1024), [1, 0]), ((1, 128, 12, 64), [0, 2, 1, 3]),
        ((1, 12, 128, 64), [0, 1, 3, 2]), ((64, 56, 56), [2, 1, 0]), ((1, 8, 8, 7, 8, 7), [0, 1, 3, 5, 2, 4]),
    ):  # fmt: skip
        yield one("transpose", "Transpose", Random(shape), perm=perm)
    yield one("slice_by_index", "Slice", x, integers(0, 8, 8), integers(64, 48, 48), integers(1, 2, 3))
    yield one("slice_by_index", "Slice", x, integers(0, 0), integers(56, 56), integers(2, 3), integers(2, 2))
    yield one("reverse", "Slice", x, integers(-1), integers(-99), integers(3), integers(-1))
    yield one("reverse", "Slice", x, integers(-1), integers(-99), integers(1), integers(-1))
    yield one("broadcast_to", "Expand", Random((64, 1, 1)), integers(*IMAGE))
    yield one("broadcast_to", "Expand", Random((1, 64, 56, 1)), integers(*IMAGE))
    yield one("split", "Split", x, axis=1, num_outputs=2, outputs=2)
    yield one("split", "Split", Random((128, 2304)), axis=1, num_outputs=3, outputs=3)
    yield one("concat", "Concat", x, x, axis=1)
    yield one("concat", "Concat", Random(ROWS), Random(ROWS), axis=1)
    yield one("concat", "Concat", Random((1, 56, 56, 3)), Random((1, 56, 56, 2)), axis=3)
    for mode in ("constant", "reflect", "edge", "wrap"):
        yield one("pad", "Pad", x, integers(0, 0, 1, 1, 0, 0, 1, 1), mode=mode)
    yield one("tile", "Tile", x, integers(1, 1, 2, 2))
    yield one("tile", "Tile", Random((1, 768)), integers(128, 1))
    yield one("depth_to_space", "DepthToSpace", x, blocksize=2)
    yield one("pixel_shuffle", "DepthToSpace", x, blocksize=2, mode="CRD")
    yield one("space_to_depth", "SpaceToDepth", x, blocksize=2)
    yield one("trilu", "Trilu", Random((12, 128, 128)))


def indices() -> Iterator[SweepCase]:
    rng = np.random.default_rng(2)
    table, x = Random((32000, 768)), Random(ROWS)
    ids = Random((128,), "int64", 0, 31999)
    yield one("gather", "Gather", table, ids)
    yield one("gather", "Gather", x, Random((64,), "int64", 0, 767), axis=1)
    yield one("gather", "Gather", Random(IMAGE), Random((), "int64", 0, 55), axis=2)
    elements = rng.integers(0, 128, ROWS)
    yield one("gather_along_axis", "GatherElements", x, Random(ROWS, "int64", 0, 127), axis=0)
    yield one("gather_along_axis", "GatherElements", x, Random(ROWS, "int64", 0, 767), axis=1)
    yield one("gather_nd", "GatherND", Random((64, 56, 56)), rng.integers(0, 56, (1000, 2)))
    yield one("gather_nd", "GatherND", Random((64, 56, 56)), rng.integers(0, 56, (10000, 3)))
    for reduction in ("none", "add", "max"):
        yield one("scatter_along_axis", "ScatterElements", x, elements, Random(ROWS), axis=0, reduction=reduction)
        yield one("scatter_along_axis", "ScatterElements", x, elements, Random(ROWS), axis=1, reduction=reduction)
        spots = rng.integers(0, 128, (500, 1))
        yield one("scatter_nd", "ScatterND", x, spots, Random((500, 768)), reduction=reduction)
        yield one("scatter_nd", "ScatterND", x, rng.integers(0, 128, (10000, 2)), Random((10000,)), reduction=reduction)
    yield one("one_hot", "OneHot", ids, np.array([32000]), np.array([0, 1], np.float32))
    yield one("one_hot", "OneHot", Random((100, 100), "int64", 0, 99), np.array([100]), np.array([0, 1], np.float32), axis=1)  # fmt: skip
    yield one("topk", "TopK", Random((128, 1000)), integers(5), outputs=2)
    yield one("topk", "TopK", Random((1, 8400)), integers(300), outputs=2)
    yield one("argsort", "TopK", Random((16, 1000)), integers(1000), outputs=2)
    yield one("topk", "TopK", Random((64, 56, 56)), integers(3), axis=0, outputs=2)
    yield one("non_zero", "NonZero", Random((160, 160), "bool"))
    yield one("unique", "Unique", Random((10000,), "int64", 0, 999), outputs=4)
    boxes, scores = Random((1, 1000, 4), low=0.0), Random((1, 4, 1000), low=0.0)
    yield one(
        "non_max_suppression", "NonMaxSuppression", boxes, scores, integers(100), np.float32(0.5), np.float32(0.2)
    )


def without_form() -> list[Op]:
    """The ops without a case."""
    covered = {case.op for case in cases()}
    return [op for op in USER_OPS.values() if op.name not in covered]
