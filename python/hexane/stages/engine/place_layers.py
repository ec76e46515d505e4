"""Places the tensors of a segment's layers on chip: allocation types, offsets, spills. Finds the layers that could run
at the same time."""

import itertools
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

from hexane import _core
from hexane.graph import Node
from hexane.graph.decisions import Decision, counted
from hexane.ops import OPS
from hexane.passes.engine.chain import slots_of
from hexane.program import Program
from hexane.program.layers import Layer
from hexane.program.partitions import Allocation, Partition, Stay, Tensor
from hexane.stages.engine.layer_problem import ENGINES, LayerProblem, rows
from hexane.stages.engine.pack_weights import pack_weights
from hexane.stages.engine.schedule_layers import LayerSchedule
from hexane.targets import Chip

ALLOCATIONS: tuple[Allocation, ...] = get_args(Allocation)
CHAINED, STREAMED = 2, (1, 8)
BREAKS = (
    "", "no layer on chip makes it, or none reads it", "the chip is not known to chain", "its producer has more than one reader, or its result is stored too",  # noqa: E501
    "the two run on engines of different classes", "the two run on different engines", "their tiles differ", "another layer runs between them",  # noqa: E501
    "the reader's first tile needs more rows than are made",
)  # fmt: skip
VERDICTS = (
    "could run together", "one of them is not scheduled", "both are of one class of engine, or one is a transfer",
    "they were given to different engines", "one waits for the other", "an input is chained", "both outputs go to main memory",  # noqa: E501
    "other layers run between them, or a partition ends", "one of them is in a pair already",
)  # fmt: skip
# Why a layer is not issued together with the next one, in the order of VERDICTS; a layer of a pair has no entry.
_ALONE = (
    "", "one of the two is not scheduled", "both need the same kind of engine, or one of the two is a transfer",
    "the two were given to different engines", "the next layer waits for this one", "one of them has a chained input",
    "the outputs of both go to main memory", "a partition ends between the two", "",
)  # fmt: skip
_TYPES, _PAIRS = "guide ch22, table 22.2", "guide ch22, decoded; not seen on silicon (M6 study)"


@dataclass(frozen=True, slots=True)
class PlacedLayers:
    """Layers, tensors and partitions of one or several segments, with consecutive numbers over all segments."""

    layers: tuple[Layer, ...] = ()
    tensors: tuple[Tensor, ...] = ()
    partitions: tuple[Partition, ...] = ()
    decisions: tuple[Decision, ...] = ()

    def joined(self, following: "PlacedLayers") -> "PlacedLayers":
        return PlacedLayers(
            (*self.layers, *following.layers),
            (*self.tensors, *following.tensors),
            (*self.partitions, *following.partitions),
            (*self.decisions, *following.decisions),
        )

    def into(self, program: Program) -> Program:
        """Returns the program with these layers, tensors, partitions and decisions."""
        return replace(
            program,
            layers=self.layers,
            tensors=self.tensors,
            partitions=self.partitions,
            decisions=(*program.decisions, *self.decisions),
        )


def place_layers(schedule: LayerSchedule, chip: Chip, segment: int, before: PlacedLayers) -> PlacedLayers:
    """Returns a segment's layers placed on chip. before: the layers of earlier segments, after which the numbers start.
    With HEXANE_VERIFY=1 independent code checks each result."""
    placer = _Placer(schedule, chip, segment, (len(before.layers), len(before.tensors), len(before.partitions)))
    placer.choose_types()
    placer.find_pairs()
    placer.place()
    return placer.records()


class _Placer:
    """Until `records`, layers and tensors have the problem's numbers: a layer's number is the step in which it runs."""

    def __init__(self, schedule: LayerSchedule, chip: Chip, segment: int, first: tuple[int, int, int]) -> None:
        self.schedule, self.chip, self.segment, self.first = schedule, chip, segment, first
        self.problem: LayerProblem = schedule.problem
        self.checks = os.environ.get("HEXANE_VERIFY") == "1"
        self.decisions: list[Decision] = []
        spans = schedule.partitions[:, :2].tolist()
        self.partition = [i for i, (begin, end) in enumerate(spans) for _ in range(begin, end)]
        self.engines = self.problem.engines()
        self.windows = list(map(_window, self.problem.layers))
        self.weights = [pack_weights(node, chip) for node in self.problem.layers]
        self.touches = [self.problem.touches(t) for t in range(len(self.problem.values))]
        self.stored = [self._is_stored(t) for t in range(len(self.problem.values))]

    def _is_stored(self, tensor: int) -> bool:
        """True if a layer stores the tensor in main memory, because it outlives the segment or a later partition reads
        it."""
        p, touches = self.problem, self.touches[tensor]
        crosses = bool(touches) and self.partition[touches[0]] != self.partition[touches[-1]]
        return p.producers[tensor] >= 0 and (p.kept[tensor] or crosses)

    def choose_types(self) -> None:
        p, chaining = self.problem, bool(self.chip.gates.chaining)
        places = rows([(ENGINES.index(e), 0, i, self.partition[i]) for i, e in enumerate(self.engines)], 4)
        tensors = rows([self._operand(t) for t in range(len(p.values))], 12)
        reads = rows([(t, layer) for t, readers in enumerate(p.readers) for layer in readers], 2)
        types, breaks = _core.allocation_types(places, tensors, reads, chaining)
        if self.checks:
            _core.check_allocation_types(places, tensors, reads, types, chaining)
        self.types, self.breaks = types.tolist(), breaks.tolist()

    def _operand(self, tensor: int) -> tuple[int, ...]:
        """Returns the operand of the allocator for a tensor. A tile is a block of rows. The number of blocks is one
        more than how often the tensor fills on-chip memory, as seen on M6. The producer runs two tiles ahead of the
        reader. The reader's first tile also needs the overlap of its kernel."""
        p = self.problem
        shape = (1, 1, 1, *p.values[tensor].shape)[-3:]
        blocks = p.footprints[tensor].bytes // self.chip.memory.working_set + 1
        tile = -(-shape[1] // blocks)
        extents = (shape[2], tile, shape[0])
        ahead, needed = min(2 * tile, shape[1]), min(tile + self._window(p.readers[tensor]) - 1, shape[1])
        return (p.producers[tensor], int(p.kept[tensor]), 0, p.rewrites[tensor], *extents, *extents, ahead, needed)

    def _window(self, layers: Sequence[int]) -> int:
        """Returns the most rows that one of these layers needs at once."""
        return max([self.windows[layer] for layer in layers], default=1)

    def find_pairs(self) -> None:
        p = self.problem
        issues = [
            (
                ENGINES.index(engine),
                0,
                i,
                self.partition[i],
                int(any(self.types[t] == CHAINED for t in p.reads[i])),
                int(any(self.types[t] in STREAMED for t in p.makes[i])),
                int(self.weights[i] is not None),
            )
            for i, engine in enumerate(self.engines)
        ]
        scheduling = p.scheduling(traffic=False)
        partners, verdicts = scheduling.pairs(rows(issues, 7))
        if self.checks:
            scheduling.check_pairs(rows(issues, 7), partners)
        self.partners, self.verdicts = partners.tolist(), verdicts.tolist()

    # ---- offsets ----

    def place(self) -> None:
        count = len(self.problem.layers)
        self.stays: list[list[Stay]] = [[] for _ in self.problem.values]
        self.heights: list[int] = []
        self.loads, self.stores = [0] * count, [0] * count
        inside: list[dict[int, list[int]]] = [{} for _ in self.schedule.partitions]
        for tensor, touches in enumerate(self.touches):
            for layer in touches:
                inside[self.partition[layer]].setdefault(tensor, []).append(layer)
        for number, touched in enumerate(inside):
            self._place(number, touched)

    def _place(self, number: int, touched: dict[int, list[int]]) -> None:
        p, memory = self.problem, self.chip.memory
        together = Counter(layer for layers in touched.values() for layer in layers)
        tensors, steps = [], []
        for i, (tensor, layers) in enumerate(touched.items()):
            size = p.footprints[tensor].bytes
            share = memory.working_set // max([together[layer] for layer in layers]) & -memory.dma_granule
            tile = min(size, share, self._tile(tensor, layers))
            tensors.append((size, tile, int(layers[0] == p.producers[tensor]), int(self.stored[tensor]), 0))
            steps += [(i, layer) for layer in layers]
        problem = (rows(tensors, 5), rows(steps, 2), memory.working_set, memory.dma_granule)
        placed = _core.working_set(*problem)
        if self.checks:
            _core.check_working_set(*problem, *placed)
        spilled, offsets, height, _ = placed
        self.heights.append(height)
        for (tensor, layers), row, out, at in zip(touched.items(), tensors, spilled, offsets, strict=True):
            self._stay(number, tensor, layers, row, out, tuple(at))

    def _tile(self, tensor: int, layers: Sequence[int]) -> int:
        """Returns the bytes of the image rows that a reader's kernel spans, in all channels."""
        shape, size = self.problem.values[tensor].shape, self.problem.footprints[tensor].bytes
        height = max(shape[-2], 1) if len(shape) > 2 else 1
        return -(-size // height) * min(self._window(layers), height)

    def _stay(
        self, number: int, tensor: int, layers: list[int], row: tuple[int, ...], spilled: bool, offsets: tuple[int, ...]
    ) -> None:
        size, tile, is_computed, stored, _ = row
        again = layers[1:] if spilled else []
        extra = bool(spilled and is_computed and not stored)
        for layer in again if is_computed else layers[: 1 + len(again)]:
            self.loads[layer] += size
        if (is_computed and stored) or extra:
            self.stores[layers[0]] += size
        cost = size * (len(again) + extra)
        taken = tile if spilled else size
        partition, steps = self.first[2] + number, tuple([self.first[0] + layer for layer in layers])
        self.stays[tensor].append(Stay(partition, steps[0], steps[-1], taken, steps, offsets, spilled, cost))
        if spilled:
            words = (
                f"{size} bytes do not fit partition {partition}: a tile of {taken} in {counted(len(steps), 'layer')},"
                f" {cost} bytes of traffic more"
            )
            self.decisions.append(Decision("allocate", self._name(tensor), "spilled", words))

    def _name(self, tensor: int) -> str:
        producer = self.problem.producers[tensor]
        return self.problem.values[tensor].node.where if producer < 0 else self.problem.names[producer]

    # ---- records ----

    def records(self) -> PlacedLayers:
        layers = tuple([self._layer(i) for i in range(len(self.problem.layers))])
        tensors = tuple([self._tensor(t) for t in range(len(self.problem.values))])
        partitions = tuple([self._partition(i, layers) for i in range(len(self.heights))])
        self._decide(layers, tensors)
        return PlacedLayers(layers, tensors, partitions, (*self.schedule.decisions, *self.decisions))

    def _layer(self, layer: int) -> Layer:
        p, (layer0, tensor0, partition0) = self.problem, self.first
        node, partner = p.layers[layer], self.partners[layer]
        written = [p.footprints[t].bytes for t in p.makes[layer]] if node.op == "write_state" else []
        return Layer(
            index=layer0 + layer,
            name=p.names[layer],
            op=node.op,
            kind=OPS[node.op].layer or node.op.rpartition(".")[2],
            slots=tuple([str(s) for s in slots_of(node)]),
            engine=self.engines[layer],
            segment=self.segment,
            partition=partition0 + self.partition[layer],
            rule=self.schedule.rules[layer],
            reads=tuple([tensor0 + t for t in p.reads[layer]]),
            parts=tuple(p.parts[layer]),
            makes=tuple([tensor0 + t for t in p.makes[layer]]),
            weights=self.weights[layer],
            partner=None if partner < 0 else layer0 + partner,
            co_issue=VERDICTS[self.verdicts[layer]],
            loaded=self.loads[layer],
            stored=self.stores[layer] + sum(written),
        )

    def _tensor(self, t: int) -> Tensor:
        p, (layer0, tensor0, _) = self.problem, self.first
        value, size, producer = p.values[t], p.footprints[t], p.producers[t]
        return Tensor(
            index=tensor0 + t,
            name=self._name(t),
            type=value.type,
            segment=self.segment,
            producer=None if producer < 0 else layer0 + producer,
            readers=tuple([layer0 + layer for layer in p.readers[t]]),
            kept=p.kept[t],
            row_bytes=size.row_bytes,
            rows=size.rows,
            stride=size.stride,
            conflicts=size.conflicts,
            bytes=size.bytes,
            main_bytes=size.main_bytes,
            allocation=ALLOCATIONS[self.types[t]],
            not_chained=BREAKS[self.breaks[t]],
            stays=tuple(self.stays[t]),
        )

    def _partition(self, number: int, layers: Sequence[Layer]) -> Partition:
        layer0, _, partition0 = self.first
        begin, end, peak, loaded, stored = self.schedule.partitions[number].tolist()
        mine = layers[begin:end]
        return Partition(
            index=partition0 + number,
            segment=self.segment,
            first=layer0 + begin,
            end=layer0 + end,
            peak=peak,
            limit=self.schedule.limit,
            height=self.heights[number],
            capacity=self.chip.memory.working_set,
            loaded=loaded,
            stored=stored,
            spilled=sum([layer.loaded + layer.stored for layer in mine]) - loaded - stored,
            weights=sum([layer.weights.bytes for layer in mine if layer.weights is not None]),
        )

    def _decide(self, layers: Sequence[Layer], tensors: Sequence[Tensor]) -> None:
        decisions = self.decisions
        for t in tensors:
            at = ", ".join([f"{_places(s)} in partition {s.partition}" for s in t.stays]) or "never on chip"
            chain = f"; not chained: {t.not_chained}" if t.not_chained else ""
            clash = f"bank conflicts turn 1 access into {t.conflicts}" if t.conflicts > 1 else "no bank conflicts"
            words = f"{t.bytes} bytes: {t.rows} rows {t.stride} bytes apart, {clash}; {at}{chain}"
            decisions.append(Decision("allocate", t.name, t.allocation, words, _TYPES))
        names = {layer.index: layer.name for layer in layers}
        for layer, following in itertools.pairwise(layers):
            if layer.partner is None:
                why = _ALONE[VERDICTS.index(layer.co_issue)]
                verdict, words = "alone", f"not started together with the next layer, {following.name}: {why}"
            else:
                verdict, words = "pair", f"it and {names[layer.partner]} {VERDICTS[0]}"
            decisions.append(Decision("co_issue", layer.name, verdict, words, _PAIRS))
        for layer, node in zip(layers, self.problem.layers, strict=True):
            if layer.op == "anec.concat" and node.attrs["axis"] == node.types[0].rank - 1:
                decisions.append(self._concatenated(layer, node))
            if w := layer.weights:
                pruned = ", without the zeros" if w.encoding == "sparse" else ""
                words = (
                    f"{w.bytes} bytes of weights of {w.bits} bits{pruned}; "
                    f"{counted(w.groups, 'group')} of {counted(w.group, 'output channel')}, "
                    f"{counted(w.engines, 'engine')} in {counted(w.passes, 'pass')}, {w.packed_bytes} bytes packed"
                )
                decisions.append(Decision("pack", layer.name, "packed", words, "M6 study"))

    def _concatenated(self, layer: Layer, node: Node) -> Decision:
        """Returns the decision for a concatenation along the width: an operand is written directly into the result if
        its rows begin and end at whole granules, else copied."""
        sizes = [-(-v.shape[-1] * v.dtype.bits // 8) for v in node.inputs if v is not None]
        granule = self.chip.memory.dma_granule
        pieces = _core.concat_rows(sizes, granule)
        said = ", ".join([f"{'direct' if direct else 'copied'} from byte {at} on" for at, direct in pieces])
        verdict = "direct" if all(direct for _, direct in pieces) else "copied"
        return Decision(
            "width_concat",
            layer.name,
            verdict,
            f"rows of {sum(sizes)} bytes in granules of {granule}: {said}",
            "guide ch22",
        )


def _places(stay: Stay) -> str:
    at = ", ".join(map(str, stay.offsets))
    return f"tiles of {stay.bytes} at {at}" if stay.spilled else f"at {at} while layers {stay.first} to {stay.last} run"


def _window(node: Node) -> int:
    """Returns the rows of its input that a layer needs for one row of its result."""
    sizes = node.attrs.get("kernel_sizes", ())
    if len(sizes) < 2:
        return 1
    rates = node.attrs.get("dilation_rates", node.attrs.get("dilations", (1,) * len(sizes)))
    return int((sizes[-2] - 1) * rates[-2] + 1)
