"""What the tests share: golden text, and the benchmark models."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden instead of comparing with it")
    parser.addoption("--seed", type=int, metavar="N", help="run random graphs of this seed only")
    parser.addoption(
        "--models",
        type=Path,
        default=ROOT.parent / "shared" / "models",
        metavar="DIR",
        help="folder of gen.py, which builds the benchmark models (default: ../shared/models)",
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """golden(name, text) compares text with tests/golden/NAME.txt; --update-golden writes the file."""
    update = request.config.getoption("--update-golden")

    def check(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        text = text.rstrip("\n") + "\n"
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.exists(), f"{path} is missing; pytest --update-golden writes it"
        assert text == path.read_text(encoding="utf-8"), f"{path} differs; if rightly so, pytest --update-golden"

    return check


@pytest.fixture(scope="session")
def model_file(request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """model_file("resnet8") is the path of that ONNX file, built by gen.py on first use and kept under build/."""
    folder: Path = request.config.getoption("--models")
    built = ROOT / "build" / "models"

    def find(name: str) -> Path:
        for path in (folder / f"{name}.onnx", built / f"{name}.onnx"):
            if path.exists():
                return path
        builder = folder / "gen.py"
        if not builder.exists():
            pytest.skip(f"{builder} is not there; --models DIR names its folder")
        command = [sys.executable, builder, "--out", built, "--only", name]
        subprocess.run([*command, "--no-int8"], check=True, capture_output=True)
        return built / f"{name}.onnx"

    return find
