"""Compares each layer of a language model in a chip's arithmetic with the same layer in fp32."""

import csv
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np

from hexane.build import Tensor
from hexane.errors import FallbackWarning, HazardWarning
from hexane.graph import Array, Graph
from hexane.options import Options
from hexane.runtime.compile import compile
from hexane.targets import Chip
from hexane.train.decoder import LlamaConfig
from hexane.train.decoder.one_token import HIDDEN, block


@dataclass(frozen=True, slots=True)
class LayerError:
    """The error of a layer in a chip's arithmetic, relative L2. layer: its number from 1; the last layer returns the
    logits. largest: the largest absolute number of the result in fp32. own_error: the error if the layer reads the fp32
    result of the layer before; error: the error if it reads the chip's result of the layer before. An error is infinite
    if a number of either result is infinite or NaN."""

    layer: int
    largest: float
    own_error: float
    error: float


def layer_errors(
    config: LlamaConfig, weights: Mapping[str, Array | Tensor], ids: Sequence[int], chip: Chip, threads: int | None
) -> Iterator[LayerError]:
    """Yields the error of each layer for a text of these tokens.

    Each layer is compiled alone, so the memory is that of one layer. As in packages, the result of a layer is rounded
    to fp16 for the next layer.
    """
    short = replace(config, seq=len(ids))
    exact = chips = None
    for i in range(config.layers):
        graph = block(short, weights, len(ids), len(ids), layers=range(i, i + 1))
        with warnings.catch_warnings():  # the export itself reports where ops run
            warnings.simplefilter("ignore", FallbackWarning)
            warnings.simplefilter("ignore", HazardWarning)
            host = _Layer(graph, ids, Options(target="host", device="cpu", threads=threads))
            engine = _Layer(graph, ids, Options(target=chip.name, device="cpu", threads=threads))
        exact, own, chips = host.run(exact), engine.run(exact), engine.run(chips)
        yield LayerError(i + 1, float(np.abs(exact).max()), _distance(own, exact), _distance(chips, exact))


class _Layer:
    def __init__(self, graph: Graph, ids: Sequence[int], options: Options) -> None:
        self._net = compile(graph, options)
        self._given = {"token": ids, "tokens": ids, "position": [0], "last": [len(ids) - 1]}

    def run(self, hidden: Array | None) -> Array:
        """Returns the layer's result. hidden: the result of the layer before."""
        given = {name: np.array(numbers, np.int32) for name, numbers in self._given.items()}
        known = given if hidden is None else {**given, HIDDEN: hidden}
        return np.asarray(self._net(**{port.name: known[port.name] for port in self._net.inputs}))


def _distance(got: Array, want: Array) -> float:
    wide, exact = got.astype(np.float64), want.astype(np.float64)
    if not np.isfinite(wide - exact).all():
        return float("inf")
    return float(np.linalg.norm(wide - exact) / max(float(np.linalg.norm(exact)), 1e-30))


def write_table(errors: Iterable[LayerError], file: Path) -> None:
    """Writes the errors as CSV, one row for each layer."""
    with file.open("w", newline="", encoding="utf-8") as opened:
        table = csv.DictWriter(opened, [f.name for f in fields(LayerError)])
        table.writeheader()
        table.writerows({k: f"{v:.3g}" if isinstance(v, float) else v for k, v in asdict(e).items()} for e in errors)
