"""`hexane dashboard`: a run as its log tells it, once or while it grows."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from command import Cli

SIZES = ("--dim", 16, "--hidden", 24, "--layers", 1, "--heads", 2, "--kv-heads", 1, "--vocab", 32, "--seq", 8)
HOSTILE = "<img src=x onerror=alert(1)>\x1b[2J"


def entry(call: int) -> dict[str, Any]:
    found = {
        "call": call,
        "step": call + 1,
        "loss": 4 - call / 50,
        "lr": 3e-4,
        "norm": 1.5,
        "ms": 20,
        "tokens": 64 * call + 64,
    }
    return found | ({"evaluation.loss": 4.25 - call / 50, f"evaluation.{HOSTILE}": 0.5} if call % 20 == 19 else {})


def log_of(run: Path, count: int, end: str = "") -> Path:
    run.mkdir(exist_ok=True)
    (run / "log.jsonl").write_text("".join(json.dumps(entry(call)) + "\n" for call in range(count)) + end)
    return run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return log_of(tmp_path / "run", 100)


@pytest.fixture
def trained(cli: Cli, tmp_path: Path) -> Path:
    """A run of 6 steps of 2 batches."""
    (np.arange(800) % 32).astype("<u2").tofile(tmp_path / "tokens.bin")
    data, run = tmp_path / "tokens.bin", tmp_path / "run"
    options = ("--accumulate", 2, "--threads", 1, "--steps", 6, "--eval-data", data, "--eval-every", 3)
    assert cli("train", "--data", data, *SIZES, *options, "-o", run).code == 0
    return run


def test_a_run_of_hexane_train_is_shown_with_its_steps(cli: Cli, trained: Path) -> None:
    run = trained
    written = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    ended = cli("dashboard", run, "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    losses = np.mean([[one["loss"] for one in written[i::2]] for i in (0, 1)], axis=0)
    assert (found["step"], found["steps"], found["accumulate"], found["batches"]) == (6, 6, 2, 12)
    assert found["loss"] == pytest.approx(losses[-1])
    assert found["best"] == {"step": int(losses.argmin()) + 1, "loss": pytest.approx(losses.min())}
    assert found["median_ms"] == pytest.approx(np.median(np.sum([[o["ms"] for o in written[i::2]] for i in (0, 1)], 0)))
    assert found["evaluations"] == [{"step": i, "loss": written[2 * i - 1]["evaluation.loss"]} for i in (3, 6)]
    assert found["tokens"] == 6 * 2 * 8
    assert "step 6 of 6, 100 %" in cli("dashboard", run).out


def test_it_fits_on_80_columns(cli: Cli, run: Path) -> None:
    ended = cli("dashboard", run)
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 25
    assert lines[0].endswith("step 100")
    assert "\x1b" not in ended.out
    for text in (
        "loss           2.02, best 2.02 at step 100",
        "evaluation     2.27 at step 100, best 2.27 at step 100",
        "learning rate  0.0003",
        "norm           1.5",
        "step time      median 20 ms, last 20 ms",
        "tokens         6,400, 3,200 a second at the median step time",
    ):
        assert text in lines
    assert sum("\u2801" <= character <= "\u28ff" for character in ended.out) > 30
    assert ended.out.count("●") == 6  # five evaluations and the legend


def test_what_the_machine_did_is_shown(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    measured = {"ms.products": 12.0, "ms.engine": 1.5, "ms.other": 0.25, f"ms.{HOSTILE}": 0.1, "tflops": 0.0625,
                "of_peak": 0.034, "memory": 3 << 29, "compiles_left": 47, "mw.cpu": 4321.0, "mw.ane": 50.0}  # fmt: skip
    entries = [entry(call) | measured for call in range(20)]
    entries[0]["ms"] = 900  # compiles, too: it is in no mean
    entries[3] |= {"ms": 120, "tflops": 0.0625 / 6, "of_peak": 0.034 / 6}  # as much work in six times the time
    (run / "log.jsonl").write_text("".join(json.dumps(one) + "\n" for one in entries))
    lines = cli("dashboard", run).out.splitlines()
    assert max(map(len, lines)) <= 80
    for text in (
        "step time      median 20 ms, last 20 ms",
        "  mean         25.3 ms over the last 19 steps, without step 1: products 12 ms,",
        "products       49.5 GFLOP/s over whole steps; the engine at 2.7 % of its peak",
        "power          cpu 4.32 W, ane 0.05 W",
        "memory         1.5 GiB at most",
        "compiles left  47, then another process compiles",
    ):
        assert any(line.startswith(text) for line in lines), text
    assert "\x1b" not in "".join(lines)
    found = json.loads(cli("dashboard", run, "--json").out)
    assert found["lanes"]["engine"] == 1.5
    assert (found["recent_steps"], found["recent_ms"], found["median_ms"]) == (19, 480 / 19, 20)
    share = 19 * 20 / 480  # the operations of 19 steps of 20 ms in the time of these steps
    assert (found["tflops"], found["of_peak"]) == pytest.approx((0.0625 * share, 0.034 * share))


def test_samples_are_shown_and_their_markup_and_control_characters_are_not(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    texts = [*(f"Once {i} " for i in range(4)), f"Once {HOSTILE}\nupon " + "a time " * 60, "lone \ud800", None]
    entries = [entry(call) for call in range(20)]
    for call, text in zip(range(2, 20, 2), texts, strict=False):
        entries[call]["sample"] = text
    (run / "log.jsonl").write_text("".join(json.dumps(one) + "\n" for one in entries))
    want = [*texts[2:5], "lone ?", None]
    found = json.loads(cli("dashboard", run, "--json").out)
    assert found["samples"] == [{"step": 7 + 2 * i, "text": text} for i, text in enumerate(want)]
    shown = cli("dashboard", run).out
    assert "step 13        lone ?\n" in shown
    assert "step 15        none: logits were not finite\n" in shown
    entries[13]["sample"] = texts[4]
    (run / "log.jsonl").write_text("".join(json.dumps(one) + "\n" for one in entries[:14]))
    lines = cli("dashboard", run).out.splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("step 14 "))
    assert lines[place].startswith(f"step 14        Once {HOSTILE.split(chr(27))[0]}\\x1b[2J upon")
    assert lines[place + 2].endswith(" …")
    assert len(lines) == place + 3
    assert max(map(len, lines)) <= 80
    assert cli("dashboard", run, "--html", tmp_path / "page.html").code == 0
    assert "<img" not in (tmp_path / "page.html").read_text()
    entries[5]["sample"] = 3
    (run / "log.jsonl").write_text("".join(json.dumps(one) + "\n" for one in entries))
    assert "line 6: 'sample': got int, need a text or null" in cli("dashboard", run).err


def test_where_braille_cannot_be_printed_stars_are(run: Path) -> None:
    options = {"PYTHONIOENCODING": "ascii", "COLUMNS": "60"}
    out = subprocess.check_output([sys.executable, "-m", "hexane", "dashboard", run], env=os.environ | options)
    text = out.decode("ascii")
    assert text.count("*") > 20
    assert max(map(len, text.splitlines())) <= 60


def test_a_last_line_that_is_being_written_does_not_count(cli: Cli, tmp_path: Path) -> None:
    ended = cli("dashboard", log_of(tmp_path / "run", 7, end='{"call": 7, "st'), "--json")
    assert json.loads(ended.out)["step"] == 7


def test_an_empty_log_says_that_nothing_is_done_yet(cli: Cli, tmp_path: Path) -> None:
    run = log_of(tmp_path / "run", 0)
    ended = cli("dashboard", run, "--html", tmp_path / "page.html", "--plot", tmp_path / "plot.svg")
    assert ended.code == 0, ended.err
    assert "no step is done yet: the log has 0 batches" in ended.out
    assert (tmp_path / "page.html").exists()
    assert (tmp_path / "plot.svg").exists()


def test_many_lines_become_few_points(cli: Cli, tmp_path: Path) -> None:
    found = json.loads(cli("dashboard", log_of(tmp_path / "run", 20_000), "--json").out)
    points = found["series"]["loss"]
    assert len(points) == 600
    assert (points[0][0], points[-1][1]) == (1, 20_000)
    assert points[-1][2] == found["best"]["loss"] == entry(19_999)["loss"]


def test_a_checkpoint_that_is_damaged_is_a_remark(cli: Cli, run: Path) -> None:
    (run / "checkpoint.hxc").write_bytes(b"HEXANE\x1a\n")
    ended = cli("dashboard", run)
    assert ended.code == 0, ended.err
    assert "checkpoint.hxc says nothing: " in ended.out


def test_the_page_has_the_figures_as_data(cli: Cli, run: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert cli("dashboard", run, "--html", page).code == 0
    text = page.read_text()
    kept = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert kept is not None
    data = json.loads(kept[1])
    found = json.loads(cli("dashboard", run, "--json").out)
    assert data == {**found, "run": "run"}
    assert "<img" not in text
    assert not re.search(r"""(src|href)\s*=\s*["']?http""", text)


def test_the_picture_is_of_the_kind_that_its_name_says(cli: Cli, run: Path, tmp_path: Path) -> None:
    for name in ("plot.svg", "plot.png"):
        assert cli("dashboard", run, "--plot", tmp_path / name).code == 0
    assert "<svg" in (tmp_path / "plot.svg").read_text()
    with Image.open(tmp_path / "plot.png") as picture:
        assert picture.width > 600


def test_mistakes_say_what_is_needed(cli: Cli, run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    bad = log_of(tmp_path / "bad", 3, end="nonsense\n")
    for arguments, code, words in (
        ((tmp_path / "none",), 1, "got no folder, need the folder of a training"),
        ((run / "log.jsonl",), 1, "got a file, need the folder of a training"),
        ((tmp_path / "empty",), 1, "got a folder without log.jsonl"),
        ((bad,), 1, "log.jsonl: line 4: got no entry of a training"),
        ((run, "--follow"), 1, "got no terminal to show it on"),
        ((run, "--follow", "--json"), 2, "need one or the other"),
        ((run, "--plot", "plot.gif"), 2, "need one that ends in .png, .svg, .pdf"),
        ((run, "--html", run / "log.jsonl"), 1, "got the run's own file"),
        ((run, "--html", tmp_path / "a.svg", "--plot", tmp_path / "a.svg"), 1, "got one file for the page and the pic"),
        ((run, "--html", tmp_path / "none" / "a.html"), 1, "--html"),
    ):
        ended = cli("dashboard", *arguments)
        assert ended.code == code, (arguments, ended)
        assert words in " ".join(re.sub("[│╭╰─╮╯]", " ", ended.err).split()), ended.err


@contextmanager
def following(run: Path) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """The job on a terminal of its own, and that terminal."""
    terminal, inside = pty.openpty()
    command = [sys.executable, "-m", "hexane", "dashboard", str(run), "--follow"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "30"}
    job = subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, env=environment, start_new_session=True)
    os.close(inside)
    try:
        yield job, terminal
    finally:
        job.kill()
        job.wait()
        os.close(terminal)


def wait_for(words: bytes, terminal: int, seconds: float = 120) -> None:
    seen, end = b"", time.monotonic() + seconds
    while words not in seen:
        assert time.monotonic() < end, seen
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 65536)


def end_of(job: "subprocess.Popen[bytes]", terminal: int, seconds: float = 60) -> int:
    """Its exit code; what it still prints is read, so that it does not wait for a reader."""
    end = time.monotonic() + seconds
    while job.poll() is None:
        assert time.monotonic() < end
        if select.select([terminal], [], [], 0.2)[0]:
            with suppress(OSError):  # of a terminal that nobody writes to any more
                os.read(terminal, 65536)
    return job.wait()


def test_it_waits_for_a_log_and_follows_it_until_ctrl_c(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with following(run) as (job, terminal):
        wait_for(b"waiting for log.jsonl", terminal)
        log_of(run, 5)
        wait_for(b"step 5", terminal)
        log_of(run, 12, end='{"call"')
        wait_for(b"step 12", terminal)
        job.send_signal(signal.SIGINT)
        assert end_of(job, terminal) == 130


def test_it_follows_a_log_to_the_last_step_of_its_checkpoint(trained: Path) -> None:
    log = trained / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:8]))
    with following(trained) as (job, terminal):
        wait_for(b"step 4 of 6, 66 %", terminal)
        log.write_text("".join(lines))
        wait_for(b"step 6 of 6, 100 %", terminal)
        assert end_of(job, terminal) == 0
