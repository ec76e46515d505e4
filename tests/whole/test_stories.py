"""The example that trains a decoder on the documentation of installed packages: its text, its commands, and that the
decoder learns."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from seeded_text import seeded_text

pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install 'hexane[train]'")
STORIES = Path(__file__).parents[2] / "examples" / "stories"
CORPUS = "import sys; sys.path.insert(0, sys.argv[1]); from corpus import documents; print(documents(60_000))"


def run(script: str, *arguments: object) -> str:
    command = [sys.executable, str(STORIES / script), *map(str, arguments), "--threads", "1"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def entries(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def losses(folder: Path) -> list[float]:
    return [entry["loss"] for entry in entries(folder)]


def test_the_text_is_the_same_each_time_and_each_document_is_there_once() -> None:
    found = [
        subprocess.check_output(
            [sys.executable, "-c", CORPUS, STORIES], text=True, env={**os.environ, "PYTHONHASHSEED": seed}
        )
        for seed in ("1", "2")
    ]
    assert found[0] == found[1]
    documents = eval(found[0])
    assert sum(map(len, documents)) == 60_000
    assert len({*documents}) == len(documents) > 5


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the script makes in few steps."""
    folder = tmp_path_factory.mktemp("stories") / "new"
    out = run("train.py", "-o", folder, "--characters", 60_000, "--steps", 4)
    commands = [line.split()[2] for line in out.splitlines() if line.startswith("$ hexane ")]
    assert commands == ["tokenize", "tokenize", "train", "generate"]
    assert "Return" in out.splitlines()[-1] or "\nReturn" in out
    return folder


def test_one_command_makes_text_trains_and_generates(stories: Path) -> None:
    found = entries(stories / "run")
    assert [entry["step"] for entry in found] == [1, 2, 3, 4]
    assert all(entry["sample"].startswith("Return") for entry in found)
    assert abs(found[0]["loss"] - math.log(512)) < 0.3
    train, held = ((stories / f"{name}.txt").read_text().split("<|endoftext|>") for name in ("train", "held_out"))
    assert not {*train} & {*held}
    assert len(train) > 5 * len(held) > 0
    assert sum(map(len, train + held)) == 60_000


def test_the_command_goes_on_where_it_ended(stories: Path) -> None:
    tokenizer = (stories / "tokenizer.json").read_bytes()
    run("train.py", "-o", stories, "--characters", 60_000, "--steps", 5)
    assert len(entries(stories / "run")) == 5
    assert (stories / "tokenizer.json").read_bytes() == tokenizer


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tokens of a text that is the same on every machine, other than that of installed packages."""
    folder = tmp_path_factory.mktemp("seeded")
    (folder / "train.txt").write_text(seeded_text(1, 60_000), "utf-8")
    tokenizer = ["--learn", "512", "--tokenizer", folder / "tokenizer.json"]
    command = [sys.executable, "-m", "hexane", "tokenize", folder / "train.txt", *tokenizer, "-o", folder / "train.bin"]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def test_the_curves_of_chips_are_drawn(seeded: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = run("on_chips.py", seeded, "--steps", 12, "--plot", tmp_path / "curves.svg")
    rows = [line.split("|")[1:-1] for line in out.splitlines() if line.startswith("| ")][1:]
    assert [row[0].strip() for row in rows] == ["host, fp32", "M4, ieee", "M4, engine"]
    assert [float(row[2]) < bound for row, bound in zip(rows, (1e-9, 0.01, 0.05), strict=True)] == [True] * 3
    assert "<svg" in (tmp_path / "curves.svg").read_text()


@pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")
@pytest.mark.parametrize("target", ["M1", "M4"])
def test_in_ieee_arithmetic_a_chip_s_curve_is_that_of_fp32(seeded: Path, target: str) -> None:
    config = hx.train.LlamaConfig(vocab=512, dim=64, hidden=160, layers=2, heads=4, seq=64)
    tokens = hx.train.TokenFile(seeded / "train.bin", vocab=512)
    windows = hx.train.TokenWindows(tokens, batch=4, seq=64, seed=1)
    curves = []
    for options, scale in ((hx.Options(), 1.0), (hx.Options(target=target, numerics="ieee", device="cpu"), 8192.0)):
        model = hx.train.llama(config, batch=4, seed=1)
        trainer = hx.train.Trainer(
            model.loss,
            list(model.params.values()),
            hx.train.adamw(1e-3),  # a gradient that fp16 takes for 0 moves a rare word by the whole rate in fp32
            clip=1.0,
            loss_scale=scale,
            options=options,
            threads=1,
            programs=options.target != "host",
        )
        curves.append([entry["loss"] for entry in trainer.fit(windows, 40, progress=False)])
    assert np.mean(curves[0][-5:]) < curves[0][0] - 0.5
    np.testing.assert_allclose(curves[1], curves[0], atol=0.01)


@pytest.mark.slow
def test_a_small_decoder_learns_the_documentation_of_installed_packages(tmp_path: Path) -> None:
    """In 2 to 4 minutes on one core."""
    run("train.py", "-o", tmp_path)
    found = entries(tmp_path / "run")
    assert abs(found[0]["loss"] - math.log(512)) < 0.1
    assert np.mean(losses(tmp_path / "run")[-50:]) < 3.0
    evaluations = [entry["evaluation.loss"] for entry in found if "evaluation.loss" in entry]
    assert len(evaluations) == 10
    assert evaluations[-1] < evaluations[0] - 0.8
