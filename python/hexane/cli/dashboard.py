"""`hexane dashboard`: shows the progress of a training, finished or running."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from hexane import _core
from hexane.cli.errors import command
from hexane.cli.options import Debug, Json
from hexane.cli.output import named_option, print_json
from hexane.errors import Error
from hexane.report.plotting import check_plotting
from hexane.report.training_chart import training_chart
from hexane.report.training_page import training_page
from hexane.train.dashboard import Plan, Run, RunLog, read_plan, run_of
from hexane.train.trainer import LOG, checkpoint_in

PLOTS = (".png", ".svg", ".pdf")
EACH = 1.0  # seconds between polls of a log that is followed


@command
def dashboard(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of `hexane train`, or of a Trainer: with a log.jsonl.")
    ],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Update the display as the log grows, until the last step or Ctrl-C.")
    ] = False,
    html: Annotated[Path | None, typer.Option(metavar="F.html", help="Write a page for a browser.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="F.png", help="Draw the curves: .png, .svg or .pdf. Needs hexane[plot]."),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show a training: the curve of its loss, best and last loss, learning rate, gradient norm, step time, tokens a
    second, evaluations, the last samples, and the remaining time.

    \b
    hexane dashboard run
    hexane dashboard run --follow
    hexane dashboard run --html run.html --plot run.png
    """
    _check(run, follow, html, plot, json)
    reader = _Reader(run)
    if follow:
        _follow(reader)
        return
    state = reader.look()
    name = run.absolute().name
    if html is not None:
        with named_option("--html", html):
            _core.save_file(str(html), training_page(name, state).encode("utf-8", "xmlcharrefreplace"))
    if plot is not None:
        with named_option("--plot", plot):
            _core.save_file(str(plot), training_chart(name, state, plot.suffix.lower()[1:]))
    if json:
        print_json({"run": str(run), **state.record()})
        return
    from rich.console import Console

    from hexane.cli.dashboard_view import View

    Console(highlight=False, markup=False).print(View(run, state, reader.remark))


class _Reader:
    """Reads the log in the folder of a run, and the plan of the run from its checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.log = RunLog(folder / LOG)
        self._checkpoint = checkpoint_in(folder)
        self._plan, self._written = Plan(), 0
        self._run: Run | None = None

    @property
    def remark(self) -> str:
        return f"{self._checkpoint.name} says nothing: {self._plan.error}" if self._plan.error else ""

    def look(self) -> Run:
        """Returns the run as it is now. Raises Error for a log that cannot be read.

        The checkpoint is read again if it changed, and only if the run's last step is unknown or reached.
        """
        if self.log.read() or self._run is None:
            self._run = run_of(self.log, self._plan)
        if self._run.total is None or self._run.is_done:
            written = self._checkpoint.stat().st_mtime_ns if self._checkpoint.exists() else 0
            if written != self._written:
                self._written, self._plan = written, read_plan(self._checkpoint)
                self._run = run_of(self.log, self._plan)
        return self._run


def _check(run: Path, follow: bool, html: Path | None, plot: Path | None, json: bool) -> None:
    """Raises Error for unusable options before anything is read."""
    if not run.is_dir():
        got = "a file" if run.exists() else "no folder"
        raise Error(f"[dashboard] {run}: got {got}, need the folder of a training, which has a {LOG}")
    if follow and (json or html is not None or plot is not None):
        raise typer.BadParameter("--follow: got it with --json, --html or --plot, need one or the other")
    if follow and not sys.stdout.isatty():
        raise Error("[dashboard] --follow: got no terminal to show it on, need one, or no --follow")
    if not follow and not (run / LOG).exists():
        raise Error(f"[dashboard] {run}: got a folder without {LOG}, need that of a training; --follow waits for it")
    if plot is not None and plot.suffix.lower() not in PLOTS:
        raise typer.BadParameter(f"--plot: got the file {str(plot)!r}, need one that ends in {', '.join(PLOTS)}")
    for path, option in ((html, "--html"), (plot, "--plot")):
        if path is not None and path.exists() and any(path.samefile(one) for one in _own(run)):
            raise Error(f"[dashboard] {option}: got the run's own file {path}, need another one")
    if html is not None and plot is not None and html.absolute() == plot.absolute():
        raise Error(f"[dashboard] {html}: got one file for the page and the picture, need two")
    if plot is not None:
        check_plotting("dashboard")


def _own(run: Path) -> list[Path]:
    return [path for path in (run / LOG, checkpoint_in(run)) if path.exists()]


def _follow(reader: _Reader) -> None:
    """Shows the run until its last step comes, or Ctrl-C."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from hexane.cli.dashboard_view import View

    folder = reader.log.path.parent
    begun: int | None = None
    with Live(console=Console(highlight=False, markup=False), auto_refresh=False) as live:
        while True:
            if reader.log.path.exists():
                state = reader.look()
                begun = state.step if begun is None else begun
                live.update(View(folder, state, reader.remark), refresh=True)
                if state.is_done and state.step != begun:
                    return
            else:
                live.update(Text(f"{folder.name}: waiting for {LOG}"), refresh=True)
            time.sleep(EACH)
