"""Seeded transformers as torch's exporter spells them (opset 17, or 13 where layer norms are written out), and files that
onnxruntime's optimisers make of a model."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

TOKENS, WIDTH, HEADS, WORDS = 8, 32, 4, 50
Feeds = dict[str, Any]


@dataclass
class Blocks:
    """Writes nodes; values are their names."""

    seed: int
    opset: int = 17
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: list[onnx.TensorProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def constant(self, array: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def weight(self, *shape: int, scale: float | None = None) -> str:
        return self.constant(self.rng.standard_normal(shape) * (shape[0] ** -0.5 if scale is None else scale))

    def __call__(self, op: str, *inputs: str, **attrs: Any) -> str:
        return self.several(op, 1, *inputs, **attrs)[0]

    def several(self, op: str, count: int, *inputs: str, **attrs: Any) -> list[str]:
        index = len(self.nodes)
        names = [f"n{index}" if count == 1 else f"n{index}_{i}" for i in range(count)]
        self.nodes.append(helper.make_node(op, inputs, names, f"/{op}_{index}", **attrs))
        return names

    def linear(self, x: str, rows: int, columns: int, bias: bool = True) -> str:
        out = self("MatMul", x, self.weight(rows, columns))
        return self("Add", self.weight(columns, scale=0.1), out) if bias else out

    def scale_and_shift(self) -> tuple[str, str]:
        return self.constant(1 + 0.1 * self.rng.standard_normal(WIDTH)), self.weight(WIDTH, scale=0.1)

    def layer_norm(self, x: str) -> str:
        gamma, beta = self.scale_and_shift()
        if self.opset >= 17:
            return self("LayerNormalization", x, gamma, beta, axis=-1, epsilon=1e-5)
        centred = self("Sub", x, self("ReduceMean", x, axes=[-1]))
        variance = self("ReduceMean", self("Pow", centred, self.constant(2.0)), axes=[-1])
        deviation = self("Sqrt", self("Add", variance, self.constant(1e-5)))
        return self("Add", self("Mul", self("Div", centred, deviation), gamma), beta)

    def rms_norm(self, x: str) -> str:
        squares = self("ReduceMean", self("Pow", x, self.constant(2.0)), axes=[-1], keepdims=1)
        root = self("Sqrt", self("Add", squares, self.constant(1e-6)))
        scaled = self("Mul", x, self("Div", self.constant(1.0), root))
        return self("Mul", self.scale_and_shift()[0], scaled)

    def gelu(self, x: str) -> str:
        erf = self("Erf", self("Div", x, self.constant(2**0.5)))
        return self("Mul", self("Mul", x, self("Add", erf, self.constant(1.0))), self.constant(0.5))

    def gelu_tanh(self, x: str) -> str:
        inner = self("Add", x, self("Mul", self("Pow", x, self.constant(3.0)), self.constant(0.044715)))
        bent = self("Tanh", self("Mul", inner, self.constant((2 / np.pi) ** 0.5)))
        return self("Mul", self("Mul", x, self.constant(0.5)), self("Add", bent, self.constant(1.0)))

    def quick_gelu(self, x: str) -> str:
        return self("Mul", x, self("Sigmoid", self("Mul", x, self.constant(1.702))))

    def silu(self, x: str) -> str:
        return self("Mul", x, self("Sigmoid", x))

    def by_head(self, x: str, perm: tuple[int, ...] = (0, 2, 1, 3)) -> str:
        shape = self.constant([0, 0, HEADS, WIDTH // HEADS], np.int64)
        return self("Transpose", self("Reshape", x, shape), perm=perm)

    def merged(self, x: str) -> str:
        return self("Reshape", self("Transpose", x, perm=(0, 2, 1, 3)), self.constant([0, 0, WIDTH], np.int64))

    def attention(self, x: str, mask: str | None = None, bias: bool = True) -> str:
        query, key, value = (self.linear(x, WIDTH, WIDTH, bias) for _ in range(3))
        keys = self.by_head(key, (0, 2, 3, 1))
        scores = self("Div", self("MatMul", self.by_head(query), keys), self.constant((WIDTH // HEADS) ** 0.5))
        if mask is not None:
            scores = self("Add", scores, mask)
        mixed = self("MatMul", self("Softmax", scores, axis=-1), self.by_head(value))
        return self.linear(self.merged(mixed), WIDTH, WIDTH, bias)

    def mlp(self, x: str, active: Callable[[str], str]) -> str:
        return self.linear(active(self.linear(x, WIDTH, 4 * WIDTH)), 4 * WIDTH, WIDTH)

    def model(self, feeds: Feeds, *outputs: str) -> onnx.ModelProto:
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in feeds.items()
        ]
        results = [helper.make_tensor_value_info(name, 1, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "torch", infos, results, self.tensors)
        opsets = [helper.make_opsetid("", self.opset)]
        return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opsets, ir_version=8))


def tokens(seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, WORDS, (2, TOKENS))


def bert(opset: int = 17, embeddings: bool = True) -> tuple[onnx.ModelProto, Feeds]:
    b = Blocks(1, opset)
    feeds: Feeds = {"input_ids": tokens(), "attention_mask": np.ones((2, TOKENS), np.int64),
                    "token_type_ids": np.zeros((2, TOKENS), np.int64)}  # fmt: skip
    feeds["attention_mask"][0, 5:] = 0
    x = b("Add", b("Gather", b.weight(WORDS, WIDTH), "input_ids"), b("Gather", b.weight(2, WIDTH), "token_type_ids"))
    x = b.layer_norm(b("Add", x, b("Gather", b.weight(64, WIDTH), b.constant(np.arange(TOKENS)[None], np.int64))))
    wide = b("Unsqueeze", b("Unsqueeze", "attention_mask", b.constant([1], np.int64)), b.constant([2], np.int64))
    mask = b("Mul", b("Sub", b.constant(1.0), b("Cast", wide, to=1)), b.constant(-10000.0))
    for _ in range(2):
        x = b.layer_norm(b("Add", b.attention(x, mask), x))
        x = b.layer_norm(b("Add", b.mlp(x, b.gelu), x))
    return b.model(feeds, x), feeds


def gpt2(opset: int = 17) -> tuple[onnx.ModelProto, Feeds]:
    """With the keys and values of three earlier tokens, as ports."""
    b, size, past = Blocks(2, opset), WIDTH // HEADS, 3
    rng = np.random.default_rng(0)
    feeds: Feeds = {"input_ids": tokens()}
    feeds |= {f"past_{k}_{i}": rng.standard_normal((2, HEADS, past, size), np.float32) for i in range(2) for k in "kv"}
    x = b("Add", b("Gather", b.weight(WORDS, WIDTH), "input_ids"), b.weight(1, TOKENS, WIDTH, scale=0.3))
    hidden = b.constant(np.triu(np.full((TOKENS, TOKENS + past), -10000.0), past + 1)[None, None])
    outputs = []
    for i in range(2):
        qkv = b.linear(b.layer_norm(x), WIDTH, 3 * WIDTH)
        query, key, value = map(b.by_head, b.several("Split", 3, qkv, b.constant([WIDTH] * 3, np.int64), axis=2))
        key = b("Concat", f"past_k_{i}", key, axis=2)
        value = b("Concat", f"past_v_{i}", value, axis=2)
        outputs += [key, value]
        scores = b("Div", b("MatMul", query, b("Transpose", key, perm=(0, 1, 3, 2))), b.constant(size**0.5))
        mixed = b("MatMul", b("Softmax", b("Add", scores, hidden), axis=-1), value)
        x = b("Add", x, b.linear(b.merged(mixed), WIDTH, WIDTH))
        x = b("Add", x, b.mlp(b.layer_norm(x), b.gelu_tanh))
    return b.model(feeds, b("MatMul", b.layer_norm(x), b.weight(WIDTH, WORDS)), *outputs), feeds


def vit(opset: int = 17) -> tuple[onnx.ModelProto, Feeds]:
    """Pixels of 0 to 255, patches of 8 by 8, quick gelu as CLIP has it."""
    b = Blocks(3, opset)
    feeds = {"pixels": np.random.default_rng(0).integers(0, 256, (1, 3, 24, 24)).astype(np.float32)}
    x = b("Div", b("Sub", "pixels", b.constant(127.5)), b.constant(58.0))
    weight = b.constant(b.rng.standard_normal((WIDTH, 3, 8, 8)) * 0.07)
    x = b("Conv", x, weight, b.weight(WIDTH, scale=0.1), kernel_shape=[8, 8], strides=[8, 8])
    x = b("Transpose", b("Reshape", x, b.constant([1, WIDTH, 9], np.int64)), perm=(0, 2, 1))
    x = b("Add", b("Concat", b.weight(1, 1, WIDTH), x, axis=1), b.weight(1, 10, WIDTH, scale=0.2))
    for _ in range(2):
        x = b("Add", b.attention(b.layer_norm(x)), x)
        x = b("Add", b.mlp(b.layer_norm(x), b.quick_gelu), x)
    first = b("Gather", b.layer_norm(x), b.constant(0, np.int64), axis=1)
    return b.model(feeds, b("Gemm", first, b.weight(10, WIDTH), b.weight(10), transB=1)), feeds


def llama(opset: int = 17) -> tuple[onnx.ModelProto, Feeds]:
    """RMS norms, rotary embeddings by halves, a causal mask, and a gated MLP."""
    b, size = Blocks(4, opset), WIDTH // HEADS
    feeds: Feeds = {"input_ids": tokens(), "position_ids": np.tile(np.arange(TOKENS), (2, 1))}
    angles = np.arange(64)[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size)
    tables = [f(np.concatenate([angles, angles], 1)).astype(np.float32) for f in (np.cos, np.sin)]
    at = [b("Unsqueeze", b("Gather", b.constant(t), "position_ids"), b.constant([1], np.int64)) for t in tables]
    hidden = b.constant(np.triu(np.full((TOKENS, TOKENS), np.finfo(np.float32).min), 1)[None, None])
    x = b("Gather", b.weight(WORDS, WIDTH), "input_ids")

    def rotated(v: str) -> str:
        low, high = (
            b("Slice", v, *(b.constant([e], np.int64) for e in (start, stop, 3, 1)))
            for start, stop in ((0, size // 2), (size // 2, 2**62))
        )
        turned = b("Concat", b("Neg", high), low, axis=-1)
        return b("Add", b("Mul", v, at[0]), b("Mul", turned, at[1]))

    for _ in range(2):
        y = b.rms_norm(x)
        query, key, value = (b.by_head(b.linear(y, WIDTH, WIDTH, bias=False)) for _ in range(3))
        scores = b("MatMul", rotated(query), b("Transpose", rotated(key), perm=(0, 1, 3, 2)))
        scores = b("Add", b("Div", scores, b.constant(size**0.5)), hidden)
        mixed = b.merged(b("MatMul", b("Softmax", scores, axis=-1), value))
        x = b("Add", x, b.linear(mixed, WIDTH, WIDTH, bias=False))
        y = b.rms_norm(x)
        gated = b("Mul", b.silu(b.linear(y, WIDTH, 64, bias=False)), b.linear(y, WIDTH, 64, bias=False))
        x = b("Add", x, b.linear(gated, 64, WIDTH, bias=False))
    return b.model(feeds, b("MatMul", b.rms_norm(x), b.weight(WIDTH, WORDS))), feeds


def convolutions(opset: int = 17) -> tuple[onnx.ModelProto, Feeds]:
    """Residual blocks, one depthwise, batch norms, every pool, and a branch that is upsampled and joined."""
    b = Blocks(5, opset)
    feeds = {"pixels": np.random.default_rng(0).integers(0, 256, (1, 3, 24, 24)).astype(np.float32)}

    def conv(x: str, rows: int, columns: int, size: int = 3, stride: int = 1, group: int = 1) -> str:
        weight = b.constant(
            b.rng.standard_normal((columns, rows // group, size, size)) * (rows // group * size**2) ** -0.5
        )
        out = b("Conv", x, weight, b.weight(columns, scale=0.1), kernel_shape=[size] * 2, strides=[stride] * 2,
                pads=[size // 2] * 4, group=group)  # fmt: skip
        spread = (
            b.constant(b.rng.uniform(0.5, 1.5, columns)),
            b.weight(columns, scale=0.1),
            b.weight(columns, scale=0.1),
        )
        return b("BatchNormalization", out, *spread, b.constant(b.rng.uniform(0.5, 1.5, columns)))

    x = b("Relu", conv(b("Div", "pixels", b.constant(64.0)), 3, 16, stride=2))
    x = b("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    y = conv(b("Relu", conv(x, 16, 16)), 16, 16)
    x = b("Relu", b("Add", y, x))
    y = b("Clip", conv(x, 16, 48, 1), b.constant(0.0), b.constant(6.0))
    y = b("Clip", conv(y, 48, 48, group=48), b.constant(0.0), b.constant(6.0))
    x = b("Add", conv(y, 48, 16, 1), x)
    y = b("AveragePool", b("LeakyRelu", conv(x, 16, 24), alpha=0.1), kernel_shape=[2, 2], strides=[2, 2])
    up = b("Resize", y, "", b.constant([1, 1, 2, 2]), mode="nearest", nearest_mode="floor",
           coordinate_transformation_mode="asymmetric")  # fmt: skip
    x = b("Sigmoid", conv(b("Concat", up, x, axis=1), 40, 10))
    return b.model(feeds, b("Flatten", b("GlobalAveragePool", x)), x), feeds


NETWORKS: dict[str, Callable[[], tuple[onnx.ModelProto, Feeds]]] = {
    "bert": bert,
    "bert13": lambda: bert(13),
    "gpt2": gpt2,
    "gpt2_13": lambda: gpt2(13),
    "vit": vit,
    "vit13": lambda: vit(13),
    "llama": llama,
    "convolutions": convolutions,
}

LEVELS = {
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def optimised(proto: onnx.ModelProto, level: str) -> onnx.ModelProto:
    """The file that onnxruntime writes after the optimisations of a level for its CPU kernels."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = LEVELS[level]
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "optimised.onnx")
        onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


def by_transformers(proto: onnx.ModelProto, kind: str, level: int | None = None, **options: Any) -> onnx.ModelProto:
    """The output of onnxruntime's transformers.optimizer for a kind of model."""
    from onnxruntime.transformers import fusion_options, optimizer

    chosen = fusion_options.FusionOptions(kind)
    for name, value in options.items():
        setattr(chosen, name, value)
    own = onnx.ModelProto()  # the optimiser edits what it is given
    own.CopyFrom(proto)
    found = optimizer.optimize_model(
        own, kind, HEADS, WIDTH, optimization_options=chosen, opt_level=level, verbose=False
    )  # fmt: skip
    made: onnx.ModelProto = found.model
    return made
