"""What tests of the command share."""

from pathlib import Path

import numpy as np
import pytest

from command import Cli, Ended, linear_model, weights
from hexane.cli.main import app


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """cli("run", path, ...) runs the command in this process."""

    def run(*args: object) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            app([str(a) for a in args], prog_name="hexane")
        code = ended.value.code
        return Ended(code if isinstance(code, int) else 0, *capsys.readouterr())

    return run


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
