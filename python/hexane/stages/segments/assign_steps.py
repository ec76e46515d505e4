"""Assigns the steps of a chip's program to segments and to the engine's layers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hexane.graph import Graph, Port, Value, topological
from hexane.program import Program, Segment
from hexane.program.layers import Layer
from hexane.program.work import Work, multiply_adds, of_program, total
from hexane.targets import Target

Roots = Sequence[Sequence[Value]]  # by layer or segment: the values that it computes
_MARK = "%layer"


def with_layers(graph: Graph, layers: Roots, first: int) -> Graph:
    """Returns the graph with taps on the results of each layer, so that they can be found after the passes. Layers are
    numbered from `first` on."""
    marks = [Port(f"{_MARK}{i}", v) for i, values in enumerate(layers, first) for v in values]
    return graph.annotated(taps=(*graph.taps, *marks))


def found_layers(graph: Graph, count: int) -> tuple[Graph, list[list[Value]]]:
    """Returns the graph without the taps of `with_layers`, and the values that each of the `count` layers became.

    A tapped value that the graph no longer computes is replaced by the value that it was moved or cast from.
    """
    there = {id(node) for node in graph.nodes}
    layers: list[list[Value]] = [[] for _ in range(count)]
    taps = []
    for port in graph.taps:
        if not port.name.startswith(_MARK):
            taps.append(port)
            continue
        value: Value | None = port.value
        while value is not None and id(value.node) not in there:
            value = next((v for v in value.node.inputs if v is not None), None)
        if value is not None:
            layers[int(port.name.removeprefix(_MARK))].append(value)
    return graph.annotated(taps=tuple(taps)), layers


def assign_steps(program: Program, segments: Sequence[Segment], layers: Roots, roots: Roots, host: Target) -> Program:
    """Returns the program with the steps of each segment and layer. Steps outside the engine get the host's arithmetic.

    layers: the roots of each layer of the program. roots: the roots of each segment, which are computed after the roots
    of its layers.
    """
    items = in_order(program.layers, layers, roots)
    owner = _owners(items)
    ends = [0] * len(items)
    for i, step in enumerate(program.steps, 1):
        if id(step.node) in owner:
            ends[owner[id(step.node)]] = i
    for i in range(1, len(ends)):
        ends[i] = max(ends[i], ends[i - 1])
    steps = list(program.steps)
    placed, spans, begin, item = [], [], 0, 0
    counts = Counter(layer.segment for layer in program.layers)
    for segment in segments:
        first = begin
        for _ in range(counts[segment.index]):
            spans.append((begin, ends[item]))
            begin, item = ends[item], item + 1
        begin, item = ends[item], item + 1
        if segment.device == "host":
            steps[first:begin] = [replace(s, numerics=host.arithmetic) for s in steps[first:begin]]
        placed.append(replace(segment, steps=(first, begin)))
    steps[begin:] = [replace(s, numerics=host.arithmetic) for s in steps[begin:]]
    program = replace(program, steps=tuple(steps), segments=tuple(placed))
    numbered = (replace(layer, steps=span) for layer, span in zip(program.layers, spans, strict=True))
    program = replace(program, layers=tuple(replace(layer, work=_work(layer, program)) for layer in numbered))
    return replace(program, segments=tuple(replace(s, work=_segment_work(s, program)) for s in program.segments))


def _work(layer: Layer, program: Program) -> Work:
    if layer.engine == "DMA":
        return Work(0, layer.moved)
    first, end = layer.steps
    products = sum(2 * multiply_adds(step.node) for step in program.steps[first:end])
    written = sum(program.tensors[t].type.size for t in layer.makes)
    return Work(products or max(sum(layer.parts), written), layer.moved)


def _segment_work(segment: Segment, program: Program) -> Work:
    steps = program.steps[slice(*segment.steps)]
    if segment.device == "host":
        operations = sum(2 * multiply_adds(step.node) or sum(v.type.size for v in step.outputs) for step in steps)
        return Work(operations, sum(port.type.bytes for port in (*segment.inputs, *segment.outputs)))
    layers = total(layer.work for layer in program.layers if layer.segment == segment.index)
    return layers + total(of_program(step.node) for step in steps if step.kernel == "program")


def in_order(layers: Sequence[Layer], results: Roots, roots: Roots) -> list[Sequence[Value]]:
    """Returns roots in execution order: for each segment the roots of its layers, then its own."""
    inside: list[list[Sequence[Value]]] = [[] for _ in roots]
    for layer, values in zip(layers, results, strict=True):
        inside[layer.segment].append(values)
    return [group for own, last in zip(inside, roots, strict=True) for group in (*own, last)]


def _owners(items: Roots) -> dict[int, int]:
    """Returns, for the id of each node, the number of the first layer or segment that needs the node."""
    owner: dict[int, int] = {}
    pending = [(value, i) for i, group in enumerate(items) for value in group]
    at = 0
    for node in topological(value for value, _ in pending):
        while at < len(pending) and id(pending[at][0].node) in owner:
            at += 1
        owner[id(node)] = pending[at][1]
    return owner
