"""Patterns: expressions that a pass searches for.

op("mul", "x", op("sigmoid", "x")) is x * sigmoid(x), in either order. A name matches any value, and the same one at
each occurrence. A number matches a constant of one element; `p | q` matches either.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hexane.graph import AttrValue, Graph, Node, Value
from hexane.ops import OPS, apply
from hexane.ops.predicates import scalar

Inputs = tuple[Value | None, ...]
Bound = Mapping[str, Value]  # the values bound to the names of a pattern


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """A pattern of values. ops: the value's op is one of these; None: any op. alone: the value has one reader. fits: a
    further condition on the value and the bound names. parts: patterns of the inputs; none: any inputs. swaps: the
    inputs' order is free. options: alternatives, one of which must match."""

    ops: frozenset[str] | None = None
    name: str = ""
    alone: bool = False
    fits: "Callable[[Value, Bound], bool] | None" = None
    parts: "tuple[Pattern, ...]" = ()
    swaps: bool = False
    options: "tuple[Pattern, ...]" = ()
    needs: frozenset[str] = field(init=False, repr=False)  # ops that a graph must contain to have a match

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs", self._needs())

    def __or__(self, other: "Pattern") -> "Pattern":
        options = (self.options or (self,)) + (other.options or (other,))
        ops = [option.ops for option in options if option.ops is not None]
        return Pattern(frozenset().union(*ops) if len(ops) == len(options) else None, options=options)

    def _needs(self) -> frozenset[str]:
        if self.options:
            return frozenset.intersection(*[option.needs for option in self.options])
        own = self.ops if self.ops is not None and len(self.ops) == 1 else frozenset[str]()
        return own.union(*[part.needs for part in self.parts])

    def match(self, graph: Graph, value: Value, bound: Bound) -> list[Bound]:
        """Returns all bindings of the pattern's names with which the pattern matches this value."""
        if self.options:
            name = value.node.op
            return [m for p in self.options if p.ops is None or name in p.ops for m in p.match(graph, value, bound)]
        if (self.alone and graph.use_counts()[value] != 1) or bound.get(self.name, value) != value:
            return []
        if self.fits is not None and not self.fits(value, bound):
            return []
        bound = {**bound, self.name: value} if self.name else bound
        if not self.parts:
            return [bound]
        inputs = value.node.inputs
        matches = self._operands(graph, inputs, value, bound)
        return matches + self._operands(graph, inputs[::-1], value, bound) if self.swaps else matches

    def _operands(self, graph: Graph, inputs: Inputs, value: Value, bound: Bound) -> list[Bound]:
        """Returns all bindings of names with which the parts match exactly these inputs. If a part is a number, the
        other operands must have the result's shape."""
        has_number = any(part.ops is _NUMBER for part in self.parts)
        for part, operand in zip(self.parts, inputs, strict=False):
            if operand is None or (part.ops is not None and operand.node.op not in part.ops):
                return []
            if has_number and part.ops is not _NUMBER and operand.shape != value.shape:
                return []
        result = [] if any(inputs[len(self.parts) :]) else [bound]
        for part, operand in zip(self.parts, inputs, strict=False):
            result = [m for each in result for m in part.match(graph, operand, each)] if operand is not None else []
        return result


_NUMBER = frozenset(("const",))


def op(op: str, *inputs: Pattern | str | float, name: str = "", alone: bool = False) -> Pattern:
    """Returns a pattern of the op's result for these inputs, in any order if the op is commutative. A pattern without
    inputs matches any inputs."""
    return Pattern(frozenset((op,)), name, alone, parts=tuple(map(_pattern, inputs)), swaps=OPS[op].commutative)


def _pattern(part: Pattern | str | float) -> Pattern:
    if isinstance(part, Pattern):
        return part
    return Pattern(name=part) if isinstance(part, str) else number(lambda known: known == part)


def number(fits: Callable[[float], bool], name: str = "") -> Pattern:
    """Returns a pattern of a constant of one element for which `fits` is true."""
    return Pattern(_NUMBER, name, fits=lambda value, _: (known := scalar(value)) is not None and fits(known))


def about(wanted: float) -> Pattern:
    """Returns a pattern of a constant that agrees with `wanted` to 6 digits."""
    return number(lambda known: math.isclose(known, wanted, rel_tol=1e-6))


@dataclass(frozen=True, slots=True)
class Found:
    """A match in the graph before the rewrite. found["x"] is the rewritten value of x."""

    graph: Graph
    node: Node
    bound: Bound
    became: Mapping[Value, Value]

    def __getitem__(self, name: str) -> Value:
        value = self.bound[name]
        return self.became.get(value, value)

    def now(self, value: Value | None) -> Value | None:
        return None if value is None else self.became.get(value, value)

    def make(self, op: str, inputs: Sequence[Value | None], **attrs: AttrValue) -> tuple[Value, ...]:
        """Applies an op with the match's sources, and returns its values."""
        return apply(OPS[op], inputs, attrs, self.node.sources)

    @property
    def inputs(self) -> tuple[Value | None, ...]:
        return tuple(map(self.now, self.node.inputs))

    def absorb(self, maker: Node, place: int, value: Value, shape: tuple[int, ...]) -> tuple[Value, ...]:
        """Returns the values of `maker` after `value`, reshaped to `shape`, has replaced its input `place`. The new
        node has the sources of both nodes."""
        if value.shape != shape:
            (value,) = apply(OPS["reshape"], [value], {"shape": shape}, value.node.sources)
        operands = [value if i == place else v for i, v in enumerate(maker.inputs)]
        return apply(OPS[maker.op], operands, maker.attrs, joined_sources(maker, self.node))

    def alone(self, value: Value | None, *ops: str) -> Node | None:
        """Returns the node of the value, if its op is one of `ops` and the value has one reader."""
        node = made_by(value, *ops)
        return node if node is not None and self.graph.use_counts()[node.values[0]] == 1 else None


def rewrite(graph: Graph, pattern: Pattern, build: Callable[[Found], Sequence[Value] | None]) -> Graph:
    """Returns the graph with each match replaced by the values that `build` returns for it. A match stays if `build`
    returns None or values of another type. The pattern is matched in the given graph, not in the rewritten one."""
    assert pattern.ops is not None
    if not pattern.needs <= graph.ops:
        return graph
    became: dict[Value, Value] = {}

    def change(node: Node, _: tuple[Value | None, ...]) -> Sequence[Value] | None:
        for bound in pattern.match(graph, node.values[0], {}):
            values = build(Found(graph, node, bound, became))
            if values is not None and values[0].type == node.types[0]:
                return values
        return None

    return graph.rewrite(change, pattern.ops, became)


def made_by(value: Value | None, *ops: str) -> Node | None:
    """Returns the node of the value if its op is one of `ops`, else None."""
    return value.node if value is not None and value.node.op in ops else None


def joined_sources(first: Node, second: Node) -> tuple[str, ...]:
    """Returns the sources (places in the user's model) of a node that replaces two."""
    return (*first.sources, *(s for s in second.sources if s not in first.sources))
