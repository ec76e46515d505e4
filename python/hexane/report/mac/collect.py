"""Runs all probes and packs the results into one file. A failing probe does not stop later probes."""

import json
import os
import platform
import re
import secrets
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import hexane
from hexane.errors import Error
from hexane.report.mac.probe import Context, Probe
from hexane.report.mac.probes import PROBES, RECOVERY
from hexane.report.mac.record import FORMAT, VERSION, Record
from hexane.report.mac.worker import PROGRAM

START = 60.0  # Seconds until a process must begin its first case.
LOOK = 0.02  # Seconds between polls of a process.
END = 10.0  # Seconds until a killed process must have ended.
MOST_OUTPUT = 20_000  # The characters of a process's output that are kept.
LOG = ("/usr/bin/log", "show", "--last", "1m", "--style", "compact", "--predicate",
       'process == "aned" OR process == "ANECompilerService" OR subsystem == "com.apple.ane"')  # fmt: skip
LOG_SECONDS = 60.0
Told = Callable[[Record], None]


def collect(
    folder: Path,
    context: Context,
    *,
    probes: Sequence[Probe] = PROBES,
    told: Told = lambda record: None,
    program: str = PROGRAM,
    limit: float | None = None,
) -> Path:
    """Returns the path of the report, a zip in the folder, written atomically. If this process is killed, a .jsonl file
    in the folder has the records so far. told: called with each record. limit: seconds for a case; None: the probe's.
    program: the program that the processes run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"hexane-report-{context.target}-{time.strftime('%Y%m%d-%H%M%S')}-{context.salt}"
    lines = folder / f"{name}.jsonl"
    logs: dict[str, str] = {}
    head = {
        "format": FORMAT,
        "version": VERSION,
        "hexane": hexane.__version__,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "platform": platform.platform(),
        "context": {**asdict(context), "library": Path(context.library).name},
        "questions": {probe.name: probe.question for probe in (*probes, RECOVERY)},
    }
    records: list[Record] = []
    with lines.open("w", encoding="utf-8") as file:

        def keep(record: Record) -> None:
            records.append(record)
            file.write(json.dumps(record) + "\n")
            file.flush()
            told(record)

        try:
            for probe in probes:
                _ask(probe, context, program, limit, keep, logs)
        except KeyboardInterrupt:
            head["interrupted"] = True
    result = _pack(folder / f"{name}.zip", head, records, logs)
    lines.unlink()
    return result


def new_salt() -> str:
    return secrets.token_hex(4)


def _ask(probe: Probe, context: Context, program: str, limit: float | None, keep: Told, logs: dict[str, str]) -> None:
    left = list(probe.cases)
    while left:
        before = len(left)
        for record in _run(probe, left[: probe.per_process], context, program, limit, logs):
            keep(record)
            left.remove(record["case"])
            if record["outcome"] in ("no answer", "crash"):
                if log := _system_log():
                    logs[f"{_file_name(record)}-system.txt"] = log
                for again in _run(RECOVERY, list(RECOVERY.cases), context, program, limit, logs):
                    keep({**again, "case": f"after {record['probe']}: {record['case']}"})
            elif record["outcome"] == "error" and probe.per_process == 1 and (log := _system_log()):
                logs[f"{_file_name(record)}-system.txt"] = log
        assert len(left) < before, "each process leaves a record of its first case"


def _run(
    probe: Probe, cases: list[str], context: Context, program: str, limit: float | None, logs: dict[str, str]
) -> Iterator[Record]:
    """Yields the records of one process. If the process ended before its last case, the last record says how it
    ended."""
    request = json.dumps({"context": asdict(context), "probe": probe.name, "cases": cases})
    seconds = probe.seconds if limit is None else limit
    with tempfile.TemporaryDirectory(prefix="hexane-report") as work:
        results, printed = Path(work) / "results", Path(work) / "printed"
        results.touch()
        with printed.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-c", program, str(results)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C in a terminal then reaches the parent only
            )
            try:
                outcome = _watched(process, request, results, seconds)
            finally:
                _end(process)
        lines = _lines(results)
        said = printed.read_text(encoding="utf-8", errors="replace")[-MOST_OUTPUT:]
    done = [line for line in lines if "begins" not in line]
    begun = [line["case"] for line in lines if "begins" in line]
    yield from done
    if len(done) == len(cases):
        return
    at = begun[-1] if len(begun) > len(done) else cases[len(done)]
    record: Record = {"probe": probe.name, "case": at, **outcome}
    if said.strip():
        logs[f"{_file_name(record)}-printed.txt"] = said
    yield record


def _watched(process: "subprocess.Popen[bytes]", request: str, results: Path, seconds: float) -> Record:
    """Returns how the process ended, killed if it wrote nothing for too long."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # the process ended: its exit code says why
        process.stdin.write(request.encode())
        process.stdin.close()
    size, since, allowed = 0, time.monotonic(), START
    while process.poll() is None:
        now = results.stat().st_size
        if now != size:
            size, since, allowed = now, time.monotonic(), seconds
        elif time.monotonic() - since > allowed:
            return {"outcome": "no answer", "error": f"no answer within {allowed:g} s; the process was killed"}
        time.sleep(LOOK)
    code = process.returncode
    how = f"signal {-code}" if code < 0 else f"code {code}"
    return {"outcome": "crash", "error": f"the process ended with {how}", "code": code}


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kills the process. The wait has a limit: a driver may block the process in the kernel."""
    if process.poll() is None:
        process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(END)


def _lines(path: Path) -> list[Record]:
    """Returns the complete lines: a killed process may have cut off the last one."""
    text = path.read_text(encoding="utf-8", errors="replace")
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _system_log() -> str:
    """Returns the engine service's log of the last minute; "" if it cannot be read."""
    if sys.platform != "darwin":
        return ""
    try:
        ran = subprocess.run(LOG, capture_output=True, text=True, check=False, timeout=LOG_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout[-10 * MOST_OUTPUT :]


def _file_name(record: Record) -> str:
    return re.sub(r"[^\w.-]+", "_", f"{record['probe']}-{record['case']}")


def _pack(path: Path, head: dict[str, Any], records: Sequence[Record], logs: dict[str, str]) -> Path:
    """Writes the report, with the user's home folder replaced by ~."""
    home = str(Path.home())

    def private(text: str) -> str:
        return text.replace(home, "~") if len(home) > 1 else text

    part = path.with_suffix(".zip.part")
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("report.json", private(json.dumps(head, indent=1)))
            file.writestr("results.jsonl", private("".join(json.dumps(record) + "\n" for record in records)))
            for name, text in logs.items():
                file.writestr(f"logs/{name}", private(text))
        os.replace(part, path)
    except OSError as error:
        raise Error(f"[doctor] {path}: cannot be written: {error}") from None
    return path
