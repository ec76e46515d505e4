"""Reshapes ports to the numbers of axes that programs support."""

from dataclasses import replace
from math import prod

from hexane.graph import Graph, TensorType, Value, unique
from hexane.ops import OPS, apply


def with_port_axes(graph: Graph, most: int) -> Graph:
    """graph (%x: fp16[]) .. return y=%1 : fp16[2, 3, 4, 5, 6]  ->  graph (%x: fp16[1]) .. return y=reshape(%1) : fp16[6, 4, 5, 6]

    Ports have 1 to `most` axes. The first axes of ports with longer shapes are merged.
    """  # noqa: E501
    ports = {v: _renewed(v, most) for v in graph.inputs if not 1 <= len(v.shape) <= most}
    if not ports and all(1 <= len(p.value.shape) <= most for p in graph.outputs):
        return graph
    inside = {v: reshaped(port, v.shape) for v, port in ports.items()}
    changed = graph.rewrite(lambda *_: None, became=dict(inside))
    given = (p._replace(value=inside.get(p.value, p.value)) for p in changed.outputs)
    outputs = [p._replace(value=reshaped(p.value, _axes(p.value.shape, most))) for p in given]
    inputs = tuple(ports.get(v, v) for v in graph.inputs)
    return replace(changed, inputs=inputs, outputs=tuple(outputs), taps=())


def reshaped(value: Value, shape: tuple[int, ...]) -> Value:
    """Returns the value reshaped, or the value itself if it has the shape."""
    return value if value.shape == shape else apply(OPS["reshape"], [value], {"shape": shape}, value.node.sources)[0]


def _axes(shape: tuple[int, ...], most: int) -> tuple[int, ...]:
    return shape or (1,) if len(shape) <= most else (prod(shape[: 1 - most]), *shape[1 - most :])


def _renewed(value: Value, most: int) -> Value:
    kind = TensorType(value.dtype, _axes(value.shape, most))
    return unique("input", str(value.node.attrs["name"]), kind, sources=value.node.sources)
