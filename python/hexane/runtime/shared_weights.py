"""Weights that the programs of one model share."""

from collections.abc import Mapping

import numpy as np

from hexane import _core
from hexane.build import Tensor
from hexane.graph import Array
from hexane.importers.weights import as_tensor


class SharedWeights:
    """Weights in a pool, in which programs find them. arrays: the weights; an encoded weight is a Tensor. constants:
    the weights as tensors for graphs. A graph may instead make its own constants from parts of `arrays`.

    Arrays of mapped files stay in the files.
    """

    def __init__(self, weights: Mapping[str, Array | Tensor]) -> None:
        self.pool = _core.MemoryPool()
        arrays = [given for given in weights.values() if not isinstance(given, Tensor)]
        self._files = list(dict.fromkeys(file for array in arrays if (file := _core.FileMapping.of(array))))
        self.arrays: dict[str, Array | Tensor] = {
            name: given if isinstance(given, Tensor) else self.pool.keep(np.asarray(given, order="C"))
            for name, given in weights.items()
        }
        self.constants = {name: as_tensor(given) for name, given in self.arrays.items()}

    def check_unchanged(self) -> None:
        """Raises Error if a mapped file has changed. Programs read weights from it: call this before they run."""
        for file in self._files:
            file.check_unchanged()

    def release(self) -> None:
        """Gives back the memory of the mapped files' pages. Packed copies of weights stay, and other weights are read
        from the files again."""
        for file in self._files:
            file.release()
