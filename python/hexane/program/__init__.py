"""A program: steps on views of buffers, and the layers that a chip's engine runs."""

from hexane.program.program import Block, Extent, Loop, PortView, Program, Segment, SegmentPort, Step
from hexane.program.view import Buffer, View, dense_strides

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
