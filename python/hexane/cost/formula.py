"""The formula: microseconds from a demand and a chip's parameters. docs/cost.md says it in words.

Every function takes numbers or NumPy arrays, so that the fit of the parameters computes with the same lines.
"""

from typing import Any

import numpy as np

GIGA = 1e9
MICROSECONDS = 1e6

BOUNDS = ("compute", "weights", "activations")
SAID = {"activations": "tensors in memory", "host": "CPU"}  # how reports say them


def call_us(submissions: Any, read: Any, written: Any, floor_us: Any, read_gbps: Any, write_gbps: Any) -> Any:
    """The time of calls without the engine's work: a floor for each call, and the copies to and from the engine."""
    return submissions * floor_us + transfer_us(read, read_gbps) + transfer_us(written, write_gbps)


def transfer_us(size: Any, gbps: Any) -> Any:
    return size * MICROSECONDS / (gbps * GIGA)


def compute_us(operations: Any, gops: Any) -> Any:
    """Operations at a rate in 10^9 a second."""
    return operations * MICROSECONDS / (gops * GIGA)


def weights_us(weights: Any, data: Any, tile_bytes: Any, stream_gbps: Any) -> Any:
    """Weights are read once for each tile of the first operand that fits on chip, so a large product reads them
    often."""
    return transfer_us(weights * _largest(1.0, data / tile_bytes), stream_gbps)


def layer_us(compute: Any, weights: Any, activations: Any) -> Any:
    """The three times overlap, so the slowest one counts."""
    return _largest(_largest(compute, weights), activations)


def engine_us(computing: Any, moving: Any) -> Any:
    """Layers that only move data run on another unit than layers that compute, so the two sums overlap."""
    return _largest(computing, moving)


def in_network(computing: Any, longest: Any, further: Any) -> Any:
    """The time of a network's layers as a fraction of the sum of their times alone. The longest layer counts with all
    its time, each other layer with the fraction `further` of its time. With this formula an additional layer never
    makes a network faster."""
    return (longest + further * (computing - longest)) / computing


def _largest(a: Any, b: Any) -> Any:
    """The larger of two numbers. For plain numbers `np.maximum` would take ten times as long."""
    return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else max(a, b)
