"""Writes a decoder of the Llama family as ONNX, with its cache as ports, for peers that run ONNX files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper, numpy_helper


class _Writer:
    """Collects nodes and constants. Each method returns the name of a value."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [f"{kind}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, name: str, array: Any) -> str:
        self.constants.setdefault(name, numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def ints(self, *numbers: int) -> str:
        return self.constant(f"ints {numbers}", np.array(numbers, np.int64))


def write(path: Path, config: Any, weights: Mapping[str, Any], room: int, *, fused: bool) -> None:
    """Writes the file. config: a `LlamaConfig` without biases, windows and caps, and with the embedding as head. weights:
    by the names of Hugging Face. room: the positions of the cache.

    The inputs are ids (1, n), past_key_0, past_value_0 and so on (1, kv_heads, past, head_dim). The outputs are logits
    (1, vocab) after the last id, and the presents. fused: attention is the op GroupQueryAttention of com.microsoft. It
    reads a cache of `room` positions and the inputs seqlens (1,) and total (1,) int32. Otherwise attention is written
    out: the cache has the length of the past, and there is an input position (n,).
    """
    w = _Writer()
    c, dim = config, config.head_dim
    angles = np.arange(room)[:, None] * c.theta ** (-np.arange(0, dim, 2) / dim)
    cos, sin = (w.constant(name, of(angles).astype(np.float32)) for name, of in (("cos", np.cos), ("sin", np.sin)))
    table = w.constant("embedding", weights["model.embed_tokens.weight"])
    x = w.op("Gather", table, "ids")
    if not fused:
        rows = [w.op("Unsqueeze", w.op("Gather", t, "position"), w.ints(0, 1)) for t in (cos, sin)]
        last = w.op("Gather", w.op("Shape", "past_key_0"), w.ints(2), axis=0)
        keys = w.op("Add", last, w.op("Gather", w.op("Shape", "ids"), w.ints(1), axis=0))
        zero, one = (w.constant(f"number {i}", np.array(i, np.int64)) for i in (0, 1))
        places = w.op("Range", zero, w.op("Squeeze", keys, w.ints(0)), one)
        seen = w.op("LessOrEqual", places, w.op("Unsqueeze", "position", w.ints(1)))
        hidden = w.constant("hidden", np.float32(-1e9))
        mask = w.op("Where", seen, w.constant("shown", np.float32(0)), hidden)

    def norm(x: str, name: str) -> str:
        mean = w.op("ReduceMean", w.op("Pow", x, w.constant("two", np.float32(2))), axes=[-1])
        root = w.op("Sqrt", w.op("Add", mean, w.constant("epsilon", np.float32(c.epsilon))))
        return str(w.op("Mul", w.op("Div", x, root), w.constant(name, weights[name])))

    def linear(x: str, name: str) -> str:
        return str(w.op("MatMul", x, w.constant(name, weights[name].T)))

    def heads(x: str, count: int) -> str:
        return str(w.op("Transpose", w.op("Reshape", x, w.ints(0, 0, count, dim)), perm=[0, 2, 1, 3]))

    def turned(x: str) -> str:
        first, second = w.op("Split", x, w.ints(dim // 2, dim // 2), outputs=2, axis=-1)
        one = w.op("Sub", w.op("Mul", first, rows[0]), w.op("Mul", second, rows[1]))
        two = w.op("Add", w.op("Mul", second, rows[0]), w.op("Mul", first, rows[1]))
        return str(w.op("Concat", one, two, axis=-1))

    def attention(i: int, q: str, k: str, v: str) -> str:
        past = [f"past_key_{i}", f"past_value_{i}"]
        if fused:
            y, *present = w.op(
                "GroupQueryAttention", q, k, v, *past, "seqlens", "total", cos, sin, outputs=3,
                domain="com.microsoft", num_heads=c.heads, kv_num_heads=c.kv_heads, do_rotary=1,
            )  # fmt: skip
        else:
            new = turned(heads(k, c.kv_heads)), heads(v, c.kv_heads)
            present = [w.op("Concat", old, rows, axis=2) for old, rows in zip(past, new, strict=True)]
            key, value = (w.op("Unsqueeze", one, w.ints(2)) for one in present)
            grouped = w.ints(1, c.kv_heads, c.heads // c.kv_heads, -1, dim)
            query = w.op("Reshape", turned(heads(q, c.heads)), grouped)
            scores = w.op("MatMul", query, w.op("Transpose", key, perm=[0, 1, 2, 4, 3]))
            scores = w.op("Mul", scores, w.constant("scale", np.float32(dim**-0.5)))
            mixed = w.op("MatMul", w.op("Softmax", w.op("Add", scores, mask), axis=-1), value)
            mixed = w.op("Reshape", mixed, w.ints(1, c.heads, -1, dim))
            y = w.op("Reshape", w.op("Transpose", mixed, perm=[0, 2, 1, 3]), w.ints(1, -1, c.heads * dim))
        for name, value in zip((f"present_key_{i}", f"present_value_{i}"), present, strict=True):
            w.nodes.append(helper.make_node("Identity", [value], [name]))
        return str(y)

    for i in range(c.layers):
        own = f"model.layers.{i}."
        y = norm(x, f"{own}input_layernorm.weight")
        q, k, v = (linear(y, f"{own}self_attn.{name}_proj.weight") for name in "qkv")
        x = w.op("Add", x, linear(attention(i, q, k, v), f"{own}self_attn.o_proj.weight"))
        y = norm(x, f"{own}post_attention_layernorm.weight")
        gate, up = (linear(y, f"{own}mlp.{name}_proj.weight") for name in ("gate", "up"))
        active = w.op("Mul", w.op("Mul", gate, w.op("Sigmoid", gate)), up)
        x = w.op("Add", x, linear(active, f"{own}mlp.down_proj.weight"))
    x = norm(w.op("Gather", x, w.constant("last", np.array(-1, np.int64)), axis=1), "model.norm.weight")
    w.nodes.append(helper.make_node("Gemm", [x, table], ["logits"], transB=1))

    def cache(kind: str, length: object) -> list[Any]:
        shape = [1, c.kv_heads, length, dim]
        return [
            helper.make_tensor_value_info(f"{kind}_{what}_{i}", T.FLOAT, shape)
            for i in range(c.layers)
            for what in ("key", "value")
        ]

    more = ["seqlens", "total"] if fused else []
    inputs = [helper.make_tensor_value_info("ids", T.INT64, [1, "n"]), *cache("past", room if fused else "past")]
    inputs += [helper.make_tensor_value_info(name, T.INT32, [1]) for name in more]
    if not fused:
        inputs.append(helper.make_tensor_value_info("position", T.INT64, ["n"]))
    outputs = [helper.make_tensor_value_info("logits", T.FLOAT, [1, c.vocab])]
    outputs += cache("present", room if fused else "all")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(w.nodes, "decoder", inputs, outputs, list(w.constants.values()))
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
