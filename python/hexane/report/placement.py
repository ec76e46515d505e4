"""Reasons why the operating system may not place an eligible program on the engine: limits of size, with sources."""

from collections.abc import Sequence

from hexane.graph import Node
from hexane.graph.decisions import counted
from hexane.graph.printer import size_text
from hexane.program import Segment
from hexane.stages.segments.program_size import program_bytes, weights_of
from hexane.targets.placement import placement

LEAST_OPS = 100  # smaller networks are mere examples; the network in placement.toml has 217 ops


def doubts(segments: Sequence[Segment]) -> tuple[str, ...]:
    """Returns sentences that begin with "eligible, but". Float weights count as fp16, integer weights as stored."""
    facts, result = placement(), []
    said = f"{facts.facts['most_program_bytes'].source}, {facts.facts['most_program_bytes'].status}"
    engine = [segment for segment in segments if segment.device == "ane"]
    large = [(s.index, size) for s in engine if (size := program_bytes(s.nodes)) > facts.most_program_bytes]
    for index, size in large:
        before = " (before that too)" if size > facts.most_program_bytes_before else ""
        result.append(
            f"eligible, but segment {index} has {size_text(size)} of weights: since {facts.limit_since}{before} a"
            f" program above {size_text(facts.most_program_bytes)} runs on the CPU, without an error ({said}):"
            " compress the weights"
        )
    count, ops = sum(_parameters(s.nodes) for s in engine), sum(len(s.nodes) for s in engine)
    if ops >= LEAST_OPS and count <= facts.least_parameters_seen:
        result.append(
            f"eligible, but the network has only {count:,} parameters: of a network with"
            f" {facts.least_parameters_seen:,} parameters and {counted(facts.eligible_ops_of_it, 'eligible op')}, a"
            f" system placed {facts.placed_ops_of_it} ops on the engine ({said}): look at the placement on a device"
        )
    return tuple(result)


def _parameters(nodes: Sequence[Node]) -> int:
    return sum(node.types[0].size for node in weights_of(nodes).values())
