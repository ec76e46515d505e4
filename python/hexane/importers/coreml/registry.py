"""The ops of ML programs that MIL text of the engine does not have, or that mean more in Core ML: by name, with their
arguments as `mil/arguments.py` writes them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from hexane.graph import Value
from hexane.mil.arguments import Parameter, read_parameters
from hexane.ops.compose import Builder

if TYPE_CHECKING:
    from hexane.importers.coreml.translate import Translator


class Handler(NamedTuple):
    """read: called with the context, and the arguments by name."""

    parameters: tuple[Parameter, ...]
    read: Callable[..., Any]


class Part(NamedTuple):
    """`whole` with an update from `position` on along an axis."""

    whole: Value
    update: Value
    position: Value
    axis: int


class Context(NamedTuple):
    """b applies ops. opset: 15 to 18 or 26. translator: the values, states and blocks."""

    b: Builder
    opset: int
    translator: "Translator"


HANDLERS: dict[str, Handler] = {}


def reads(line: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers what reads an op: `@reads("fill shape:ints value:any")`."""
    op, *words = line.split()

    def register(read: Callable[..., Any]) -> Callable[..., Any]:
        assert op not in HANDLERS, op
        HANDLERS[op] = Handler(read_parameters(words), read)
        return read

    return register
