"""Weights that the programs of one model share."""

from collections.abc import Mapping

import numpy as np

from hexane import _core
from hexane.build import Tensor
from hexane.graph import Array
from hexane.importers.weights import Weights, as_tensor


class SharedWeights:
    """Weights in a pool, in which programs find them. arrays: the weights; an encoded weight is a Tensor. A graph may
    make its own constants from parts of `arrays`.

    Arrays of mapped files stay in the files. Encoded weights of mapped files are decoded for the compilation of a
    program, and freed afterwards. packed_only: there are such weights; programs must not keep what kernels have packed.
    """

    def __init__(self, weights: Mapping[str, Array | Tensor]) -> None:
        self.pool = _core.MemoryPool()
        given = Weights.of(weights)
        arrays = [one for one in given.held.values() if not isinstance(one, Tensor)]
        files = [*map(_core.FileMapping.of, arrays), *(one.file for one in given.encoded.values())]
        self._files = list(dict.fromkeys(file for file in files if file))
        self.arrays = given.with_held(
            {
                name: one if isinstance(one, Tensor) else self.pool.keep(np.asarray(one, order="C"))
                for name, one in given.held.items()
            }
        )
        self.packed_only = bool(given.encoded)
        self._constants = {name: as_tensor(one) for name, one in self.arrays.held.items()}

    @property
    def constants(self) -> dict[str, Tensor]:
        """The weights as tensors for the graph of a program. Encoded weights of mapped files are decoded at each
        access, and live as long as these tensors. Raises Error if a file has changed."""
        known = self._constants
        return {name: known[name] if name in known else as_tensor(self.arrays[name]) for name in self.arrays}

    def check_unchanged(self) -> None:
        """Raises Error if a mapped file has changed. Programs read weights from it: call this before they run."""
        for file in self._files:
            file.check_unchanged()

    def release(self) -> None:
        """Gives back the memory of the mapped files' pages. Packed copies of weights stay, and other weights are read
        from the files again."""
        for file in self._files:
            file.release()
