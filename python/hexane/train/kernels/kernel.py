"""The engine's programs in a training step, each as a separate graph."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hexane import build as hx
from hexane.build import Tensor
from hexane.errors import Error
from hexane.graph import Array, Graph, Node, Value
from hexane.graph.decisions import Decision
from hexane.graph.origins import source_scope
from hexane.passes.simplify.fold import fold
from hexane.targets import load_target
from hexane.train.kernels.branches import PRODUCTS
from hexane.train.kernels.channels_first import Place, Placed, Unfit, Writer, default_place, shaped
from hexane.train.kernels.groups import HEAD, VARIANTS, Group, Variant, find_groups, weights_of
from hexane.train.kernels.left_out import left_out

INPUT, OUTPUT = "x", "y"


class Tap(NamedTuple):
    """A value of the step in the input or output of a program. channels: how many channels of the input or output it
    has; they follow the previous tap's channels. place: the shape of these channels as a tensor, and the permutation
    from the tensor's axes to the value's."""

    name: str
    channels: int
    value: Value
    place: Place

    def pack(self, array: Array) -> Array:
        """Returns a value's array in the program's layout: (batch, channels, 1, tokens)."""
        axes = [self.place.order.index(i) for i in range(len(self.place.order))]
        return array.transpose(axes).reshape(self.place.shape[0], self.channels, 1, self.place.shape[-1])

    def unpack(self, array: Array) -> Array:
        """Returns a value's array from the program's layout, (batch, channels, 1, tokens)."""
        return array.reshape(self.place.shape).transpose(self.place.order)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One program of the engine. kind: fwdAttn, fwdFFN, ffnBwd, sdpaBwd1, sdpaBwd2, qkvBwd, or bwd and a number; with
    "ane-head" also finalNorm, classifier, softmax, normBwdAttn and normBwdFFN; with "linear" a suffix of the weight's
    name, or classifier. layer: from 0 on, -1: the head; graph: from the input "x" to the output "y", both (batch,
    channels, 1, tokens), in the model's dtype; inputs, outputs: the values in these channels; weights: the names of the
    params and states that the program reads (their contents are constants of the graph unless baked=False)."""

    kind: str
    layer: int
    graph: Graph
    inputs: tuple[Tap, ...]
    outputs: tuple[Tap, ...]
    weights: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{_place(self.layer)}.{self.kind}"


def _place(layer: int) -> str:
    return "head" if layer == HEAD else f"layer{layer}"


def kernels(
    step: Graph, weights: Mapping[str, Array] | None = None, *, baked: bool = True, variant: Variant = "cpu-head"
) -> tuple[Kernel, ...]:
    """Returns the engine's programs in a training step (`hx.train.step`, or any graph with gradients and the output
    "loss"), in execution order: the branches of a residual network in the forward and the backward pass. The host
    computes residual adds, embedding, head, loss, gradients of norms and weights, updates.

    weights: contents of the params by name; other params keep their initial values. With baked=False programs read the
    params, which are states of the step, and multiply by them with matmul in place of conv. With variant="ane-head" the
    last norm, the classifier, its softmax, and the gradients of norms for their inputs are programs too. With "linear"
    the programs are the products of forward branches with a trained weight, each named after its weight, and the
    classifier. A branch whose values are not (batch, tokens, channels) becomes no program. Raises Error for a graph
    without the output "loss", for an unknown variant, and with baked=True for weights of another shape.
    """
    return find_kernels(step, weights, baked=baked, variant=variant)[0]


def find_kernels(
    step: Graph, weights: Mapping[str, Array] | None = None, *, baked: bool = True, variant: Variant = "cpu-head"
) -> tuple[tuple[Kernel, ...], tuple[Decision, ...]]:
    """Returns the programs of `kernels`, and one decision per weight product that is in no program, with the reason."""
    if variant not in VARIANTS:
        raise Error(f"[train.kernels] variant: got {variant!r}, need one of {', '.join(map(repr, VARIANTS))}")
    arrays = _arrays(step, weights or {}) if baked else None
    held: set[int] = set()
    refused: dict[int, str] = {}
    places: dict[Value, Place] = {}
    result = []
    users = step.users()
    batch = tokens = 0
    for group in find_groups(step, variant):
        begin = group.inputs[0].shape
        if (group.kind.startswith("fwd") or variant == "linear") and len(begin) == 3:
            batch, tokens = begin[:2]
        try:
            result.append(_kernel(group, batch, tokens, arrays, places, users))
            held |= {id(node) for node in group.nodes}
        except Unfit as why:
            refused |= {id(node): str(why) for node in group.nodes}
    return tuple(result), tuple(left_out(step, variant, held, refused))


def _kernel(
    group: Group,
    batch: int,
    tokens: int,
    arrays: Mapping[str, Array] | None,
    places: dict[Value, Place],
    users: Mapping[Value, Sequence[Node]],
) -> Kernel:
    with source_scope(f"{_place(group.layer)}.{group.kind}"):
        return _written(group, Writer(arrays), batch, tokens, places, users)


def _written(
    group: Group,
    writer: Writer,
    batch: int,
    tokens: int,
    places: dict[Value, Place],
    users: Mapping[Value, Sequence[Node]],
) -> Kernel:
    inputs = [Tap(_name(v, users), 0, v, places.get(v) or default_place(v.shape, tokens)) for v in group.inputs]
    inputs = [tap._replace(channels=_count(tap.value, batch, tokens)) for tap in inputs]
    if len({tap.value.dtype for tap in inputs}) != 1:
        raise Unfit("got values of several dtypes")
    packed = hx.input(INPUT, (batch, sum(tap.channels for tap in inputs), 1, tokens), inputs[0].value.dtype.name)
    start = 0
    for tap in inputs:
        part = _channels(packed, start, start + tap.channels) if len(inputs) > 1 else packed
        writer.placed[tap.value] = Placed(shaped(part, tap.place.shape), tap.place.order)
        start += tap.channels
    for node in group.nodes:
        writer.write(node)
    placed = [_tokens_last(writer.placed[v], tokens) for v in group.outputs]
    outputs = [
        Tap(_name(v, users), _count(v, batch, tokens), v, Place(tuple(p.tensor.shape), p.order))
        for v, p in zip(group.outputs, placed, strict=True)
    ]
    parts = [shaped(p.tensor, (batch, tap.channels, 1, tokens)) for p, tap in zip(placed, outputs, strict=True)]
    result = hx.concat(*parts, axis=1) if len(parts) > 1 else parts[0]
    graph = fold(hx.graph({OUTPUT: result}, name=f"{_place(group.layer)}.{group.kind}"), load_target("host"))
    places |= {tap.value: tap.place for tap in outputs}
    weights = tuple(str(node.attrs["name"]) for node in _baked(group.nodes))
    return Kernel(group.kind, group.layer, graph, tuple(inputs), tuple(outputs), weights)


def _count(value: Value, batch: int, tokens: int) -> int:
    """Returns the number of channels of a value."""
    channels, rest = divmod(value.type.size, max(batch * tokens, 1))
    if rest or value.shape[:1] != (batch,):
        raise Unfit(f"got a value of shape {value.shape}, need {batch} rows of {tokens} tokens")
    return channels


def _channels(x: Tensor, start: int, stop: int) -> Tensor:
    return x[:, start:stop]


def _tokens_last(placed: Placed, tokens: int) -> Placed:
    if placed.tensor.shape[-1] == tokens and len(placed.order) > 2:
        return placed
    place = default_place(placed.shape, tokens)
    return Placed(hx.transpose(placed.plain(), perm=place.order), place.order)


def _baked(nodes: Sequence[Node]) -> list[Node]:
    """Returns the params and states that a program reads."""
    leaves = (v.node for node in nodes for v in node.inputs if v is not None and v.node.op in ("param", "state"))
    return list(dict.fromkeys((*leaves, *weights_of(nodes))))


def _name(value: Value, users: Mapping[Value, Sequence[Node]]) -> str:
    """Names a value after a weight: the weight of the product that computes the value, or of the product from which it
    is computed; for a gradient, the weight of the product that reads it."""
    if own := weights_of([value.node]):
        return _layer(own[0])
    node = value.node
    while node.op not in PRODUCTS and node.inputs and node.inputs[0] is not None:
        node = node.inputs[0].node
    if node.op == "linear" and (of := weights_of([node])) and value.node.op != "add":
        return f"{_layer(of[0])}.{value.node.op}"
    for reader in users.get(value, ()):
        if reader.op == "matmul" and (of := weights_of([reader])):
            return f"{_layer(of[0])}.gradient"
    return value.node.op


def _layer(weight: Node) -> str:
    return str(weight.attrs["name"]).removesuffix(".weight")


def _arrays(step: Graph, given: Mapping[str, Any]) -> dict[str, Array]:
    by_name = {str(n.attrs["name"]): n for n in step.nodes if n.op in ("param", "state")}
    for name, array in given.items():
        if name in by_name and tuple(array.shape) != by_name[name].values[0].shape:
            raise Error(f"[train.kernels] {name}: got shape {array.shape}, need {by_name[name].values[0].shape}")
    held = {name: node.data for name, node in by_name.items() if node.data is not None}
    return {**held, **{name: array for name, array in given.items() if name in by_name}}
