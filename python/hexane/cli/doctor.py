"""`hexane doctor`: tests whether this machine can run programs on the Neural Engine."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import hexane
from hexane import _core
from hexane.cli.errors import command
from hexane.cli.options import Debug, Json
from hexane.cli.output import print_json, print_table
from hexane.errors import Error


@command
def doctor(
    library: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The path of libhexane_ane. [default: that of the package]")
    ] = None,
    framework: Annotated[
        str, typer.Option(metavar="FILE", help="A library to load in place of the system's private framework.")
    ] = "",
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Run all probes on this machine, and write one zip to this folder, to send to the project.",
        ),
    ] = None,
    read_report: Annotated[
        Path | None,
        typer.Option(
            metavar="ZIP", help="Write a page and proposed facts next to a report, and print what it decides."
        ),
    ] = None,
    programs: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="With --report: how many programs to compile and load to find the limits."
        ),
    ] = 140,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show chip, system, the private framework's classes and selectors, and a self-test of the Neural Engine.

    With --report, run about 650 probes in separate processes, which takes minutes to an hour. Nothing is sent anywhere.
    Exit code 1 if there is an engine and a check of it fails.
    """
    if report is not None and read_report is not None:
        raise Error("[doctor] got --report and --read-report, need one of them")
    if report is not None:
        return _report(report, library, framework, programs)
    if read_report is not None:
        return _read(read_report, json)
    from hexane.report.doctor import examine

    examined = examine(library, framework)
    if json:
        checks = [asdict(check) | {"ok": check.ok} for check in examined.checks]
        print_json(
            {
                "hexane": hexane.__version__,
                "machine": examined.machine,
                "checks": checks,
                "problem": examined.problem,
                "has_engine": examined.has_engine,
                "ok": examined.ok,
            }
        )
    else:
        rows = [("hexane", hexane.__version__), *examined.machine.items()]
        print_table(("machine", ""), rows)
        if examined.checks:
            print()
            head = ("what", "name", "found", "")
            marks = [("" if not c.need else "ok" if c.ok else f"need {c.need}") for c in examined.checks]
            print_table(head, [(c.kind, c.name, c.found, mark) for c, mark in zip(examined.checks, marks, strict=True)])
        print()
        print(_verdict(examined.problem, examined.has_engine, examined.ok))
    if not examined.ok:
        raise typer.Exit(1)


def _verdict(problem: str, has_engine: bool, ok: bool) -> str:
    if not has_engine:
        return f"No Neural Engine: {problem}. Programs run on this CPU, those compiled for chips too."
    if problem:
        return f"The Neural Engine cannot be used: {problem}"
    return "The Neural Engine works." if ok else "The Neural Engine does not do what Hexane needs: see the table."


def _report(folder: Path, library: Path | None, framework: str, programs: int) -> None:
    from hexane.report.mac import Context, collect, new_salt
    from hexane.runtime.engine import library_path, own_chip
    from hexane.targets.family import Tier
    from hexane.targets.groups import arch_for_tier

    path = library or library_path()
    if not path.exists():
        missing = "run it on a Mac" if library is None else "it is the argument of --library"
        raise Error(f"[doctor] got no file {path.name}, need the library that talks to the Neural Engine: {missing}")
    own = own_chip()
    target = arch_for_tier(Tier.A13) if own in ("", "host") else own  # the tier whose programs every later chip runs
    context = Context(str(path), framework, new_salt(), programs, target)

    def told(record: dict[str, Any]) -> None:
        print(f"{record['probe']}: {record['case']}: {record['outcome']}", flush=True)

    archive = collect(folder, context, told=told)
    print(f"\nThe report is {archive}. Nothing was sent: look into it, then attach it to an issue of the project.")


def _read(path: Path, json: bool) -> None:
    from hexane.report.mac import machine_page, proposed_facts, read_report
    from hexane.report.mac.beliefs import BELIEFS

    if path.suffix != ".zip":
        raise Error(f"[doctor] {path}: got another file, need a .zip of `hexane doctor --report`")
    parsed = read_report(path)
    beliefs = [(belief, belief.decide(parsed)) for belief in BELIEFS]
    page, facts = path.with_suffix(".html"), path.with_suffix(".toml")
    _core.save_file(str(page), machine_page(parsed).encode("utf-8", "xmlcharrefreplace"))
    _core.save_file(str(facts), proposed_facts(parsed).encode())
    if json:
        print_json(
            {
                "machine": parsed.machine,
                "beliefs": [{"name": b.name, "belief": b.text, "state": v.state, "found": v.found} for b, v in beliefs],
                "page": str(page),
                "facts": str(facts),
            }
        )
        return
    print(f"{parsed.name}\n")
    print_table(("belief", "", "found"), [(b.text, v.state, v.found) for b, v in beliefs])
    print(f"\nThe page is {page}, proposed facts are in {facts}.")
