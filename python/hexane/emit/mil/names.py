"""Names of values in MIL programs."""

import re
from collections.abc import Collection

from hexane.dtypes import DTYPES
from hexane.graph import Node
from hexane.mil.arguments import parameters

_WORDS = (
    "program",
    "func",
    "main",
    "buildInfo",
    "dict",
    "tensor",
    "state",
    "string",
    "true",
    "false",
    "BLOBFILE",
    "val",
    "name",
)
_RESERVED = frozenset((*_WORDS, *DTYPES, "const", *parameters()))


class Names:
    """Generates distinct valid names of MIL."""

    def __init__(self, reserved: Collection[str] = _RESERVED) -> None:
        self._reserved = reserved
        self._next: dict[str, int] = {}

    def give(self, wanted: str) -> str:
        """Returns the wanted name with invalid characters replaced. If the name is taken or reserved, a number is
        appended."""
        base = re.sub(r"\W", "_", wanted, flags=re.ASCII)
        base = f"_{base}" if not base or base[0].isdigit() else base
        number = self._next.get(base, 0)
        name = base if number == 0 and base not in self._reserved else f"{base}_{number}"
        while name in self._next:
            number += 1
            name = f"{base}_{number}"
        self._next[base] = number + 1
        self._next.setdefault(name, 0)
        return name


def label_of(node: Node, otherwise: str) -> str:
    """Returns the node's name in a model file, or `otherwise` if its source is a line of Python."""
    source = node.sources[0] if node.sources else ""
    return otherwise if not source or re.search(r"\.py:\d+$", source) else source
