"""Tests the life of a program: compiling, loading, unloading, caching, use by threads and by forked processes."""

import os
import select
import signal
import tempfile
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from hexane import _core
from hexane.errors import DeviceError, Error
from hexane.graph import Array
from hexane.report.mac.probe import Context, Probe, Values
from hexane.report.mac.texts import relu, sum_of_blobs, weights_for
from hexane.targets.dispatch import dispatch

SHAPE = (1, 4, 3, 32)
X = (np.arange(384) % 7 - 3).astype(np.float16).reshape(SHAPE)
FORK_SECONDS = 20.0


def run(program: _core.DeviceProgram, x: Array = X) -> Array:
    """Runs a loaded program, and returns its only output."""
    facts = dispatch()
    (result,) = program.run({"x": x}, qos=facts.default_qos, least_surface_bytes=facts.least_surface_bytes).values()
    return result


def is_relu(program: _core.DeviceProgram) -> bool:
    return np.array_equal(run(program), np.maximum(X, 0))


def text(context: Context, name: str) -> str:
    return relu(SHAPE, f"{name}_{context.salt}")


def compiled(context: Context, name: str) -> tuple[_core.Device, _core.DeviceProgram]:
    device = context.device()
    return device, device.compile(text(context, name), {}, dispatch().default_qos)


def folders(context: Context, name: str) -> list[str]:
    """Returns the file names in the program's folder; empty without a folder."""
    word = f"{name}_{context.salt}"
    places = {os.environ.get("TMPDIR", ""), os.environ.get("TMP", ""), tempfile.gettempdir()} - {""}
    paths = [
        path for place in sorted(places) for deep in ("*", "*/*") for path in Path(place).glob(f"{deep}/model.mil")
    ]
    for path in paths:
        try:
            if word in path.read_text(errors="replace"):
                return sorted(str(p.relative_to(path.parent)) for p in path.parent.rglob("*") if p.is_file())
        except OSError:
            continue  # another process deleted the file
    return []


def load_unload_load(context: Context) -> Values:
    qos = dispatch().default_qos
    device, program = compiled(context, "again")
    record: Values = {"after_compile": folders(context, "again")}
    program.load(qos)
    record["first"] = is_relu(program)
    record["after_load"] = folders(context, "again")
    program.unload()
    record["after_unload"] = folders(context, "again")
    program.load(qos)
    record |= {"second": is_relu(program), "counters": device.counters}
    seen = bool(record["after_load"])  # False if the folders are in an unknown place
    return record | {"unload_deletes": not record["after_unload"] if seen else "not seen"}


def two_models_of_one_text(context: Context) -> Values:
    """Unloads one of two models, which may delete the other model's files, and then compiles a third model."""
    qos = dispatch().default_qos
    device, first = compiled(context, "shared")
    second = device.compile(text(context, "shared"), {}, qos)
    first.load(qos)
    first.unload()
    second.load(qos)
    third = device.compile(text(context, "shared"), {}, qos)
    third.load(qos)
    return {"second": is_relu(second), "third": is_relu(third), "counters": device.counters}


def load_without_program(context: Context) -> Values:
    """Loads a program that was deleted from the service's cache."""
    device, program = compiled(context, "forgotten")
    program.purge()
    program.load(dispatch().default_qos)
    return {"right": is_relu(program), "counters": device.counters}


def keep(context: Context) -> Values:
    device, program = compiled(context, "kept")
    program.load(dispatch().default_qos)
    return {"right": is_relu(program), "counters": device.counters}


def find(context: Context) -> Values:
    device = context.device()
    program = device.find(text(context, "kept"), {})
    if program is None:
        return {"found": False, "counters": device.counters}
    program.load(dispatch().default_qos)
    return {"found": True, "right": is_relu(program), "counters": device.counters}


def purge(context: Context) -> Values:
    device = context.device()
    program = device.find(text(context, "kept"), {})
    if program is None:
        return {"found": False}
    program.purge()
    return {"found": True, "found_after_purge": device.find(text(context, "kept"), {}) is not None}


def new_weights(context: Context, num_files: int = 1) -> Values:
    """Compiles one MIL text with different weights in turn: results must follow the weights."""
    device, qos = context.device(), dispatch().default_qos
    right = []
    for start in (1, 2, 1, 3):
        values = weights_for(4, start)
        mil, files = sum_of_blobs(values, num_files, f"new{num_files}_{context.salt}")
        program = device.compile(mil, files, qos)
        program.load(qos)
        right.append(bool(np.array_equal(run(program), X + sum(values))))
    return {"right": right, "all_right": all(right), "counters": device.counters}


def threads(context: Context) -> Values:
    """Runs two programs in four threads, many times."""
    qos = dispatch().default_qos
    device, program = compiled(context, "threads")
    values = weights_for(4)
    other = device.compile(*sum_of_blobs(values, 1, f"threads_{context.salt}"), qos)
    program.load(qos)
    other.load(qos)

    def work(number: int) -> int:
        wrong = 0
        for i in range(50):
            x = X + np.float16((number + i) % 3)
            one, want = (program, np.maximum(x, 0)) if (number + i) % 2 else (other, x + sum(values))
            wrong += not np.array_equal(run(one, x), want)
        return wrong

    with ThreadPoolExecutor(4) as pool:
        wrong = sum(pool.map(work, range(4)))
    return {"calls": 200, "wrong": wrong}


def shared_program(context: Context) -> Values:
    """Runs one program in two threads."""
    _, program = compiled(context, "one")
    program.load(dispatch().default_qos)
    with ThreadPoolExecutor(2) as pool:
        right = list(pool.map(lambda _: is_relu(program), range(100)))
    return {"calls": len(right), "wrong": right.count(False)}


def fork(context: Context) -> Values:
    """Forks a process with a loaded program: can the child still use the engine, and the parent after it?"""
    _, program = compiled(context, "fork")
    program.load(dispatch().default_qos)
    before = is_relu(program)
    child = _in_a_child(lambda: "right" if is_relu(program) else "wrong")
    return {"before": before, "child": child, "after": is_relu(program)}


def _in_a_child(body: Callable[[], str]) -> str:
    """Runs `body` in a forked child, and returns its text, or a note that it gave none."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns about forking with threads.
        child = os.fork()
    if child == 0:
        try:
            said = body()
        except Error as error:
            said = f"error: {error}"
        except BaseException as error:
            said = f"raised {error!r}"
        os.write(writer, said.encode()[:4000])
        os._exit(0)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], FORK_SECONDS)
    said = os.read(reader, 4096).decode() if ready else f"no answer within {FORK_SECONDS:g} s"
    os.close(reader)
    if not ready:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return said or "ended without a word"


def alive(context: Context) -> Values:
    """Checks, also after a case that hung or crashed, that a program compiles, loads and runs."""
    _, program = compiled(context, "alive")
    program.load(dispatch().default_qos)
    return {"right": is_relu(program)}


def refused(context: Context) -> Values:
    """Returns an error of the framework with the chain of its causes."""
    try:
        context.device().compile(relu(SHAPE, "y").replace("relu(", "no_such_op("), {}, dispatch().default_qos)
    except DeviceError as error:
        return {"error": str(error), "code": error.code, "causes": 1 + str(error).count("; caused by ")}
    return {"error": "none: it compiled"}


LIFECYCLE = Probe(
    "files",
    "What does the framework do with a program's folder, and with programs of one text?",
    {
        "load, unload, load": load_unload_load,
        "two models of one text": two_models_of_one_text,
        "load of a forgotten program": load_without_program,
    },
)
KEPT = Probe(
    "kept",
    "Does the service keep programs for other processes, until it is told to forget them?",
    {"compile": keep, "find in another process": find, "purge": purge, "find after the purge": find},
)
WEIGHTS = Probe(
    "new weights",
    "Do results follow new weights under the same text?",
    {"one file": new_weights, "several files": lambda context: new_weights(context, 3)},
)
THREADS = Probe(
    "threads",
    "Are results right when threads use the engine at the same time?",
    {"two programs": threads, "one program": shared_program},
)
FORK = Probe("fork", "What does the engine say to a forked process?", {"fork": fork})
ERRORS = Probe("errors", "How deep are errors, and which codes do they have?", {"an op that is none": refused})
ALIVE: Mapping[str, Callable[[Context], Values]] = {"alive": alive}
