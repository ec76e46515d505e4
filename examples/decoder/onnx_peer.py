"""One step of the decoder as an ONNX graph, its cache passed in and out, for onnxruntime as the peer.

    token (1,), pos (1,), past_k, past_v (layers, heads, max_seq, head_dim)  ->  logits (1, vocab), k, v

`k` and `v` are the caches with row `pos` written; the graph reads only rows before `pos`, so a caller may bind
`k` to the buffer of `past_k` and `v` to that of `past_v`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from reference import Config, Weights


class PeerWriter:
    """Collects nodes and constants; a method adds one part of the step and returns the name of its result."""

    def __init__(self, config: Config, weights: Weights) -> None:
        self.config = config
        self.nodes: list[onnx.NodeProto] = []
        self.constants = dict(weights)

    def op(self, op_type: str, name: str, *inputs: str, **attrs: object) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [name], name, **attrs))
        return name

    def constant(self, name: str, value: object, dtype: type = np.int64) -> str:
        self.constants[name] = np.asarray(value, dtype)
        return name

    def linear(self, name: str, x: str) -> str:
        """x (1, in) times the weight (out, in) called `name`."""
        return self.op("Gemm", f"{name}.gemm", x, name, transB=1)

    def rms_norm(self, name: str, x: str) -> str:
        mean = self.op("ReduceMean", f"{name}.mean", self.op("Mul", f"{name}.square", x, x), axes=[1], keepdims=1)
        root = self.op("Sqrt", f"{name}.root", self.op("Add", f"{name}.add", mean, "rms_epsilon"))
        return self.op("Mul", f"{name}.scaled", self.op("Div", f"{name}.div", x, root), name)

    def rotary(self, name: str, x: str) -> str:
        """Turns the neighbouring pairs of x (1, dim) by the angles of this position: (1, heads, 1, head_dim)."""
        even, odd = f"{name}.even", f"{name}.odd"
        pairs = self.op("Reshape", f"{name}.pairs", x, "pairs_shape")
        self.nodes.append(helper.make_node("Split", [pairs], [even, odd], f"{name}.split", axis=3))
        first = self.op("Sub", f"{name}.first", *self.products(name, even, "cos", odd, "sin"))
        second = self.op("Add", f"{name}.second", *self.products(name, even, "sin", odd, "cos"))
        return self.op(
            "Reshape", f"{name}.turned", self.op("Concat", f"{name}.join", first, second, axis=3), "heads_shape"
        )

    def products(self, name: str, a: str, b: str, c: str, d: str) -> tuple[str, str]:
        return self.op("Mul", f"{name}.even_{b}", a, b), self.op("Mul", f"{name}.odd_{d}", c, d)

    def with_past(self, name: str, past: str, i: int, now: str) -> str:
        """The cached rows of layer i before this position, then this one: (1, heads, pos + 1, head_dim)."""
        end = self.op("Concat", f"{name}.end", self.constant(f"{name}.layer_end", [i + 1]), "pos", axis=0)
        start = self.constant(f"{name}.start", [i, 0])
        before = self.op("Slice", f"{name}.before", past, start, end, "layer_and_row")
        return self.op("Concat", f"{name}.all", before, now, axis=2)

    def attention(self, i: int, x: str) -> tuple[str, str, str]:
        """Result (1, dim), and the rows to cache: key and value (1, heads, 1, head_dim)."""
        at = f"layer{i}"
        query = self.rotary(f"{at}.query.rotary", self.linear(f"{at}.query", x))
        key = self.rotary(f"{at}.key.rotary", self.linear(f"{at}.key", x))
        value = self.op("Reshape", f"{at}.value.heads", self.linear(f"{at}.value", x), "heads_shape")
        keys, values = (
            self.with_past(f"{at}.keys", "past_k", i, key),
            self.with_past(f"{at}.values", "past_v", i, value),
        )
        turned = self.op("Transpose", f"{at}.keys.transposed", keys, perm=[0, 1, 3, 2])
        scores = self.op("Mul", f"{at}.scaled", self.op("MatMul", f"{at}.scores", query, turned), "score_scale")
        context = self.op("MatMul", f"{at}.context", self.op("Softmax", f"{at}.softmax", scores, axis=-1), values)
        return self.linear(f"{at}.output", self.op("Reshape", f"{at}.merged", context, "row_shape")), key, value

    def mlp(self, i: int, x: str) -> str:
        gate = self.linear(f"layer{i}.gate", x)
        silu = self.op("Mul", f"layer{i}.silu", gate, self.op("Sigmoid", f"layer{i}.sigmoid", gate))
        return self.linear(f"layer{i}.down", self.op("Mul", f"layer{i}.gated", silu, self.linear(f"layer{i}.up", x)))

    def write_cache(self, name: str, past: str, rows: list[str]) -> str:
        """The cache with this position's rows of all layers written at once."""
        return self.op("ScatterND", name, past, "cache_index", self.op("Concat", f"{name}.rows", *rows, axis=0))

    def tables(self) -> None:
        """Constants, and what depends on the position alone."""
        c = self.config
        self.constant("rms_epsilon", c.rms_epsilon, np.float32)
        self.constant("score_scale", c.head_dim**-0.5, np.float32)
        self.constant("pairs_shape", [1, c.heads, c.head_dim // 2, 2])
        self.constant("heads_shape", [1, c.heads, 1, c.head_dim])
        self.constant("row_shape", [1, c.dim])
        self.constant("layer_and_row", [0, 2])
        frequency = c.rotary_base ** (-np.arange(0, c.head_dim, 2) / c.head_dim)
        angle = (np.arange(c.max_seq)[:, None] * frequency)[..., None]
        self.op("Gather", "cos", self.constant("cos_table", np.cos(angle), np.float32), "pos", axis=0)
        self.op("Gather", "sin", self.constant("sin_table", np.sin(angle), np.float32), "pos", axis=0)
        layer_head = np.stack(np.meshgrid(np.arange(c.layers), np.arange(c.heads), indexing="ij"), axis=-1)
        self.constant("layer_head", layer_head[:, :, None])  # (layers, heads, 1, 2)
        rows = self.op("Expand", "cache_row", "pos", self.constant("index_shape", [c.layers, c.heads, 1, 1]))
        self.op("Concat", "cache_index", "layer_head", rows, axis=3)

    def model(self) -> onnx.ModelProto:
        c = self.config
        self.tables()
        x = self.op("Gather", "embedding.row", "embedding", "token", axis=0)
        key_rows, value_rows = [], []
        for i in range(c.layers):
            attended, key, value = self.attention(i, self.rms_norm(f"layer{i}.attention_norm", x))
            key_rows.append(key)
            value_rows.append(value)
            x = self.op("Add", f"layer{i}.attended", x, attended)
            x = self.op("Add", f"layer{i}.out", x, self.mlp(i, self.rms_norm(f"layer{i}.mlp_norm", x)))
        self.op("Gemm", "logits", self.rms_norm("norm", x), "embedding", transB=1)
        self.write_cache("k", "past_k", key_rows)
        self.write_cache("v", "past_v", value_rows)
        return self.finish()

    def finish(self) -> onnx.ModelProto:
        c = self.config
        cache = [c.layers, c.heads, c.max_seq, c.head_dim]
        integer, real, port = TensorProto.INT64, TensorProto.FLOAT, helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "decoder_step",
            [
                port("token", integer, [1]),
                port("pos", integer, [1]),
                port("past_k", real, cache),
                port("past_v", real, cache),
            ],
            [port("logits", real, [1, c.vocab]), port("k", real, cache), port("v", real, cache)],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def make_peer(config: Config, weights: Weights) -> onnx.ModelProto:
    return PeerWriter(config, weights).model()
