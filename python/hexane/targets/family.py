"""Family and tier, the two ways to order the generations of the engine. Families and tiers do not convert
implicitly."""

from enum import Enum
from functools import cache
from typing import TypeVar

from hexane.errors import Error
from hexane.targets.tables import table

T = TypeVar("T", bound="_Ordered")


class _Ordered(Enum):
    """Members of one enum are ordered. Compared with any other value, `<` raises TypeError and `==` is False."""

    def __lt__(self: T, other: T) -> bool:
        return self.value < other.value if type(self) is type(other) else NotImplemented

    def __le__(self: T, other: T) -> bool:
        return self.value <= other.value if type(self) is type(other) else NotImplemented

    def __gt__(self: T, other: T) -> bool:
        return self.value > other.value if type(self) is type(other) else NotImplemented

    def __ge__(self: T, other: T) -> bool:
        return self.value >= other.value if type(self) is type(other) else NotImplemented

    def __str__(self) -> str:
        return self.name


class Family(_Ordered):
    """The families of chips that decide in the engine's compiler which ops are legal, with the compiler's eight
    numbers."""

    A11Legacy = 0
    A12 = 1
    A13 = 2
    A14 = 3
    A15 = 4
    A16 = 5
    A17 = 6
    A18 = 7


class Tier(_Ordered):
    """The five groups of chips with the same capabilities. Limits, gates and streams depend on them."""

    OLDER = 1
    A13 = 2
    A14 = 3
    A15 = 4
    A16 = 5


@cache
def hardware_versions() -> dict[int, Family]:
    """The family of each hardware version. Two families have two hardware versions each, so a family does not tell the
    version."""
    return {int(version): Family[name] for version, name in table("families")["hardware_version"].items()}


def family_of_hardware_version(version: int) -> Family:
    """The family of a hardware version. Raises Error for a version that the compiler's table does not have."""
    known = hardware_versions()
    if version not in known:
        raise Error(f"[targets] hardware version: got {version!r}, need one of {', '.join(map(str, sorted(known)))}")
    return known[version]
