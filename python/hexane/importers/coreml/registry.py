"""The registry of ops of ML programs that the engine's MIL text lacks, or that have more forms in Core ML. Arguments
are in the notation of `mil/arguments.py`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from hexane.graph import Value
from hexane.mil.arguments import Parameter, read_parameters
from hexane.ops.compose import Builder

if TYPE_CHECKING:
    from hexane.importers.coreml.translate import Translator


class Handler(NamedTuple):
    """read: the function that translates an op, called with the context and the arguments by name."""

    parameters: tuple[Parameter, ...]
    read: Callable[..., Any]


class Part(NamedTuple):
    """An update of the tensor `whole`, which starts at `position` on `axis`."""

    whole: Value
    update: Value
    position: Value
    axis: int


class Context(NamedTuple):
    """The context of an op. b: applies ops. opset: the iOS version, 15 to 18 or 26. translator: has the values, states
    and blocks."""

    b: Builder
    opset: int
    translator: "Translator"


HANDLERS: dict[str, Handler] = {}


def reads(line: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function that translates an op: `@reads("fill shape:ints value:any")`."""
    op, *words = line.split()

    def register(read: Callable[..., Any]) -> Callable[..., Any]:
        assert op not in HANDLERS, op
        HANDLERS[op] = Handler(read_parameters(words), read)
        return read

    return register
