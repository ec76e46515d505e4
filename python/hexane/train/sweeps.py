"""Runs a function for several configs on any executor. Results are kept if the sweep ends early."""

import hashlib
import json
import os
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from hexane import _core
from hexane.errors import Error

CONFIG = "config.json"
RESULT = "result.json"
VERSION = 1
DIGITS = 16  # digits of a config's hash in its folder's name


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The outcome of a config. value: the function's result; error: the failure, if any, naming the config; traceback:
    of the failure; folder: this config's, or None."""

    config: Any
    value: Any = None
    error: Error | None = None
    traceback: str = ""
    folder: Path | None = None


def sweep(
    configs: Iterable[Any],
    executor: Executor | None = None,
    *,
    run: Callable[..., Any],
    folder: str | os.PathLike[str] | None = None,
) -> list[SweepResult]:
    """Calls `run` for each config, and returns the results in the order of the configs.

    executor: any of `concurrent.futures`, such as a ProcessPoolExecutor, Dask's `Client.get_executor()` or
    `mpi4py.futures.MPIPoolExecutor`; it must be able to transfer `run` and the configs; None: calls run one after the
    other in this process. If a call raises, its result has the error, and the other calls continue.

    folder: None: `run(config)` is called. With a folder, `run(config, path)`: path is a folder inside it,
    named by a hash of the config. The inner folder has config.json, and result.json after the function has returned. A
    repeated sweep runs only configs without a result: new, failed and interrupted ones; these find their earlier files
    in their folders. Configs and values must be JSON; values are returned as read from JSON. Processes on other
    machines need access to the same folder.

    Ctrl-C ends the sweep: waiting configs are cancelled, and running ones end as their executor decides.

    With a folder, raises Error for a duplicate config, for a config that is not JSON, for a folder that cannot be
    written to, and for damaged results in it.
    """
    listed = list(configs)
    folders = [None] * len(listed) if folder is None else _folders(Path(folder).absolute(), listed)
    results: dict[int, SweepResult] = {}
    for number, (config, own) in enumerate(zip(listed, folders, strict=True)):
        if own is not None and (own / RESULT).exists():
            results[number] = SweepResult(config, _kept(own / RESULT), folder=own)
    todo = [number for number in range(len(listed)) if number not in results]
    if executor is None:
        for number in todo:
            results[number] = _result(listed[number], folders[number], _job(run, listed[number], folders[number]))
        return [results[number] for number in range(len(listed))]
    futures: dict[int, Future[_Outcome]] = {}
    try:
        for number in todo:
            try:
                # Dask returns the result of an earlier call with equal arguments, so each call gets a unique argument.
                once = uuid4().hex
                futures[number] = executor.submit(_job, run, listed[number], folders[number], once)
            except BrokenExecutor as error:
                results[number] = _result(listed[number], folders[number], _failed(error))
        for number, future in futures.items():
            try:
                outcome = future.result()
            except Exception as error:  # an error of the executor: `outcome` has errors of `run`
                outcome = _failed(error)
            results[number] = _result(listed[number], folders[number], outcome)
    finally:  # also on Ctrl-C
        for future in futures.values():
            future.cancel()
    return [results[number] for number in range(len(listed))]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome of one call. A failure is text: exceptions of another process may not unpickle in this one."""

    value: Any = None
    error: str = ""
    traceback: str = ""


def _job(run: Callable[..., Any], config: Any, folder: Path | None, once: str = "") -> _Outcome:
    """Runs one config, on a worker of the executor. once: a unique text in each call."""
    try:
        if folder is None:
            return _Outcome(run(config))
        folder.mkdir(parents=True, exist_ok=True)
        _core.save_file(str(folder / CONFIG), (_json("config", config, indent=2) + "\n").encode())
        text = _json("value", {"version": VERSION, "value": run(config, folder)})
        _core.save_file(str(folder / RESULT), (text + "\n").encode())
        return _Outcome(json.loads(text)["value"])
    except (Exception, SystemExit) as error:
        return _failed(error)


def _failed(error: BaseException) -> _Outcome:
    named = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return _Outcome(error=named, traceback="".join(traceback.format_exception(error)))


def _result(config: Any, folder: Path | None, outcome: _Outcome) -> SweepResult:
    if not outcome.error:
        return SweepResult(config, outcome.value, folder=folder)
    error = Error(f"[train.sweep] config {_short(config)}: {outcome.error}")
    return SweepResult(config, None, error, outcome.traceback, folder)


def _folders(top: Path, configs: list[Any]) -> list[Path | None]:
    """Returns a folder for each config. Raises Error for a duplicate config, or if `top` cannot be created."""
    try:
        top.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Error(f"[train.sweep] folder: {top}: {error.strerror}, need a place that can be written to") from None
    by_name: dict[str, Any] = {}
    for config in configs:
        name = hashlib.sha256(_json(f"config {_short(config)}", config).encode()).hexdigest()[:DIGITS]
        if name in by_name:
            raise Error(f"[train.sweep] configs: got {_short(config)} twice, need each once in a folder")
        by_name[name] = config
    return [top / name for name in by_name]


def _kept(path: Path) -> Any:
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise Error(f"[train.sweep] {path}: {error}, need a result of a sweep, or no file, to run it again") from None
    if not isinstance(record, dict) or record.get("version") != VERSION or "value" not in record:
        raise Error(f"[train.sweep] {path}: got no result of a sweep, need one, or no file, to run it again")
    return record["value"]


def _json(what: str, value: Any, indent: int | None = None) -> str:
    """Returns JSON with sorted keys: the same text for equal values. NumPy numbers become numbers."""
    try:
        return json.dumps(value, sort_keys=True, indent=indent, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise Error(f"[train.sweep] {what}: {error}, need values that JSON can represent") from None


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"got {type(value).__name__}")


def _short(config: object) -> str:
    text = repr(config)
    return text if len(text) <= 200 else text[:197] + "..."
