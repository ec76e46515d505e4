"""The transformers of `bf16.py` with seeded weights: `examples/encoder`, GPT-2 and ViT."""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "encoder"))
from make_model import Config, EncoderWriter, make_model  # needs the line above

IMAGE, PATCH, CLASSES = 224, 16, 1000
PATCHES = (IMAGE // PATCH) ** 2
BERT = Config(layers=12, dim=768, heads=12, hidden=3072)
GPT2 = Config(layers=12, dim=768, heads=12, hidden=3072, vocab=50257)
VIT = Config(layers=12, dim=384, heads=6, hidden=1536, tokens=PATCHES + 1)


class PreNormWriter(EncoderWriter):
    """Layers that normalise their input first, as in GPT-2 and ViT."""

    def attention(self, name: str, x: str) -> str:
        return super().attention(name, self.layer_norm(f"{name}.norm", x))

    def layer(self, name: str, x: str) -> str:
        dim, hidden = self.config.dim, self.config.hidden
        x = self.op("Add", f"{name}.attention.residual", self.attention(f"{name}.attention", x), x)
        inner = self.gelu(f"{name}.gelu", self.linear(f"{name}.up", self.layer_norm(f"{name}.norm", x), dim, hidden))
        return self.op("Add", f"{name}.residual", self.linear(f"{name}.down", inner, hidden, dim), x)

    def stack(self, x: str) -> str:
        c = self.config
        self.constant("one", 1)
        self.constant("half", 0.5)
        self.constant("sqrt2", 2**0.5)
        self.constant("sqrt_head_dim", (c.dim // c.heads) ** 0.5)
        self.constant("split_shape", [1, c.tokens, c.heads, c.dim // c.heads], np.int64)
        self.constant("hidden_shape", [1, c.tokens, c.dim], np.int64)
        for i in range(c.layers):
            x = self.layer(f"layer{i}", x)
        return self.layer_norm("norm", x)

    def written(self, port: onnx.ValueInfoProto, result: list[int]) -> onnx.ModelProto:
        weights = [numpy_helper.from_array(value, name) for name, value in self.weights.items()]
        end = helper.make_tensor_value_info("y", TensorProto.FLOAT, result)
        graph = helper.make_graph(self.nodes, "network", [port], [end], weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Gpt2Writer(PreNormWriter):
    """Causal attention; the embedding table also computes the logits of all tokens."""

    def op(self, op_type: str, name: str, *inputs: str, **attrs: object) -> str:
        if op_type == "Softmax":
            inputs = (super().op("Add", f"{name}.masked", *inputs, "mask"),)
        return super().op(op_type, name, *inputs, **attrs)

    def model(self) -> onnx.ModelProto:
        c = self.config
        self.constant("mask", np.triu(np.full((c.tokens, c.tokens), -1e9), 1))
        table = self.normal("tokens", c.vocab, c.dim, scale=0.02)
        places = self.normal("places", 1, c.tokens, c.dim, scale=0.01)
        words = self.op("Gather", "words", table, "token_ids", axis=0)
        x = self.stack(self.op("Add", "embedded", words, places))
        self.op("MatMul", "y", x, self.op("Transpose", "turned", table, perm=[1, 0]))
        port = helper.make_tensor_value_info("token_ids", TensorProto.INT64, [1, c.tokens])
        return self.written(port, [1, c.tokens, c.vocab])


class VitWriter(PreNormWriter):
    """Patches of 16 x 16 pixels, and a class token."""

    def model(self) -> onnx.ModelProto:
        c = self.config
        weight = self.normal("patches.weight", c.dim, 3, PATCH, PATCH, scale=(3 * PATCH**2) ** -0.5)
        bias = self.normal("patches.bias", c.dim, scale=0.1)
        parts = self.op("Conv", "patches", "image", weight, bias, strides=[PATCH, PATCH])
        flat = self.op("Reshape", "flat", parts, self.constant("flat_shape", [1, c.dim, PATCHES], np.int64))
        token = self.normal("token", 1, 1, c.dim, scale=0.5)
        joined = self.op("Concat", "joined", token, self.op("Transpose", "rows", flat, perm=[0, 2, 1]), axis=1)
        x = self.stack(self.op("Add", "placed", joined, self.normal("places", 1, c.tokens, c.dim, scale=0.5)))
        first = self.op("Gather", "first", x, self.constant("zero", 0, np.int64), axis=1)
        self.op("Identity", "y", self.linear("head", first, c.dim, CLASSES))
        port = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, IMAGE, IMAGE])
        return self.written(port, [1, CLASSES])


TRANSFORMERS = {
    "encoder": lambda: make_model(Config()),
    "bert": lambda: make_model(BERT),
    "gpt2": lambda: Gpt2Writer(GPT2).model(),
    "vit": lambda: VitWriter(VIT).model(),
}
