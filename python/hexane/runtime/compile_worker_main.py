"""The main program of the process that compiles for another one (compile_worker.py)."""

import json
import os
import sys
from typing import Any, BinaryIO

from hexane.errors import DeviceError, Error
from hexane.runtime import engine
from hexane.runtime.kept_programs import compiled_program


def main() -> None:
    """Compiles the programs in stdin until it ends."""
    answers = os.fdopen(int(sys.argv[1]), "wb")
    while (line := sys.stdin.buffer.readline()).endswith(b"\n"):
        head = json.loads(line)
        weights = {name: _taken(sys.stdin.buffer, size) for name, size in head["weights"].items()}
        answer: dict[str, Any] = {"number": head["number"]}
        try:
            device, missing = engine.find_engine(head["chip"])
            if device is None:
                raise Error(f"[device open] {missing}")
            compiled_program(device, head["chip"], head["text"], weights, head["qos"], warm=False, worker=None)
        except Error as error:
            parts = (error.stage, error.code, error.hint) if isinstance(error, DeviceError) else ("open", 0, "")
            answer |= {"error": str(error), **dict(zip(("stage", "code", "hint"), parts, strict=True))}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def _taken(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        sys.exit(1)  # the parent ended
    return data
