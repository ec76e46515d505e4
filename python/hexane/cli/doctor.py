"""`hexane doctor`: what this machine has for programs of the Neural Engine, and whether it works."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import hexane
from hexane.cli.errors import command
from hexane.cli.options import Debug, Json
from hexane.cli.output import print_json, print_table


@command
def doctor(
    library: Annotated[
        Path | None, typer.Option(metavar="FILE", help="libhexane_ane, if not the one of the package.")
    ] = None,
    framework: Annotated[
        str, typer.Option(metavar="FILE", help="What stands in for the system's private framework.")
    ] = "",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show chip, system, the private framework's classes and selectors, and a self-test of the Neural Engine.

    Exit code 1 if there is an engine that does not do what Hexane needs.
    """
    from hexane.report.doctor import examine

    found = examine(library, framework)
    if json:
        checks = [asdict(check) | {"ok": check.ok} for check in found.checks]
        print_json(
            {
                "hexane": hexane.__version__,
                "machine": found.machine,
                "checks": checks,
                "problem": found.problem,
                "has_engine": found.has_engine,
                "ok": found.ok,
            }
        )
    else:
        rows = [("hexane", hexane.__version__), *found.machine.items()]
        print_table(("machine", ""), rows)
        if found.checks:
            print()
            head = ("what", "name", "found", "")
            marks = [("" if not c.need else "ok" if c.ok else f"need {c.need}") for c in found.checks]
            print_table(head, [(c.kind, c.name, c.found, mark) for c, mark in zip(found.checks, marks, strict=True)])
        print()
        print(_verdict(found.problem, found.has_engine, found.ok))
    if not found.ok:
        raise typer.Exit(1)


def _verdict(problem: str, has_engine: bool, ok: bool) -> str:
    if not has_engine:
        return f"No Neural Engine: {problem}. The CPU executor serves: it runs every program, those of chips too."
    if problem:
        return f"The Neural Engine cannot be used: {problem}"
    return "The Neural Engine works." if ok else "The Neural Engine does not do what Hexane needs: see the table."
