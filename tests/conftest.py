"""What the tests share: golden text, and the benchmark models."""

import csv
import gc
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import onnx
import pytest

from networks import small_networks
from turns import TURN, TURNS

ROOT = Path(__file__).parents[1]
os.environ["HEXANE_VERIFY"] = "1"  # every pass of every test leaves a sound graph
if os.environ.get("HEXANE_WARNINGS_AS_ERRORS") == "ON":
    os.environ["WERROR"] = "1"  # of apps that tests build by their Makefile
GOLDEN = ROOT / "tests" / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden instead of comparing with it")
    parser.addoption("--ane", action="store_true", help="run the catalogue on this machine's Neural Engine")
    parser.addoption("--seed", type=int, metavar="N", help="run random graphs of this seed only")
    parser.addoption(
        "--models",
        type=Path,
        default=ROOT.parent / "shared" / "models",
        metavar="DIR",
        help="folder of gen.py, which builds the benchmark models (default: ../shared/models)",
    )
    parser.addoption(
        "--facts",
        type=Path,
        default=ROOT.parent / "shared" / "facts",
        metavar="DIR",
        help="folder of data/*.csv, published tables to compare the chips' data with (default: ../shared/facts)",
    )
    parser.addoption(
        "--coreai",
        type=Path,
        default=ROOT.parent / "shared" / "data" / "coreai",
        metavar="DIR",
        help="folder of op_cases.tar.xz, Core AI assets with expected results (default: ../shared/data/coreai)",
    )
    parser.addoption(
        "--coreml",
        type=Path,
        default=ROOT.parent / "shared" / "data" / "coreml",
        metavar="DIR",
        help="folder of op_cases.tar.xz and packages/, Core ML models with expected results (default: ../shared/data/coreml)",
    )
    parser.addoption(
        "--apple-python",
        default=sys.executable,
        metavar="PATH",
        help="a Python with coreai-core, Apple's runtime of Core AI for Linux (default: this one)",
    )


def pytest_configure() -> None:
    """Lets tests interrupt processes that they start, also where a shell started the suite in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists what --update-golden changed, also where other processes ran the tests."""
    for report in terminalreporter.getreports("passed"):
        for name, lines in report.user_properties:
            if name == "changed":
                terminalreporter.write_line("\n".join([f"{len(lines)} changed by {report.nodeid}", *lines]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole networks first: a process that gets the dearest files last works alone at the end."""
    items.sort(key=lambda item: "/whole/" not in item.nodeid)


def pytest_collection_finish() -> None:
    """Keeps Python from looking for garbage among the tests themselves, a million objects, again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """Ends with the tests that did not run: skips, one line for each reason, and the turn of random cases."""
    yield
    reporter = session.config.pluginmanager.getplugin("terminalreporter")  # None in the workers of xdist
    if reporter is None:
        return
    for line in tally(reporter.getreports("skipped")):
        reporter.write_line(line)
    if TURN != "all" and any("slow" in report.keywords for report in reporter.getreports("passed")):
        reporter.write_line(f"of many random cases those of turn {TURN} ran, of {TURNS}; TURN=all runs them all")


def tally(skipped: Sequence[pytest.TestReport]) -> list[str]:
    """The reasons of skipped tests, each with its count, the largest first."""
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)  # file, line, reason
    lines = [f"{count:6} {reason}" for reason, count in reasons.most_common()]
    return [f"skipped: {reasons.total()}", *lines] if lines else []


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """golden(name, text) compares text with tests/golden/NAME.txt; --update-golden writes the file."""
    update = request.config.getoption("--update-golden")

    def check(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        text = text.rstrip("\n") + "\n"
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.exists(), f"{path} is missing; pytest --update-golden writes it"
        assert text == path.read_text(encoding="utf-8"), f"{path} differs; if rightly so, pytest --update-golden"

    return check


@pytest.fixture(scope="session")
def published(request: pytest.FixtureRequest) -> Callable[[str], list[dict[str, str]]]:
    """published("op_floors") is the rows of that table, by the names of its columns."""
    folder: Path = request.config.getoption("--facts")

    def rows(name: str) -> list[dict[str, str]]:
        path = folder / "data" / f"{name}.csv"
        if not path.exists():
            missing = path if path.parent.exists() else path.parent
            pytest.skip(f"{missing} is not there; --facts DIR names its folder")
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    return rows


@pytest.fixture(scope="session")
def model_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """model_file("resnet8") is the path of that ONNX file: a small network, or one that gen.py builds on first use,
    kept under build/."""
    folder: Path = request.config.getoption("--models")
    built = ROOT / "build" / "models"
    small = small_networks()

    def find(name: str) -> Path:
        if name in small:
            path = tmp_path_factory.mktemp(name) / f"{name}.onnx"
            onnx.save(small[name], path)
            return path
        for path in (folder / f"{name}.onnx", built / f"{name}.onnx"):
            if path.exists():
                return path
        built.mkdir(parents=True, exist_ok=True)
        builder = folder / "gen.py"
        if not builder.exists():
            pytest.skip(f"{builder} is not there; --models DIR names its folder")
        # Beside its place and renamed: another worker may want it now.
        with tempfile.TemporaryDirectory(dir=built) as aside:
            kind = [] if name.endswith("_int8") else ["--no-int8"]
            command = [sys.executable, builder, "--out", aside, "--only", name.removesuffix("_int8"), *kind]
            subprocess.run(command, check=True, capture_output=True)
            for path in Path(aside).iterdir():
                path.replace(built / path.name)
        return built / f"{name}.onnx"

    return find
