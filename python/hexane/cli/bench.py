"""`hexane bench`: measures a device's peak rates, and compares two files of results."""

import os
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from hexane import _core
from hexane.cli.errors import command
from hexane.cli.options import Debug
from hexane.cli.output import print_table
from hexane.errors import Error
from hexane.report.legend import legend


class DeviceName(str, Enum):
    """--device: the device to measure."""

    CPU = "cpu"
    ANE = "ane"


COMPARED = ("probe", "configuration", "A us", "A repeats", "B us", "B repeats", "B / A", "B is")
COMPARED_KEYS = ("a_us", "a_interval", "b_us", "b_interval", "ratio")


@command
def bench(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="PROBE",
            help=(
                "dispatch, threads, peak, sram, io, qos, int8, all; inmem_bench, inmem_peak, sram_bench, sram_probe,"
                " ane_int8_bench, "
                "test_qos_sweep: the configurations of maderix/ANE's programs of these names."
            ),
        ),
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="A.json B.json", help="Compare two files written with --json. Measures nothing."),
    ] = None,
    device: Annotated[
        DeviceName, typer.Option(help="What to measure: this CPU, or the engine of this Mac.")
    ] = DeviceName.CPU,
    seconds: Annotated[float, typer.Option(min=0.01, max=60, help="Seconds of each measurement.")] = 0.5,
    repeats: Annotated[
        int,
        typer.Option(min=1, max=100, help="Number of measurements of each configuration; --compare needs at least 4."),
    ] = 5,
    threads: Annotated[
        int | None, typer.Option(min=1, max=256, help="Threads of the CPU's programs. [default: all cores]")
    ] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all results to a file.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table in Markdown.")] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page with plots. [default: for all, hexane-bench.html]"),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="F.toml",
            help="Fit the rates of the cost model to the results, for `hexane estimate --rates`. Needs --device ane.",
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="DIR", help="Write pictures. Needs hexane[plot].")] = None,
    debug: Debug = False,
) -> None:
    """Measure a device: each configuration runs in its own process, and its result is compared with NumPy's.

    Exit code 1 if a configuration failed or gave a wrong result.
    """
    if (what is None) == (compare is None):
        got = "neither PROBE nor" if what is None else "both PROBE and"
        raise typer.BadParameter(f"got {got} --compare, need one of them")
    if compare is not None:
        _compare(*compare)
        return
    assert what is not None
    if what == "all" and html is None:
        html = Path("hexane-bench.html")
    if calibrate is not None and device is not DeviceName.ANE:
        raise typer.BadParameter(f"--calibrate: got --device {device.value}, need ane: rates are of an engine")
    _check_files((json, markdown, html, calibrate), plot)
    from hexane.bench import configurations, run
    from hexane.bench.environment import load
    from hexane.bench.table import (
        ESTIMATE_HEAD,
        HEAD,
        MEANINGS,
        RIGHT,
        conditions,
        estimate_rows,
        findings,
        rows,
        summary,
        warning,
    )
    from hexane.bench.table import markdown as as_markdown

    chosen = configurations(what, device.value)
    if early := warning({"load": {"before": load()}, "environment": {"cores": os.cpu_count()}}):
        print(early, file=sys.stderr)
    document = run(chosen, device.value, seconds, threads, _Progress(len(chosen) * repeats), repeats)
    print(summary(document))
    print(conditions(document))
    if warned := warning(document):
        print(warned)
    print()
    print_table(HEAD, list(rows(document)), right=RIGHT)
    print(f"\n{legend('columns', MEANINGS)}\n")
    if compared := list(estimate_rows(document)):
        print()
        print_table(ESTIMATE_HEAD, compared, right=ESTIMATE_HEAD[2:7])
        print()
    for line in findings(document):
        print(line)
    if calibrate is not None:
        from hexane.bench.calibrate import calibrated

        _core.save_file(str(calibrate), calibrated(document).encode())
        print(f"wrote {calibrate}")
    if json is not None:
        import json as writer

        _core.save_file(str(json), writer.dumps(document, indent=1, allow_nan=False).encode())
    if markdown is not None:
        _core.save_file(str(markdown), as_markdown(document).encode())
    if html is not None:
        from hexane.bench.page import html_page

        _core.save_file(str(html), html_page(document).encode())
        print(f"wrote {html}")
    if plot is not None:
        from hexane.bench.plot import plot as draw

        for path in draw(document, plot):
            print(f"wrote {path}")
    if wrong := [r for r in document["results"] if "error" in r]:
        raise Error(
            f"[bench] got {len(wrong)} of {_configurations(len(chosen))} without a right result, the first:"
            f" {wrong[0]['name']}: {wrong[0]['error']}"
        )


def _check_files(files: Sequence[Path | None], plot: Path | None) -> None:
    """Raises Error before measuring, which may take minutes, if a file of results could not be written afterwards."""
    for file in files:
        if file is not None and not file.parent.is_dir():
            raise Error(f"[bench] {file}: got no folder {str(file.parent)!r}, need one that is there")
    if plot is not None:
        from hexane.bench.plot import need_matplotlib

        need_matplotlib()
        if plot.exists() and not plot.is_dir():
            raise Error(f"[bench] --plot {plot}: got a file, need a folder")


class _Progress:
    """Prints a line on a terminal's stderr after each measurement."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0

    def __call__(self, configuration: Any, result: dict[str, Any]) -> None:
        self.done += 1
        if sys.stderr.isatty():
            print(f"\r\033[K{self.done}/{self.total} {configuration.name}", end="", file=sys.stderr, flush=True)
            if self.done == self.total:
                print("\r\033[K", end="", file=sys.stderr, flush=True)


def _compare(*files: Path) -> None:
    from hexane.bench import compare, differences, read
    from hexane.bench.table import conditions, warning

    a, b = map(read, files)
    compared = compare(a, b)
    if not compared:
        raise Error(f"[bench] --compare: got no configuration that both {files[0]} and {files[1]} have, need one")
    for name, file, one in (("A", files[0], a), ("B", files[1], b)):
        print(f"{name}: {file}: {conditions(one)}")
        if warned := warning(one):
            print(warned)
    print()
    if differ := differences(a, b):
        print_table(("differs", "A", "B"), differ)
        print()
    cells = [(r["probe"], r["name"], *(_shown(r.get(key)) for key in COMPARED_KEYS), r["verdict"]) for r in compared]
    print_table(COMPARED, cells, right=COMPARED[2:7])
    for name, one in (("A", a), ("B", b)):
        if left := len(one["results"]) - len(compared):
            print(f"{_configurations(left)} of {name} alone {'is' if left == 1 else 'are'} left out")


def _configurations(count: int) -> str:
    return f"{count} configuration{'' if count == 1 else 's'}"


def _shown(value: float | tuple[float, float] | None) -> str:
    """Returns a figure or an interval as text, "-" for None."""
    from hexane.bench.table import figure

    if value is None:
        return "-"
    return " to ".join(map(figure, value)) if isinstance(value, tuple) else figure(value)
