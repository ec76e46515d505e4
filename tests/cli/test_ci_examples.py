"""The hook and the workflow of examples/ci, as users copy them."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import onnx
import pytest

from command import linear_model, weights
from exported import from_paddle

EXAMPLES = Path(__file__).parents[2] / "examples" / "ci"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """With a model that runs, staged, and `hexane` on the path."""
    folder = tmp_path / "a repository"
    subprocess.run(["git", "init", "-q", folder], check=True)
    linear_model(folder / "my model.onnx", [1, 3, 2, 4], weights(24))
    subprocess.run(["git", "add", "."], cwd=folder, check=True)
    return folder


def environment(**changed: str) -> dict[str, str]:
    return os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"} | changed


@pytest.fixture
def detector(tmp_path: Path) -> Path:
    """A repository with a network of images, whose size is free, in a folder of its own; its inputs and options."""
    image = pytest.importorskip("PIL.Image", reason="Pillow, which reads images, is not installed")
    folder = tmp_path / "a repository"
    inputs = folder / "models of text" / "angle.inputs"
    inputs.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", folder], check=True)
    onnx.save(from_paddle(), inputs.with_suffix(".onnx"))
    pictures = np.random.default_rng(0).integers(0, 256, (3, 48, 192, 3), np.uint8)
    for i, pixels in enumerate(pictures):
        image.fromarray(pixels).save(inputs / f"{i}.png")
    inputs.with_suffix(".check").write_text("# of Paddle\n--preprocess=mean=127.5 scale=0.00784\n\n--json")
    subprocess.run(["git", "add", "."], cwd=folder, check=True)
    return folder


def run_workflow(folder: Path, fail_on: str) -> "subprocess.CompletedProcess[str]":
    text = (EXAMPLES / "check-models.yml").read_text(encoding="utf-8")
    script = textwrap.dedent(text.rpartition("run: |\n")[2])
    variables = environment(HEXANE_TARGETS="A14,M4", HEXANE_FAIL_ON=fail_on)
    command = ["bash", "-e", "-c", script]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


def run_hook(folder: Path, **changed: str) -> "subprocess.CompletedProcess[str]":
    hook = folder / ".git" / "hooks" / "pre-commit"
    shutil.copy(EXAMPLES / "pre-commit", hook)
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    command = ["git", *who, "commit", "-qm", "model"]
    return subprocess.run(command, cwd=folder, env=environment(**changed), capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_hook_lets_a_model_pass_that_runs(repository: Path) -> None:
    ended = run_hook(repository)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.slow
def test_the_hook_refuses_what_is_staged_not_what_lies_in_the_folder(repository: Path) -> None:
    (repository / "my model.onnx").unlink()
    ended = run_hook(repository, HEXANE_FAIL_ON="error=0,segments=0")
    assert ended.returncode == 1
    assert "segments: got 1, need at most 0" in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("fail_on", "code"), [("rejected", 0), ("segments=0", 1)])
def test_the_step_of_the_workflow_checks_all_models(repository: Path, fail_on: str, code: int) -> None:
    ended = run_workflow(repository, fail_on)
    assert ended.returncode == code, ended.stderr
    assert "my model.onnx" in ended.stdout


@pytest.mark.slow
def test_the_workflow_judges_a_model_on_its_inputs(detector: Path) -> None:
    ended = run_workflow(detector, "rejected,segments=3,error=1e-2")
    assert ended.returncode == 0, ended.stderr
    name, record = ended.stdout.split("\n", 1)
    assert name == "models of text/angle.onnx"
    assert json.loads(record)["inputs"] == "inputs: 3 of angle.inputs"
    assert run_workflow(detector, "error=0").returncode == 1
    shutil.rmtree(detector / "models of text" / "angle.inputs")
    ended = run_workflow(detector, "rejected")  # the options are refused, and the shape is missing
    assert ended.returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize(("fail_on", "code"), [("rejected,segments=3,error=1e-2", 0), ("error=0", 1)])
def test_the_hook_judges_a_model_on_its_inputs(detector: Path, fail_on: str, code: int) -> None:
    (detector / "models of text" / "angle.check").unlink()  # what is staged counts
    ended = run_hook(detector, HEXANE_FAIL_ON=fail_on)
    assert ended.returncode == code, ended.stderr
    assert ("of output y on" in ended.stderr) == bool(code)


@pytest.mark.slow
def test_the_hook_judges_a_model_on_inputs_that_were_committed_before(detector: Path) -> None:
    assert run_hook(detector).returncode == 0
    onnx.save(from_paddle(classes=3), detector / "models of text" / "angle.onnx")
    subprocess.run(["git", "add", "."], cwd=detector, check=True)
    assert "inputs: 3 of angle.inputs" in run_hook(detector, HEXANE_FAIL_ON="error=0").stderr
