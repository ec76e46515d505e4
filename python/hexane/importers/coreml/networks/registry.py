"""The registry of Core ML's neural-network layers, by their names in Apple's `NeuralNetwork.proto`.

Image layers work on the last three axes (channels, height, width). All axes before the channels are the batch. Up to
specification 3 every tensor has five axes: sequence, batch, channels, height, width. The importer drops a sequence axis
of extent 1 until a layer needs five axes, so an image network has four axes.
"""

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

from hexane.errors import Error
from hexane.graph import Array, Value
from hexane.importers.coreml import ops as _ops
from hexane.importers.coreml.networks.weights import decoded
from hexane.importers.coreml.registry import HANDLERS, Context
from hexane.mil.arguments import parameters
from hexane.mil.forms import READ
from hexane.ops.compose import Builder

assert _ops is not None  # registers MIL's ops


class LayerContext(NamedTuple):
    """The context of a layer. b: applies ops. is_exact: tensors have the axes of the description, not five."""

    b: Builder
    is_exact: bool

    def mil(self, op: str, /, **given: Any) -> Value:
        """Applies an op of ML programs that has one result. Omitted arguments have their default values."""
        handler = HANDLERS.get(op)
        known = handler.parameters if handler is not None else parameters()[op]
        arguments = {p.name: given.pop(p.name, p.default) for p in known}
        assert not given, given
        if handler is None:
            result = READ[op](self.b, **arguments)
        else:
            result = handler.read(Context(self.b, 18, None), None, **arguments)  # type: ignore[arg-type]  # no blocks here
        assert isinstance(result, Value)
        return result

    def weight(self, weights: Any, *shape: int, what: str = "weights", axis: int = 0) -> Array:
        return decoded(weights, shape, what, axis)

    def five(self, x: Value) -> Value:
        """Returns x with five axes (sequence, batch, channels, height, width)."""
        if len(x.shape) == 5:
            return x
        if len(x.shape) == 4 and not self.is_exact:
            return self.b.reshape(x, shape=(1, *x.shape))
        raise Error(f"got x of {len(x.shape)} axes, need 5: sequence, batch, channels, height, width")

    def least(self, x: Value) -> Value:
        """Drops a sequence axis of extent 1 from five axes, unless tensors have the axes of the description."""
        return (
            self.b.reshape(x, shape=x.shape[1:]) if not self.is_exact and len(x.shape) == 5 and x.shape[0] == 1 else x
        )

    def images(self, x: Value, layer: Callable[[Value], Value]) -> Value:
        """Applies a layer of (N, C, H, W) to x (.., C, H, W)."""
        if len(x.shape) < 3:
            raise Error(f"got x of {len(x.shape)} axes, need channels, height and width at least")
        lead = x.shape[:-3]
        if len(lead) == 1:
            return layer(x)
        y = layer(self.b.reshape(x, shape=(prod(lead), *x.shape[-3:])))
        return self.b.reshape(y, shape=(*lead, *y.shape[1:]))


Read = Callable[..., Any]  # arguments: the context, the layer's parameters, the layer's inputs
LAYERS: dict[str, Read] = {}


def reads(*kinds: str) -> Callable[[Read], Read]:
    def register(read: Read) -> Read:
        for kind in kinds:
            assert kind not in LAYERS, kind
            LAYERS[kind] = read
        return read

    return register
