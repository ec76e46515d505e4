"""The report in a file, which is checked strictly: a file from others is untrusted."""

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hexane.errors import Error

FORMAT, VERSION = "hexane-machine-report", 1
MOST_BYTES = 200 << 20  # largest file in the zip, unpacked
OUTCOMES = ("done", "error", "no answer", "crash")
Record = dict[str, Any]
"""probe, case, outcome ("done", "error", "no answer" or "crash"), and values if done, or else error."""


@dataclass(frozen=True, slots=True)
class MachineReport:
    """A report. head: its format, version, time and context. logs: output of processes and the system's log, by
    name."""

    head: dict[str, Any]
    records: tuple[Record, ...]
    logs: dict[str, str]

    def find(self, probe: str, case: str) -> Record | None:
        return next((r for r in self.records if (r["probe"], r["case"]) == (probe, case)), None)

    def of(self, probe: str) -> list[Record]:
        return [record for record in self.records if record["probe"] == probe]

    def values(self, probe: str, case: str) -> dict[str, Any]:
        """Returns the values of a case; empty if it did not run, or failed."""
        record = self.find(probe, case)
        return {} if record is None or record["outcome"] != "done" else dict(record["values"])

    @property
    def machine(self) -> dict[str, str]:
        return {name: str(value) for name, value in self.values("machine", "machine").items()}

    @property
    def name(self) -> str:
        """The machine, such as "Apple M3 Pro, macOS 26.1 (25B78)"."""
        machine = self.machine
        build = f" ({machine['build']})" if machine.get("build") else ""
        return f"{machine.get('chip', 'unknown chip')}, {machine.get('system', 'unknown system')}{build}"


def read_report(path: Path) -> MachineReport:
    """Returns the report in a file. Raises Error for another file, or a report of another version."""
    try:
        with zipfile.ZipFile(path) as file:
            texts = {info.filename: _text(file, info, path) for info in file.infolist() if not info.is_dir()}
    except (OSError, zipfile.BadZipFile) as error:
        raise Error(f"[doctor] {path}: got no zip of `hexane doctor --report`: {error}") from None
    for name in ("report.json", "results.jsonl"):
        if name not in texts:
            raise Error(f"[doctor] {path}: got a zip without {name}, need one of `hexane doctor --report`")
    head = _json(texts["report.json"], f"{path}: report.json")
    if not isinstance(head, dict) or (head.get("format"), head.get("version")) != (FORMAT, VERSION):
        raise Error(f"[doctor] {path}: got another format, need {FORMAT} {VERSION}")
    records = [
        _record(_json(line, f"{path}: results.jsonl:{number}"), f"{path}: results.jsonl:{number}")
        for number, line in enumerate(texts["results.jsonl"].splitlines(), 1)
    ]
    logs = {name.removeprefix("logs/"): text for name, text in texts.items() if name.startswith("logs/")}
    return MachineReport(head, tuple(records), logs)


def _text(file: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> str:
    if info.file_size > MOST_BYTES:
        raise Error(f"[doctor] {path}: {info.filename}: got {info.file_size} bytes, need at most {MOST_BYTES}")
    return file.read(info).decode("utf-8", errors="replace")


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text, parse_constant=str)  # JavaScript's parser refuses NaN
    except ValueError as error:
        raise Error(f"[doctor] {where}: got no JSON: {error}") from None


def _record(given: Any, where: str) -> Record:
    ok = isinstance(given, dict) and all(isinstance(given.get(key), str) for key in ("probe", "case"))
    if not ok or given.get("outcome") not in OUTCOMES:
        raise Error(f"[doctor] {where}: got no record, need probe, case and outcome {', '.join(OUTCOMES)}")
    if not isinstance(given.get("values", {}), dict) or (given["outcome"] == "done" and "values" not in given):
        raise Error(f"[doctor] {where}: got a case without values")
    return dict(given)
