"""A program: steps on views into buffers, and a chip's program on the engine."""

from hexane.program.program import (
    Block,
    Buffer,
    Extent,
    Loop,
    PortView,
    Program,
    Segment,
    SegmentPort,
    Step,
    View,
    dense_strides,
)

__all__ = [
    "Block",
    "Buffer",
    "Extent",
    "Loop",
    "PortView",
    "Program",
    "Segment",
    "SegmentPort",
    "Step",
    "View",
    "dense_strides",
]
