"""`mpirun -n N hexane train`: one model in several processes, and what is left when one of them dies."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hexane.graph import Array
from hexane.runtime.states import read_states
from training_logs import read_log

SIZES = ("--dim", 32, "--hidden", 48, "--layers", 2, "--heads", 4, "--kv-heads", 2, "--vocab", 40, "--seq", 16)
COMMON = (*SIZES, "--accumulate", 2, "--threads", 1, "--lr", 1e-2)
LIMIT = 120  # seconds


def works() -> bool:
    """Whether mpirun starts two processes that mpi4py connects."""
    if shutil.which("mpirun") is None:
        return False
    ask = "from mpi4py import MPI; assert MPI.COMM_WORLD.Get_size() == 2"
    try:
        return subprocess.run(mpirun(2, sys.executable, "-c", ask), capture_output=True, timeout=LIMIT).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def mpirun(count: int, *command: object) -> list[str]:
    return ["mpirun", "--oversubscribe", "-n", str(count), *map(str, command)]


@pytest.fixture(scope="module", autouse=True)
def _with_mpi() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
        patch.setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        if not works():
            pytest.skip("no mpirun with mpi4py: Debian's openmpi-bin, and pip install mpi4py")
        yield


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Each id is mostly followed by the next one."""
    rng = np.random.default_rng(4)
    steps = np.where(rng.random(4000) < 0.9, 1, rng.integers(0, 40, 4000))
    path = tmp_path / "tokens.bin"
    (np.cumsum(steps) % 40).astype("<u2").tofile(path)
    return path


def hexane(*args: object) -> list[str]:
    return [sys.executable, "-m", "hexane", "train", *map(str, COMMON), *map(str, args)]


def train(count: int, *args: object, **options: Any) -> "subprocess.CompletedProcess[str]":
    command = mpirun(count, *hexane(*args)) if count > 1 else hexane(*args)
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, **options)


def states(run: Path) -> dict[str, Array]:
    """Of the checkpoint; options and gradients, which the next update forgets, left out."""
    found = read_states(run / "checkpoint.hxc")
    return {name: array for name, array in found.items() if name != "notes" and not name.endswith(".grad")}


def assert_same(one: Path, other: Path) -> None:
    assert read_log(one) == read_log(other)
    mine, theirs = states(one), states(other)
    assert mine.keys() == theirs.keys()
    for name, array in mine.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)
    assert (one / "model.bin").read_bytes() == (other / "model.bin").read_bytes()


def test_the_curve_is_that_of_one_process_and_a_resumed_run_has_the_same_bits(data: Path, tmp_path: Path) -> None:
    common = ("--data", data, "--schedule", "constant", "--warm-up", 2, "--eval-data", data, "--eval-every", 5)
    alone, whole, parts = tmp_path / "alone", tmp_path / "whole", tmp_path / "parts"
    for count, run, steps, *others in ((1, alone, 15, "--batch", 2), (2, whole, 15), (2, parts, 5), (2, parts, 15, "--resume")):  # fmt: skip
        ended = train(count, *common, "--steps", steps, "-o", run, *others)
        assert ended.returncode == 0, ended.stderr
    assert "on 1 thread of each of 2 ranks" in ended.stdout
    assert_same(whole, parts)
    assert read_log(whole)[-1]["tokens"] == 30 * 2 * 16  # a row of each rank
    for got, want in zip(read_log(whole), read_log(alone), strict=True):
        assert got.keys() == want.keys()
        for name in ("loss", "tokens", "lr", "evaluation.loss"):
            assert got.get(name) == pytest.approx(want.get(name), abs=1e-5), (name, got, want)


def started(run: Path, data: Path) -> "subprocess.Popen[str]":
    """A job of two processes that has written some checkpoints."""
    command = mpirun(2, *hexane("--data", data, "--steps", 10**6, "--warm-up", 1, "--checkpoint-every", 5, "-o", run))
    job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + LIMIT
    while not (run / "checkpoint.hxc").exists():
        assert job.poll() is None, job.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.02)
    return job


def process_of(job: "subprocess.Popen[str]", rank: int) -> int:
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    wanted = f"OMPI_COMM_WORLD_RANK={rank}".encode()
    (found,) = [one for one in children if wanted in Path(f"/proc/{one}/environ").read_bytes().split(b"\0")]
    return int(found)


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_rank_that_dies_ends_the_job_and_leaves_a_checkpoint(data: Path, tmp_path: Path, rank: int) -> None:
    job = started(tmp_path / "run", data)
    os.kill(process_of(job, rank), signal.SIGKILL)
    job.communicate(timeout=LIMIT)
    assert job.returncode != 0
    calls = int(states(tmp_path / "run")["calls"][0])
    assert calls > 0
    assert calls % 10 == 0
    if rank == 0:
        return
    ended = train(2, "--data", data, "--steps", calls // 2 + 3, "-o", tmp_path / "run", "--resume")
    assert ended.returncode == 0, ended.stderr
    assert [entry["call"] for entry in read_log(tmp_path / "run")] == list(range(calls + 6))


def test_an_interrupted_job_ends_after_an_update_with_a_checkpoint(data: Path, tmp_path: Path) -> None:
    job = started(tmp_path / "run", data)
    job.send_signal(signal.SIGINT)
    job.communicate(timeout=LIMIT)
    assert job.returncode != 0
    entries = read_log(tmp_path / "run")
    assert states(tmp_path / "run")["calls"] == len(entries)
    assert len(entries) % 2 == 0


def test_an_error_of_one_rank_ends_the_job(data: Path, tmp_path: Path) -> None:
    ended = train(2, "--data", data, "--steps", 4, "--batch", 3, "-o", tmp_path / "run")
    assert ended.returncode != 0
    assert re.search(r"got 3 rows for rank [01] of 2, need a multiple of the ranks", ended.stderr)


def test_without_mpi4py_nothing_is_trained(data: Path, tmp_path: Path) -> None:
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("raise ImportError('it is not there')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMPI_COMM_WORLD_SIZE": "2"}  # as mpirun says to each
    ended = train(1, "--data", data, "--steps", 4, "-o", tmp_path / "run", env=environment)
    assert ended.returncode != 0
    assert "2 processes of mpirun (OMPI_COMM_WORLD_SIZE) without mpi4py (it is not there)" in ended.stderr
    assert "pip install 'hexane[distributed]'" in ended.stderr
    assert not (tmp_path / "run").exists()


def test_an_mpi4py_of_another_mpi_is_refused(data: Path, tmp_path: Path) -> None:
    """It sees one process in each, as a launcher of another MPI leaves it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_"))}
    ended = train(1, "--data", data, "-o", tmp_path / "run", env={**environment, "PMI_SIZE": "4"})
    assert ended.returncode == 1
    assert "got 4 processes of mpirun (PMI_SIZE), of which mpi4py sees 1" in ended.stderr
    assert not (tmp_path / "run").exists()
