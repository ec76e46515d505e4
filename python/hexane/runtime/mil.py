"""Writes a model as MIL programs or netplists, one for each segment on the engine."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hexane.emit.mil import STAGE, Mil, budget, emit_mil
from hexane.emit.mil.ports import with_port_axes
from hexane.emit.mil.refusals import InFiles
from hexane.emit.netplist import emit_netplist
from hexane.errors import Error, UnsupportedError
from hexane.graph import Graph, Value, unique
from hexane.graph.names import free_name
from hexane.lowering.mil_ops import with_weights
from hexane.netplist import Netplist
from hexane.ops.encodings import encoding_of, is_encoded
from hexane.pipeline import divide, engine_form
from hexane.program import Segment
from hexane.stages.segments.devices import Programs
from hexane.stages.segments.join import SegmentParts
from hexane.targets import Chip


@dataclass(frozen=True, slots=True)
class Piece:
    """A segment, and its program if it is on the engine. inputs, outputs: the values of the divided graph for the
    program's ports, in order."""

    segment: Segment
    mil: Mil | None
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


def emit_pieces(graph: Graph, chip: Chip) -> tuple[Graph, tuple[Piece, ...]]:
    """Returns the graph in the chip's form with its decisions, and its pieces in execution order.

    Ports have the model's names; ports between pieces are named value_N. Raises Error if no op is on the engine, for
    states, and for ops that MIL cannot express.
    """
    if state := next((node for node in graph.nodes if node.op in ("state", "write_state")), None):
        raise Error(f"[emit] {state.where}: got a state, which programs in files cannot keep, need inputs and outputs")
    graph, segments, named = named_pieces(with_weights(graph), chip)
    pieces = []
    for segment, (piece, given, produced) in zip(segments, named, strict=True):
        if segment.device == "ane":
            mil = emit_mil(with_port_axes(piece, chip.extents.rank), chip)
            operands = [given[port.user_name] for port in mil.inputs]
            results = [produced[port.user_name] for port in mil.outputs]
            pieces.append(Piece(segment, mil, tuple(operands), tuple(results)))
        else:
            pieces.append(Piece(segment, None, tuple(given.values()), tuple(produced.values())))
    programs = [piece.mil for piece in pieces if piece.mil is not None]
    said = [d for mil in programs for d in mil.graph.decisions if d.stage == STAGE]
    return graph.decided(*said, *budget(graph.name, len(programs))), tuple(pieces)


Named = tuple[Graph, dict[str, Value], dict[str, Value]]  # a segment's graph, its inputs and its outputs by name


def named_pieces(
    graph: Graph, chip: Chip, programs: Programs | None = None
) -> tuple[Graph, tuple[Segment, ...], list[Named]]:
    """The graph in the chip's form, its segments, and the graph of each with named ports. programs: the limits of the
    engine's programs. Raises Error if the engine has nothing to compute."""
    graph, segments = divide(graph, chip, programs=programs)
    if all(segment.device != "ane" for segment in segments):
        raise UnsupportedError(
            f"[emit] {chip.label}: got a network of which no op runs on the engine: `hexane check` says why"
        )
    parts = SegmentParts(graph, segments)
    names = _names(graph, segments)
    pieces = []
    for segment, piece in zip(segments, parts.graphs(), strict=True):
        given, results = ({names[v]: v for v in values} for values in (parts.operands(segment), parts.results(segment)))
        pieces.append((_renamed(piece, list(given), list(results)), given, results))
    return graph, segments, pieces


def emit_netplists(graph: Graph, chip: Chip) -> tuple[Graph, tuple[Segment, ...], tuple[Netplist | None, ...]]:
    """Returns the graph in the chip's form, its segments, and a netplist for each segment on the engine, with ports
    named as in `emit_pieces`. Encoded weights are decoded. Raises Error if no op is on the engine, for states,
    and for ops without a known unit."""
    if state := next((node for node in graph.nodes if node.op in ("state", "write_state")), None):
        raise Error(f"[emit] {state.where}: got a state, which programs in files cannot keep, need inputs and outputs")
    graph, segments, named = named_pieces(_with_whole_weights(graph), chip, InFiles())
    netplists = [
        emit_netplist(engine_form(piece, chip), chip, f"segment_{segment.index}") if segment.device == "ane" else None
        for segment, (piece, _, _) in zip(segments, named, strict=True)
    ]
    return graph, segments, tuple(netplists)


def _with_whole_weights(graph: Graph) -> Graph:
    """dequantize(const, const)  ->  const: no known unit of a netplist decodes constants."""
    return graph.rewrite(lambda node, inputs: (encoding_of(node.values[0]).decode(),) if is_encoded(node) else None)


def _names(graph: Graph, segments: tuple[Segment, ...]) -> Mapping[Value, str]:
    """Returns the unique names of ports: the model's, or value_N."""
    names = {port.value: port.name for port in reversed(graph.outputs)}
    names |= {v: str(v.node.attrs["name"]) for v in graph.inputs}
    taken = set(names.values())
    for port in (port for s in segments for port in (*s.inputs, *s.outputs)):
        if port.value not in names:
            names[port.value] = free_name(f"value_{port.name.lstrip('%')}", taken)
            taken.add(names[port.value])
    return names


def _renamed(graph: Graph, inputs: list[str], outputs: list[str]) -> Graph:
    table = {
        v: unique("input", name, v.type, sources=v.node.sources) for v, name in zip(graph.inputs, inputs, strict=True)
    }
    graph = graph.rewrite(lambda node, operands: None, became=table)
    return replace(graph, outputs=tuple(p._replace(name=n) for p, n in zip(graph.outputs, outputs, strict=True)))
