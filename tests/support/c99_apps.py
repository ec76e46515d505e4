"""Apps as `hexane codegen` writes them, built from a runtime that is compiled once for all of them."""

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import hexane as hx
from hexane.emit.c99 import generate
from hexane.emit.plan_view import runtime_files

CC = (*os.environ.get("CC", "cc").split(), "-std=c99", "-O1", "-ffp-contract=off", "-fno-math-errno", "-DHX_BODIES")


def archive(folder: Path) -> Path:
    """The whole runtime, and its files in `folder`."""
    for place, path in runtime_files().items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(path.read_text())
    subprocess.run([*CC, "-Iinclude", "-c", *folder.glob("src/**/*.c")], cwd=folder, check=True)
    objects = [path.name for path in folder.glob("*.o")]
    subprocess.run(["ar", "rcs", "runtime.a", *objects], cwd=folder, check=True)
    return folder / "runtime.a"


def write_app(net: hx.Model, folder: Path, **options: Any) -> dict[str, str]:
    net.save(folder / "net.hxp")
    files = generate((folder / "net.hxp").read_bytes(), "net", app=True, **options)
    for place, text in files.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text)
    return files


def build_app(folder: Path, objects: Iterable[Path]) -> None:
    sources = ("net.c", "net_plan.c", "app/main.c", "app/host.c")
    subprocess.run([*CC, "-Iinclude", "-I.", *sources, *objects, "-o", "net"], cwd=folder, check=True)


def run_app(folder: Path, net: hx.Model) -> tuple[bytes, str, bytes]:
    """The output of the app, what it printed, and what the host computes."""
    x = np.random.default_rng(0).standard_normal(net.inputs[0].shape).astype(np.float32)
    (folder / "input.bin").write_bytes(x.tobytes())
    ran = subprocess.run([folder / "net"], cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return (folder / "output.bin").read_bytes(), ran.stdout, net(x).tobytes()
