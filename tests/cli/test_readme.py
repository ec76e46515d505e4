"""What the README shows runs as it stands there."""

import re
from pathlib import Path

import numpy as np
import pytest

from command import Cli
from hexane.graph import Array

README = (Path(__file__).parents[2] / "README.md").read_text()
COMMANDS = sorted(set(re.findall(r"^hexane (\w+)([^#\n]*)", README, re.MULTILINE)))


def test_the_examples_in_python_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order they stand in, in a folder of their own. The data is the reader's."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)

    def batches(number: int) -> dict[str, Array]:
        return {
            "x": rng.standard_normal((64, 784)).astype(np.float32),
            "labels": rng.integers(0, 10, 64).astype(np.int32),
        }

    found: dict[str, object] = {"batches": batches}
    network, training = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(network, "README.md", "exec"), found)
    assert getattr(found["out"], "shape", None) == (1, 8, 1, 1)
    exec(compile(training, "README.md", "exec"), found)
    assert len((tmp_path / "run" / "log.jsonl").read_text().splitlines()) == 300
    assert (tmp_path / "run" / "checkpoint.hxc").exists()


@pytest.mark.parametrize(("command", "arguments"), COMMANDS)
def test_every_command_has_the_options_it_is_shown_with(cli: Cli, command: str, arguments: str) -> None:
    shown = cli(command, "--help").out
    for option in re.findall(r"(?<!\S)--?[a-z-]+", arguments):
        assert option in shown


def test_every_link_leads_somewhere() -> None:
    root = Path(__file__).parents[2]
    for page in (root / "README.md", *(root / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name}: {link}"
