"""The same function for several configs, on any executor."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pytest

import hexane as hx
import sweep_runs

MISSING_DASK = "Dask is not installed: pip install distributed"
MISSING_MPI = "mpi4py or mpirun is not installed: pip install mpi4py, apt-get install openmpi-bin"


@contextmanager
def executor(kind: str) -> Iterator[Executor | None]:
    if kind == "none":
        yield None
    elif kind == "threads":
        with ThreadPoolExecutor(2) as pool:
            yield pool
    elif kind == "processes":
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            yield pool
    else:
        distributed: Any = pytest.importorskip("distributed", reason=MISSING_DASK)
        with distributed.Client(processes=False, n_workers=1, threads_per_worker=2, dashboard_address=None) as client:
            yield client.get_executor()


KINDS = pytest.mark.parametrize("kind", ["none", "threads", "processes", "dask"])


@KINDS
def test_results_are_in_the_order_of_the_configs_and_errors_among_them(kind: str) -> None:
    configs = [{"x": x, "seconds": 0.3 if x == 1 else 0} for x in (1, 3, 2, 4, 5, 6)]
    with executor(kind) as pool:
        found = hx.train.sweep(configs, pool, run=sweep_runs.square)
    assert [one.config for one in found] == configs
    assert [one.value for one in found] == [1.0, None, 4.0, None, None, 36.0]
    assert [one.error is None for one in found] == [True, False, True, False, False, True]
    text = str(found[1].error)
    assert text == "[train.sweep] config {'x': 3, 'seconds': 0}: ValueError: three is too many"
    assert "in square" in found[1].traceback
    assert "Unreadable: four too" in str(found[3].error)
    assert "SystemExit: 7" in str(found[4].error)


@pytest.mark.parametrize("kind", ["none", "threads", pytest.param("processes", marks=pytest.mark.slow), "dask"])
def test_finished_configs_are_not_run_again(kind: str, tmp_path: Path) -> None:
    configs = [{"x": x} for x in (1, 2, 3)]
    (tmp_path / "fail").touch()
    with executor(kind) as pool:
        first = hx.train.sweep(configs, pool, run=sweep_runs.counted, folder=tmp_path)
        assert [one.error is None for one in first] == [True, True, False]
        (tmp_path / "fail").unlink()
        more = [{"x": 9}, *configs[::-1]]
        second = hx.train.sweep(more, pool, run=sweep_runs.counted, folder=tmp_path)
    assert [one.value["x"] for one in second] == [9.0, 3.0, 2.0, 1.0]
    assert second[3] == first[0]
    assert [calls(one) for one in second] == [1, 2, 1, 1]
    assert json.loads((folder_of(second[1]) / "config.json").read_text()) == {"x": 3}


def folder_of(result: hx.train.SweepResult) -> Path:
    assert result.folder is not None
    return result.folder


def calls(result: hx.train.SweepResult) -> int:
    return len((folder_of(result) / "calls").read_text())


@pytest.mark.parametrize("kind", ["none", "processes"])
def test_an_interrupted_sweep_goes_on(kind: str, tmp_path: Path) -> None:
    configs = [{"x": x} for x in (1, 2, 6)]
    (tmp_path / "stop").touch()
    with pytest.raises(KeyboardInterrupt), executor(kind) as pool:
        hx.train.sweep(configs, pool, run=sweep_runs.counted, folder=tmp_path)
    (tmp_path / "stop").unlink()
    found = hx.train.sweep(configs, run=sweep_runs.counted, folder=tmp_path)
    assert [one.value["x"] for one in found] == [1.0, 2.0, 6.0]
    assert [calls(one) for one in found][:2] == [1, 2]


def test_trainings_find_their_checkpoints(tmp_path: Path) -> None:
    configs = [{"lr": lr, "steps": 20} for lr in (0.05, 0.1, 0.2)]
    with executor("processes") as pool:
        found = hx.train.sweep(configs, pool, run=sweep_runs.trained, folder=tmp_path)
    assert [one.error for one in found] == [None] * 3
    for one in found:
        (folder_of(one) / "result.json").unlink()
        alone = sweep_runs.trained(one.config, tmp_path / str(one.config["lr"]))
        assert one.value == alone
    log = folder_of(found[0]) / "log.jsonl"
    before = log.read_text()
    again = hx.train.sweep(configs, run=sweep_runs.trained, folder=tmp_path)
    assert [one.value for one in again] == [one.value for one in found]
    assert log.read_text() == before
    target = np.array([1.0, -2.0, 0.5, 3.0])
    off = [np.abs(one.value - target).max() for one in found]
    assert off == sorted(off, reverse=True)


def test_values_and_configs_that_json_cannot_say(tmp_path: Path) -> None:
    with pytest.raises(hx.Error, match=r"\[train.sweep\] config \{'x': <object .*need values that JSON can represent"):
        hx.train.sweep([{"x": object()}], run=sweep_runs.counted, folder=tmp_path)
    with pytest.raises(hx.Error, match=r"got \{'x': 1\} twice, need each once in a folder"):
        hx.train.sweep([{"x": 1}, {"x": 1}], run=sweep_runs.counted, folder=tmp_path)
    found = hx.train.sweep([{"x": 1}], run=lambda config, folder: {1, 2}, folder=tmp_path)
    assert "value: got set, need values that JSON can represent" in str(found[0].error)
    assert not (folder_of(found[0]) / "result.json").exists()
    found = hx.train.sweep([{"x": np.int64(1)}], run=lambda config, folder: (np.inf, (2,)), folder=tmp_path)
    assert found[0].value == [np.inf, [2]]


def test_damaged_results_and_places_are_refused(tmp_path: Path) -> None:
    found = hx.train.sweep([{"x": 1}], run=sweep_runs.counted, folder=tmp_path)
    path = folder_of(found[0]) / "result.json"
    for text in ("", path.read_text()[:-4], "[1]", '{"version": 2, "value": 1}', '{"version": 1}'):
        path.write_text(text)
        with pytest.raises(hx.Error, match=r"result\.json: .*need a result of a sweep|need one, or no file"):
            hx.train.sweep([{"x": 1}], run=sweep_runs.counted, folder=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(hx.Error, match=r"folder: .*need a place that can be written to"):
        hx.train.sweep([{"x": 1}], run=sweep_runs.counted, folder=tmp_path / "file")
    assert hx.train.sweep([], run=sweep_runs.counted, folder=tmp_path) == []


def test_a_worker_that_is_killed_is_an_error_of_its_configs() -> None:
    with executor("processes") as pool:
        found = hx.train.sweep([{"x": 1}, {"x": 2}], pool, run=killed)
    assert all("BrokenProcessPool" in str(one.error) for one in found)


def killed(config: dict[str, Any]) -> None:
    os._exit(1)


SCRIPT = """
import sys
from mpi4py.futures import MPIPoolExecutor
import hexane as hx
import sweep_runs

if __name__ == "__main__":
    with MPIPoolExecutor() as pool:
        for folder in sys.argv[1:]:
            found = hx.train.sweep([{"x": x} for x in (1, 3, 2)], pool, run=sweep_runs.counted, folder=folder)
            print([one.value and one.value["x"] for one in found], [one.error and str(one.error) for one in found])
"""


def test_mpi_runs_a_sweep(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py", reason=MISSING_MPI)
    if which("mpirun") is None:
        pytest.skip(MISSING_MPI)
    script, folder = tmp_path / "sweep.py", tmp_path / "runs"
    script.write_text(SCRIPT)
    folder.mkdir()
    (folder / "fail").touch()
    command = ["mpirun", "--oversubscribe", "-n", "3", sys.executable, "-m", "mpi4py.futures", str(script)]
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    path = os.pathsep.join(sys.path)
    ended = subprocess.run(
        [*command, str(folder), str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **allowed, "PYTHONPATH": path},
    )
    assert ended.returncode == 0, ended.stderr
    line = "[1.0, None, 2.0] [None, \"[train.sweep] config {'x': 3}: ValueError: three is too many\", None]"
    assert ended.stdout.splitlines() == [line, line]
    marks = sorted(len(path.read_text()) for path in folder.glob("*/calls"))
    assert marks == [1, 1, 2]
