"""The layers of an encoder of images, or of texts in CLIP and SigLIP. Each layer normalises before attention and before
the MLP."""

from collections.abc import Callable, Mapping
from typing import Protocol

from hexane import build as hx
from hexane.build import Tensor
from hexane.graph import Array
from hexane.graph.origins import source_scope
from hexane.importers.weights import as_tensor


def _quick_gelu(x: Tensor) -> Tensor:
    return x * hx.sigmoid(x * 1.702)


ACTIVATION: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": hx.silu,
    "gelu": hx.gelu,
    "gelu_tanh": hx.gelu_tanh,
    "quick_gelu": _quick_gelu,
    "relu": hx.relu,
    "tanh": hx.tanh,
}


class Sizes(Protocol):
    """Numbers of channels, layers and attention heads, the epsilon of norms, and the activation of MLPs."""

    @property
    def dim(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def epsilon(self) -> float: ...
    @property
    def activation(self) -> str: ...


class Layers:
    """Layers on (batch, tokens, dim), with weights by this package's names."""

    def __init__(self, sizes: Sizes, weights: Mapping[str, Array | Tensor], batch: int) -> None:
        self.sizes, self.batch = sizes, batch
        self.weights = {name: as_tensor(one) for name, one in weights.items()}

    def linear(self, name: str, x: Tensor) -> Tensor:
        with source_scope(name):
            return hx.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def norm(self, name: str, x: Tensor) -> Tensor:
        with source_scope(name):
            gamma, beta = (self.weights[f"{name}.{part}"] for part in ("weight", "bias"))
            return hx.layer_norm(x, gamma, beta, epsilon=self.sizes.epsilon)

    def layers(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Applies all layers. hidden: a mask that is added to the attention scores."""
        for i in range(self.sizes.layers):
            name = f"layer.{i}"
            with source_scope(name):
                y = self.norm(f"{name}.before", x)
                x = x + self.attention(name, y, y, hidden)
                x = x + self.mlp(name, self.norm(f"{name}.after", x))
        return x

    def attention(self, name: str, queries: Tensor, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        c = self.sizes

        def heads(part: str, y: Tensor) -> Tensor:
            y = self.linear(f"{name}.{part}", y)
            return hx.transpose(hx.reshape(y, shape=(self.batch, y.shape[1], c.heads, -1)), perm=(0, 2, 1, 3))

        y = hx.scaled_dot_product_attention(heads("query", queries), heads("key", x), heads("value", x), hidden)
        y = hx.reshape(hx.transpose(y, perm=(0, 2, 1, 3)), shape=(self.batch, queries.shape[1], c.dim))
        return self.linear(f"{name}.out", y)

    def mlp(self, name: str, x: Tensor) -> Tensor:
        y = ACTIVATION[self.sizes.activation](self.linear(f"{name}.up", x))
        return self.linear(f"{name}.down", y)
