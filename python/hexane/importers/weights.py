"""Weights of folders and files as constants of graphs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from hexane import build as hx
from hexane._core import FileMapping
from hexane.build import Tensor
from hexane.graph import Array, constant


@dataclass(frozen=True, slots=True)
class FileTensor:
    """An encoded weight of a mapped file, which is decoded at each `read` and kept by nobody else. decode: returns the
    weight from the file's bytes."""

    file: FileMapping
    decode: Callable[[], Tensor]

    def read(self) -> Tensor:
        """Raises Error if the file has changed."""
        self.file.check_unchanged()
        weight = self.decode()
        self.file.check_unchanged()
        return weight


class Weights(Mapping[str, Array | Tensor]):
    """Weights by name. encoded: those that are read from files, at each access; held: all others."""

    def __init__(self, given: Mapping[str, Array | Tensor | FileTensor]) -> None:
        self._given = given
        self.encoded = {name: one for name, one in given.items() if isinstance(one, FileTensor)}
        self.held = {name: one for name, one in given.items() if not isinstance(one, FileTensor)}

    @classmethod
    def of(cls, weights: Mapping[str, Array | Tensor]) -> "Weights":
        """Returns the weights as this class, without reading any."""
        return weights if isinstance(weights, Weights) else cls(weights)

    def with_held(self, held: Mapping[str, Array | Tensor]) -> "Weights":
        """Returns the weights with others in place of those that are held."""
        return Weights({name: held[name] if name in held else self._given[name] for name in self})

    def __getitem__(self, name: str) -> Array | Tensor:
        given = self._given[name]
        return given.read() if isinstance(given, FileTensor) else given

    def __contains__(self, name: object) -> bool:
        return name in self._given

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)


def as_tensor(weight: Array | Tensor) -> Tensor:
    """Returns the weight as a tensor in fp32. An encoded weight already is a tensor. Read-only arrays are not
    copied."""
    if isinstance(weight, Tensor):
        return weight
    held = hx.const(weight) if weight.flags.writeable else Tensor(constant(weight))
    return held if weight.dtype == np.float32 else hx.cast(held, dtype="fp32")


def as_fp32(array: Array, stored: bool) -> Array:
    """Returns a weight in fp32. stored: a matrix in 16 bits keeps its dtype, and `as_tensor` widens it."""
    if stored and array.ndim == 2 and array.itemsize == 2:
        return array
    return array.astype(np.float32, copy=False)
