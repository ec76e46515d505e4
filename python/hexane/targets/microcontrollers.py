"""Costs of the C99 runtime on a microcontroller: bytes of code, and instructions per multiply-accumulate."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from hexane.targets.tables import table


@dataclass(frozen=True, slots=True)
class Core:
    """A microcontroller's core. instructions: per multiply-accumulate, the least and the most, by "int8" and "fp32".
    source, status: of these numbers."""

    name: str
    instructions: dict[str, tuple[float, float]]
    source: str
    status: str


@cache
def cores() -> tuple[Core, ...]:
    """The cores of `shared/microcontrollers.toml`."""
    given = table("microcontrollers")
    return tuple(
        Core(name, {kind: (least, most) for kind, (least, most) in row.items()}, given["source"], given["status"])
        for name, row in given["cores"].items()
    )


def code_bytes(
    kernels: Iterable[str],
    activations: Iterable[str],
    codecs: Iterable[str],
    streams: bool = False,
    integers: bool = False,
) -> int:
    """The bytes of code in an app with these parts, for a Cortex-M4 at -Os, including verification. streams: the app
    has streamed ports. integers: it computes with integers outside of quantised ops. The estimate is an upper bound: it
    counts functions before linking, which makes some of them smaller."""
    code: dict[str, Any] = table("microcontrollers")["code"]
    parts: set[int] = set()
    for title, names in (("kernels", kernels), ("activations", activations), ("codecs", codecs)):
        for name in names:
            parts |= set(code[title][name])
    whole = int(code["base"]) + int(code["startup"])
    whole += int(code["streamed_ports"]) if streams else 0
    whole += int(code["integers"]) if integers else 0
    return whole + sum(int(code["parts"][i]) for i in parts)
