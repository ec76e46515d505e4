"""What tests of sweeps run: in a module of its own, so that other processes can import it."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import hexane as hx


class Unreadable(Exception):
    """Cannot be unpickled: it needs two arguments."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def square(config: dict[str, Any]) -> float:
    time.sleep(config.get("seconds", 0))
    if config["x"] == 3:
        raise ValueError("three is too many")
    if config["x"] == 4:
        raise Unreadable("four", "too")
    if config["x"] == 5:
        sys.exit(7)
    return float(config["x"] ** 2)


def counted(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Leaves a mark for each call. Where a file "stop" is next to the folder, the config 2 is interrupted."""
    with (folder / "calls").open("a") as calls:
        calls.write("x")
    if config["x"] == 2 and (folder.parent / "stop").exists():
        raise KeyboardInterrupt
    if config["x"] == 3 and (folder.parent / "fail").exists():
        raise ValueError("three is too many")
    return {"x": np.float32(config["x"]), "process": os.getpid()}


def trained(config: dict[str, Any], folder: Path) -> list[float]:
    """A model of four weights; its checkpoint is in the folder."""
    rng = np.random.default_rng(3)
    x, y = hx.input("x", (8, 4)), hx.input("y", (8, 1))
    w = hx.param("w", np.zeros((1, 4), np.float32))
    loss = hx.mse(hx.linear(x, w), y)
    trainer = hx.train.Trainer(loss, [w], hx.train.sgd(config["lr"]), folder=folder, threads=1)
    data = rng.normal(size=(8, 4)).astype(np.float32)
    labels = data @ np.array([[1.0], [-2.0], [0.5], [3.0]], np.float32)
    trainer.fit(lambda _: {"x": data, "y": labels}, config["steps"], resume=True, progress=False)
    return [float(value) for value in trainer.net.read_state("w").ravel()]
