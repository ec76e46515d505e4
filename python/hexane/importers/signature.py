"""The signature of a model's function: its inputs, its outputs, and the inputs whose shape or value must be given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hexane.dtypes import DType
from hexane.errors import Error, UnsupportedError

Dim = int | str | None  # fixed, named, open


class SpecialisationNeeded(Error):
    """Raised for inputs, in `names`, whose shape or value must be known to compile."""

    def __init__(self, message: str, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names = names


class ComputedShapes(UnsupportedError):
    """Raised for a model with computed shapes. names: the computed values that decide them; empty if one of them is in
    a function, which has to be inlined."""

    def __init__(self, message: str, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names = names


@dataclass(frozen=True, slots=True)
class Input:
    """An input. dims: extents or names, None if the model does not say the rank. usual: the model's default shape, such
    as that of a Core ML package, or one image of a TFLite file."""

    name: str
    dtype: DType
    dims: tuple[Dim, ...] | None
    shape_input: bool = False  # the input's value decides shapes
    usual: tuple[int, ...] | None = None

    @property
    def free(self) -> bool:
        """True if the model leaves dims open."""
        return self.dims is None or any(not isinstance(d, int) for d in self.dims)


@dataclass(frozen=True, slots=True)
class Signature:
    """A model's inputs and outputs. optional: inputs whose default is an initializer, and which are constants unless
    the caller gives them. results: the declared types of the outputs, if the model has any."""

    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    optional: tuple[Input, ...] = ()
    results: tuple[Input, ...] = ()

    @property
    def specialisation(self) -> tuple[Input, ...]:
        """Returns the inputs that must be given before other shapes are known: by shape if `free`, by value if
        `shape_input`."""
        return tuple(i for i in self.inputs if i.free or i.shape_input)


def known_dims(inputs: Sequence[Input], shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[Dim, ...] | None]:
    """Returns the dims of each input for given shapes. Open dims of the same name are equal.

    a [m, k] given as 3x4, b [k, n]  ->  a (3, 4), b (4, "n")
    """
    named: dict[str, int] = {}
    for entry in inputs:
        pairs = zip(entry.dims or (), shapes.get(entry.name, ()), strict=False)
        named |= {dim: int(extent) for dim, extent in pairs if isinstance(dim, str)}
    return {
        entry.name: tuple(map(int, shapes[entry.name]))
        if entry.name in shapes
        else entry.dims and tuple(named.get(d, d) if isinstance(d, str) else d for d in entry.dims)
        for entry in inputs
    }
