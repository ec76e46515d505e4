"""Refuses to write a result whose outputs are too far from the original model's."""

from math import isfinite
from pathlib import Path
from typing import Annotated

import typer

from hexane.errors import Error

MOST = 0.1  # relative error of an output

Force = Annotated[
    bool,
    typer.Option("--force", help=f"Write the result even where an output's relative error is above {MOST:g}."),
]


def is_too_large(error: float | None, tolerance: float | None) -> bool:
    """True if the error exceeds both MOST and the tolerance asked for; False for None (not measured)."""
    return error is not None and not error <= max(MOST, tolerance or 0.0)


def refusal(command: str, output: Path, error: float, tolerance: float | None, measured_on: str, change: str) -> Error:
    """Returns the error for a result that is not written. change: advice for a smaller error."""
    got = f"{error:.2g}" if isfinite(error) else "that is infinite"
    return Error(
        f"[{command}] {output}: got a relative error {got} on {measured_on}, need at most"
        f" {max(MOST, tolerance or 0.0):g}, so nothing was written; {change}, or --force to write it as it is"
    )
