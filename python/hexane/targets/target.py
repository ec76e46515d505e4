"""Target: the data that every pass needs about what a program is compiled for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hexane.targets.fact import Fact
from hexane.targets.kernels import Kernels, kernels


@dataclass(frozen=True, slots=True)
class Numerics:
    """An arithmetic: the family whose kernels are used, and the values of its parameter block by name."""

    name: str
    family: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Space:
    """A memory that programs use: its kind ("arena", "weights" or "state"), the alignment of buffers in it, and its
    size in bytes (0: no limit)."""

    name: str
    kind: str
    alignment: int
    limit: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A target of the compiler. numerics: the family of arithmetic whose kernels run. residual_epilogue: a layer may
    include the addition of a second computed tensor. channels_last: images stay NHWC from kernel to kernel. alignment:
    of buffers, in bytes. spaces: the memories for buffers; the first of each kind is preferred. asked: the name by
    which the user requested the target ("A14"), or ""."""

    name: str
    device: str
    numerics: str
    residual_epilogue: bool
    channels_last: bool
    alignment: int
    spaces: tuple[Space, ...]
    facts: Mapping[str, Fact] = field(repr=False, compare=False)
    asked: str = field(default="", repr=False, compare=False)

    @property
    def label(self) -> str:
        """The target's name in messages and reports: "A14 (h13)" if A14 was asked for, else "h13"."""
        return f"{self.asked} ({self.name})" if self.asked else self.name

    @property
    def kernels(self) -> Kernels:
        """Tells which operands its kernels take."""
        return kernels(self.numerics)

    @property
    def arithmetic(self) -> Numerics:
        """The arithmetic in which its steps compute."""
        return Numerics(self.name, self.numerics, {})

    def space(self, kind: str) -> Space:
        """The target's first memory of this kind."""
        return next(space for space in self.spaces if space.kind == kind)
