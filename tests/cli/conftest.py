"""What tests of the command share."""

from pathlib import Path

import numpy as np
import pytest

from command import Cli, in_this_process, linear_model, weights


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """cli("run", path, ...) runs the command in this process."""
    return in_this_process(capsys)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return linear_model(tmp_path / "model.onnx", [1, 3, 2, 4], weights(24))


@pytest.fixture
def open_model(tmp_path: Path) -> Path:
    """Its input has the free dim `rows`."""
    return linear_model(tmp_path / "open.onnx", ["rows", 24], weights(24))


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(3).integers(-4, 5, (1, 3, 2, 4)).astype(np.float32)


@pytest.fixture
def x_file(tmp_path: Path, x: np.ndarray) -> Path:
    np.save(tmp_path / "x.npy", x)
    return tmp_path / "x.npy"
