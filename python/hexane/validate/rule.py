"""The parts of a validator: a rule with its message, and the layer that it checks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, NamedTuple

from hexane.graph import TensorType
from hexane.targets import Chip, Verdict
from hexane.targets.first_chips import with_chips
from hexane.targets.verdict import Kind

FP16 = ("fp16",)
FLOATS = ("fp16", "fp32", "bf16")  # the engine computes these three dtypes in fp16


def made_of_factors(number: int, factors: tuple[int, ...]) -> bool:
    """True if a number is a product of the factors."""
    for factor in factors:
        while number > 1 and number % factor == 0:
            number //= factor
    return number == 1


AXES = {4: ("batch", "channels", "height", "width"), 5: ("batch", "channels", "depth", "height", "width")}


class Dims(NamedTuple):
    """A tensor's extents by name."""

    batch: int
    channels: int
    depth: int
    height: int
    width: int


def dims(shape: Sequence[int]) -> Dims:
    """The extents of (N, C, D, H, W), (N, C, H, W), (C, H, W), (C, W) or (C,); missing axes are 1."""
    s = tuple(shape)
    if len(s) == 4:
        return Dims(s[0], s[1], 1, s[2], s[3])
    if len(s) == 5:
        return Dims(*s)
    if len(s) == 3:
        return Dims(1, s[0], 1, s[1], s[2])
    return Dims(1, s[0] if s else 1, 1, 1, s[1] if len(s) == 2 else 1)


class Call:
    """A layer to be judged. types: the types of its inputs, which the compiler calls bottoms. output: the type of its
    result, if known. attrs: attributes by the names in the rules' files; a missing attribute has its default. x, out:
    the extents of the first input and of the output.
    """

    __slots__ = ("attrs", "chip", "get", "out", "output", "types", "x")

    def __init__(
        self, types: tuple[TensorType, ...], attrs: Mapping[str, Any], chip: Chip, output: TensorType | None = None
    ) -> None:
        self.types, self.attrs, self.chip, self.output = types, attrs, chip, output
        self.get = attrs.get
        self.x = self.at(0)
        self.out = None if output is None else dims(output.shape)

    def at(self, index: int) -> Dims:
        """The extents of an input, all 1 if the input is missing. The rule about the number of inputs reports a missing
        input."""
        return dims(self.types[index].shape) if index < len(self.types) else Dims(1, 1, 1, 1, 1)

    def format(self, index: int) -> str:
        return str(self.types[index].dtype) if index < len(self.types) else ""

    @property
    def output_format(self) -> str:
        return "" if self.output is None else str(self.output.dtype)


Found = bool | None | tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of legality. reject: the compiler's message if `published`, else our own words; %d, %zd, %ld and %s are
    filled with the values that `refuses` gives.

    refuses(call): a tuple of the message's values, or True without values; None or False if the layer is legal. stage:
    "lowering" rules describe layers that the validator accepts and code generation then refuses. kind: "oversize" is
    a limit on an extent or on the rank: smaller pieces or fewer axes would be legal; "decomposed" means that the engine
    runs other layers instead.
    """

    reject: str
    refuses: Callable[[Call], Found]
    published: bool = True
    stage: Literal["validator", "lowering"] = "validator"
    source: str = "guide app. B"
    status: str = "decoded"
    change: str = ""
    kind: Kind = "rejected"


def own(reject: str, refuses: Callable[[Call], Found], **more: Any) -> Rule:
    """A rule whose condition is published, but not the compiler's words."""
    return Rule(reject, refuses, published=False, **more)


def fails(reject: str, refuses: Callable[[Call], Found], **more: Any) -> Rule:
    """A rule of code generation, for layers that the validator accepts."""
    return Rule(reject, refuses, published=False, stage="lowering", **{"status": "measured", **more})


def bottoms(reject: str, *allowed: int, published: bool = True) -> Rule:
    """A rule that allows only these numbers of inputs."""
    return Rule(reject, lambda c: len(c.types) not in allowed, published=published)


def inputs(count: int) -> Rule:
    """A rule that the layer has this many inputs. The compiler's message is not published."""
    return own(f"got %d inputs, need {count}", lambda c: len(c.types) != count and (len(c.types),))


def verdict(layer: str, rule: Rule, numbers: Found) -> Verdict:
    """The verdict of a rule that refuses a layer. numbers: the values for its message."""
    words = rule.reject.replace("%zd", "%d").replace("%ld", "%d")
    filled = words % numbers if isinstance(numbers, tuple) else words
    accepted = rule.stage == "lowering"
    return Verdict(
        verdict=rule.kind,
        reason=f"{layer}: Apple's validator accepts it, Apple's compiler then fails: {filled}"
        if accepted
        else f"{layer}: {filled}",
        rule="attested is not reachable" if accepted else f"validator {layer}",
        source=rule.source,
        status=rule.status,
        reject="" if accepted else filled,
        published=rule.published,
        change=with_chips(rule.change),
    )


def judged(
    verdict: Kind, reason: str, rule: str, source: str = "hexane", status: str = "read", change: str = ""
) -> Verdict:
    """A verdict on a node that comes from no rule of a layer. By default the source is Hexane itself."""
    return Verdict(verdict=verdict, reason=reason, rule=rule, source=source, status=status, change=change)


def refused(reason: str, rule: str, source: str, change: str) -> Verdict:
    """A verdict on a node that the chip's compiler was seen to reject."""
    return judged("rejected", f"the compiler refuses {reason}", rule, source, "measured", change)


def differs_off_axis(c: Call) -> Found:
    axis = c.get("axis", 0)
    first = c.types[0].shape if c.types else ()
    return any(
        t.rank != len(first) or any(a != b for i, (a, b) in enumerate(zip(t.shape, first, strict=True)) if i != axis)
        for t in c.types[1:]
    )


def changes_the_size(c: Call) -> Found:
    return c.output is not None and bool(c.types) and prod(c.output.shape) != prod(c.types[0].shape)
