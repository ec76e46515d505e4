"""Writes a BERT-shaped transformer encoder with seeded weights as an ONNX file: token ids in, hidden states out.

The default is the shape of MiniLM-L6. The weights are not trained: the model serves to compile, compare and time.
"""

import argparse
import dataclasses
import math
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    layers: int = 6
    dim: int = 384
    heads: int = 12
    hidden: int = 1536
    tokens: int = 128
    vocab: int = 30522
    seed: int = 0


class EncoderWriter:
    """Collects nodes and weights; a method adds one part of the network and returns the name of its result."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.rng = np.random.default_rng(config.seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}

    def op(self, op_type: str, name: str, *inputs: str, **attrs: object) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [name], name, **attrs))
        return name

    def constant(self, name: str, value: object, dtype: type = np.float32) -> str:
        self.weights[name] = np.asarray(value, dtype)
        return name

    def normal(self, name: str, *shape: int, scale: float) -> str:
        return self.constant(name, self.rng.standard_normal(shape, np.float32) * np.float32(scale))

    def linear(self, name: str, x: str, rows: int, columns: int) -> str:
        weight = self.normal(f"{name}.weight", rows, columns, scale=rows**-0.5)
        bias = self.normal(f"{name}.bias", columns, scale=0.1)
        return self.op("Add", name, self.op("MatMul", f"{name}.matmul", x, weight), bias)

    def layer_norm(self, name: str, x: str) -> str:
        scale = self.constant(f"{name}.scale", self.rng.uniform(0.8, 1.2, self.config.dim))
        bias = self.normal(f"{name}.bias", self.config.dim, scale=0.1)
        return self.op("LayerNormalization", name, x, scale, bias, axis=-1, epsilon=1e-12)

    def gelu(self, name: str, x: str) -> str:
        """0.5 x (1 + erf(x / sqrt 2)), spelt out as exporters do."""
        erf = self.op("Erf", f"{name}.erf", self.op("Div", f"{name}.div", x, "sqrt2"))
        return self.op("Mul", name, self.op("Mul", f"{name}.mul", x, self.op("Add", f"{name}.add", erf, "one")), "half")

    def to_heads(self, name: str, x: str, perm: list[int]) -> str:
        return self.op("Transpose", f"{name}.heads", self.op("Reshape", f"{name}.split", x, "split_shape"), perm=perm)

    def attention(self, name: str, x: str) -> str:
        dim = self.config.dim
        query = self.to_heads(f"{name}.query", self.linear(f"{name}.query", x, dim, dim), [0, 2, 1, 3])
        key = self.to_heads(f"{name}.key", self.linear(f"{name}.key", x, dim, dim), [0, 2, 3, 1])
        value = self.to_heads(f"{name}.value", self.linear(f"{name}.value", x, dim, dim), [0, 2, 1, 3])
        scores = self.op("Div", f"{name}.scaled", self.op("MatMul", f"{name}.scores", query, key), "sqrt_head_dim")
        weights = self.op("Softmax", f"{name}.softmax", scores, axis=-1)
        context = self.op(
            "Transpose", f"{name}.merge", self.op("MatMul", f"{name}.context", weights, value), perm=[0, 2, 1, 3]
        )
        return self.linear(f"{name}.output", self.op("Reshape", f"{name}.merged", context, "hidden_shape"), dim, dim)

    def layer(self, name: str, x: str) -> str:
        dim, hidden = self.config.dim, self.config.hidden
        attended = self.op("Add", f"{name}.attention.residual", self.attention(f"{name}.attention", x), x)
        x = self.layer_norm(f"{name}.attention.norm", attended)
        inner = self.gelu(f"{name}.gelu", self.linear(f"{name}.up", x, dim, hidden))
        return self.layer_norm(
            f"{name}.norm", self.op("Add", f"{name}.residual", self.linear(f"{name}.down", inner, hidden, dim), x)
        )

    def embeddings(self) -> str:
        c = self.config
        table = self.normal("embeddings.tokens", c.vocab, c.dim, scale=1.0)
        positions = self.normal("embeddings.positions", 1, c.tokens, c.dim, scale=0.5)
        words = self.op("Gather", "embeddings.gather", table, "token_ids", axis=0)
        return self.layer_norm("embeddings.norm", self.op("Add", "embeddings.add", words, positions))

    def model(self) -> onnx.ModelProto:
        c = self.config
        head_dim = c.dim // c.heads
        self.constant("one", 1)
        self.constant("half", 0.5)
        self.constant("sqrt2", math.sqrt(2))
        self.constant("sqrt_head_dim", math.sqrt(head_dim))
        self.constant("split_shape", [1, c.tokens, c.heads, head_dim], np.int64)
        self.constant("hidden_shape", [1, c.tokens, c.dim], np.int64)
        x = self.embeddings()
        for i in range(c.layers):
            x = self.layer(f"layer{i}", x)
        self.op("Identity", "hidden_states", x)
        graph = helper.make_graph(
            self.nodes,
            "encoder",
            [helper.make_tensor_value_info("token_ids", TensorProto.INT64, [1, c.tokens])],
            [helper.make_tensor_value_info("hidden_states", TensorProto.FLOAT, [1, c.tokens, c.dim])],
            [numpy_helper.from_array(value, name) for name, value in self.weights.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        return model


def make_model(config: Config) -> onnx.ModelProto:
    if config.dim % config.heads:
        raise ValueError(f"[encoder] heads: got {config.heads}, need a divisor of dim {config.dim}")
    return EncoderWriter(config).model()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the ONNX file to write")
    for field in dataclasses.fields(Config):
        parser.add_argument(f"--{field.name}", type=int, default=field.default, help="default %(default)s")
    options = vars(parser.parse_args())
    out = options.pop("out")
    onnx.save(make_model(Config(**options)), out)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
