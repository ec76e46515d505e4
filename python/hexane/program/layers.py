"""The layers of a program on a chip's engine, in order.

Reports read these: `explain`, the page and the trace compute nothing themselves. Layers, tensors and partitions are
numbered through the whole program, over all its segments. Bytes are of on-chip memory unless a field says otherwise.
"""

import re
from dataclasses import dataclass
from typing import Literal

from hexane.program.work import NO_WORK, Work

Encoding = Literal["fp16", "int8", "palette", "sparse"]
Engine = Literal["NE", "PE", "DMA"]  # the multiply-accumulate array, the planar engine, and transfers


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a layer as the engines read them.

    encoding: the encoding in which the chip streams the weights, "fp16" if it cannot stream the stored one; bytes: in
    this encoding, without a palette; bits: of a weight, or of each stored number of a pruned weight; groups: of output
    channels, with `group` channels each; engines: number of engines with at least one group; passes: groups that each
    engine computes; packed_bytes: of all sub-kernels with their padding. shared: True for weights in the memory that
    all cores share, False in each core's own; demand: bytes that they need in this memory; limit: its size in bytes.
    """

    encoding: Encoding
    bytes: int
    bits: int
    group: int
    groups: int
    engines: int
    passes: int
    packed_bytes: int
    shared: bool
    demand: int
    limit: int


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a chip's program, in execution order.

    name: its op and its place in the user's model, as in decisions; op: "anec.convolution"; kind: the layer of a
    netplist ("Conv"); slots: its final operations, in order, as text. segment, partition: numbers. rule: the list
    scheduler's tie-break that chose it ("" for an optimal order). reads, makes: numbers of tensors; parts: elements
    read of each of `reads`. partner: a layer that could be issued together with it, or None; co_issue: the verdict on
    issuing it with the next layer. loaded, stored: bytes from and to main memory, spills included, without weights.
    steps: half-open range of the program's steps; empty for a layer without cost. work: set when the steps are known.
    """

    index: int
    name: str
    op: str
    kind: str
    slots: tuple[str, ...]
    engine: Engine
    segment: int
    partition: int
    rule: str
    reads: tuple[int, ...]
    parts: tuple[int, ...]
    makes: tuple[int, ...]
    weights: Weights | None
    partner: int | None
    co_issue: str
    loaded: int
    stored: int
    steps: tuple[int, int] = (0, 0)
    work: Work = NO_WORK

    @property
    def moved(self) -> int:
        """Bytes from and to main memory, weights included."""
        return self.loaded + self.stored + (0 if self.weights is None else self.weights.bytes)


def slot_text(slot: str) -> str:
    """Returns a slot with the layer's inputs by number: gain_offset(no gain, offset=input 3)."""
    return re.sub(r"\b(gain|offset)=(-?\d+)", lambda m: f"no {m[1]}" if m[2] == "-1" else f"{m[1]}=input {m[2]}", slot)
