"""The outputs of a run: written to files, and summarised."""

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hexane import _core
from hexane.cli.output import type_text
from hexane.errors import Error
from hexane.graph import Array
from hexane.runtime import PortType

TOP = 5


def write_outputs(folder: Path, outputs: Mapping[str, Array]) -> dict[str, Path]:
    """Writes NAME.npy for each output, atomically. Returns the paths by output name."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise Error(f"[run] --output {folder}: got a file, need a folder") from None
    paths = dict(zip(outputs, (folder / f"{name}.npy" for name in file_names(outputs)), strict=True))
    for name, path in paths.items():
        buffer = io.BytesIO()
        np.save(buffer, outputs[name], allow_pickle=False)
        _core.save_file(str(path), buffer.getbuffer())
    return paths


def file_names(names: Mapping[str, object]) -> list[str]:
    """Returns a file name for each output name: without separators, not hidden, and unique even without case."""
    taken: set[str] = set()
    safe_names = []
    for name in names:
        base = re.sub(r"[^\w.-]", "_", name)[:80].lstrip(".") or "output"
        safe, number = base, 1
        while safe.casefold() in taken:
            safe, number = f"{base}_{number}", number + 1
        taken.add(safe.casefold())
        safe_names.append(safe)
    return safe_names


def summary(port: PortType, array: Array) -> dict[str, Any]:
    """Returns an output's type, the minimum, maximum and mean of its finite values, and the likeliest classes if it is
    one row of probabilities."""
    record: dict[str, Any] = {"name": port.name, "dtype": str(port.dtype), "shape": list(array.shape)}
    values = array.astype(np.float64)
    finite = values[np.isfinite(values)]
    record["not_finite"] = int(values.size - finite.size)
    for name in ("min", "max", "mean"):
        record[name] = float(getattr(finite, name)()) if finite.size else None
    if port.dtype.kind == "float" and _probabilities(values):
        best = np.argsort(-values[0], kind="stable")[:TOP]
        record["top"] = [{"index": int(i), "value": float(values[0, i])} for i in best]
    return record


def _probabilities(values: Array) -> bool:
    one_row = values.ndim == 2 and values.shape[0] == 1 and values.shape[1] > 1
    return one_row and bool(np.all(values >= 0) and abs(values.sum() - 1) < 0.01)


def print_outputs(records: list[dict[str, Any]]) -> None:
    for record in records:
        print(f"{record['name']}  {type_text(record['dtype'], record['shape'])}", end="")
        if record["mean"] is not None:
            print(f"  min {record['min']:.6g}, max {record['max']:.6g}, mean {record['mean']:.6g}", end="")
        print(f", {record['not_finite']} not finite" if record["not_finite"] else "", end="")
        print(f"  -> {record['file']}" if "file" in record else "")
        if record.get("top"):
            print(f"  {'index':>6}  value")
        for entry in record.get("top", ()):
            print(f"  {entry['index']:6}  {entry['value']:.4f}")
