"""Runs a network over calibration feeds, and keeps only the numbers that choose the range of each tensor, so
memory does not grow with the number of feeds."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx

from hexane.errors import Error
from hexane.graph import Array
from hexane.quant.network import Network, showing
from hexane.quant.ranges import Histogram

Feed = Mapping[str, Array]
Run = Callable[[Feed], Mapping[str, Array]]
Compile = Callable[[onnx.ModelProto], Run]


def each(run: Run, feeds: Iterable[Feed]) -> Iterator[Mapping[str, Array]]:
    """The network's results for each feed. Raises Error if there are no feeds."""
    empty = True
    for feed in feeds:
        empty = False
        yield run(feed)
    if empty:
        raise Error("[quantize] calibration: got no inputs, need at least one")


def not_fp32(network: Network, names: Sequence[str], feeds: Iterable[Feed], compile: Compile) -> frozenset[str]:
    """The tensors that are not fp32, seen in a run on the first feed."""
    inputs = {port.name for port in network.proto.graph.input}
    for feed in feeds:
        arrays = {**feed, **compile(showing(network.proto, [n for n in names if n not in inputs]))(feed)}
        return frozenset(name for name in names if arrays[name].dtype != np.float32)
    raise Error("[quantize] calibration: got no inputs, need at least one")


def histograms(
    network: Network, groups: Sequence[Sequence[str]], feeds: Iterable[Feed], compile: Compile, *, counted: bool
) -> list[Histogram]:
    """A histogram of each group of tensors. The first pass over the feeds finds the ends; if `counted`, a second pass
    fills the counts.

    Raises Error for tensors that are not finite.
    """
    names = [name for group in groups for name in group]
    inputs = {port.name for port in network.proto.graph.input}
    run = _with_feeds(compile(showing(network.proto, [name for name in names if name not in inputs])))
    low, high = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for index, arrays in enumerate(each(run, feeds)):
        for name in names:
            if arrays[name].size:
                low[name] = min(low[name], _finite(arrays[name].min(), name, index))
                high[name] = max(high[name], _finite(arrays[name].max(), name, index))
    result = [Histogram(min(low[n] for n in group), max(high[n] for n in group)) for group in groups]
    for arrays in each(run, feeds) if counted else ():
        for histogram, group in zip(result, groups, strict=True):
            for name in group:
                histogram.add(arrays[name])
    return result


def _with_feeds(run: Run) -> Run:
    return lambda feed: {**feed, **run(feed)}


def _finite(number: float, name: str, index: int) -> float:
    if not np.isfinite(number):
        raise Error(f"[quantize] calibration input {index}: got {number} in the tensor {name!r}, need finite numbers")
    return float(number)
