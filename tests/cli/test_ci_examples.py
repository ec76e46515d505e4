"""The hook and the workflow of examples/ci, as users copy them."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from command import linear_model, weights

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
    text = (EXAMPLES / "check-models.yml").read_text(encoding="utf-8")
    script = textwrap.dedent(text.rpartition("run: |\n")[2])
    variables = environment(HEXANE_TARGETS="A14,M4", HEXANE_FAIL_ON=fail_on)
    ended = subprocess.run(
        ["bash", "-e", "-c", script], cwd=repository, env=variables, capture_output=True, text=True, check=False
    )
    assert ended.returncode == code, ended.stderr
    assert "my model.onnx" in ended.stdout
