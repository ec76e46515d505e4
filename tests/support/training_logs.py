"""Logs of trainings without what differs from run to run."""

import json
from pathlib import Path
from typing import Any

MEASURED = ("tflops", "of_peak", "memory", "compiles_left")


def repeatable(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries without times, and what else is measured."""
    return [{name: one[name] for name in one if not name.startswith("ms") and name not in MEASURED} for one in entries]


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The repeatable entries of a training's folder."""
    return repeatable([json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()])
