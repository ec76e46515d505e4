"""The time to write MIL and weights to disk, next to ANEForge and to a plain write of the bytes, and the time per
constant for many constants."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_whole_networks import model_path

import hexane as hx
from hexane.emit.mil.write import write_mil

EMITTERS = Path(__file__).with_name("emitters.py")


@pytest.mark.parametrize("contestant", ["hexane", "peer"])
@pytest.mark.parametrize("peer", ["ANEForge", "writing the bytes"])
def test_resnet18_to_disk(
    peer: str, contestant: str, contest: Callable[..., None], pytestconfig: Any, tmp_path: Path
) -> None:
    """From Hexane's and ANEForge's graph of the model in fp32 to files in an empty folder, without syncing them to the
    disk."""
    contestant = peer if contestant == "peer" else contestant
    model = model_path("resnet18_224", pytestconfig.getoption("--models"))
    command = [sys.executable, str(EMITTERS), contestant, str(model), str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as emitter:

        def ask(what: str) -> None:
            assert emitter.stdin is not None
            assert emitter.stdout is not None
            print(what, file=emitter.stdin, flush=True)
            assert emitter.stdout.readline() == "done\n"

        ask("clear")
        group = f"ResNet-18 to disk, next to {peer} | 1 | {'<= 40 ms' if peer == 'ANEForge' else '-'}"
        contest(group, contestant, lambda: ask("write"), rounds=15, setup=lambda: ask("clear"))
        assert sum(p.stat().st_size for p in (tmp_path / "out").rglob("*")) > 23_000_000


def chain(length: int) -> hx.Graph:
    y = hx.input("x", (1, 8), "fp16")
    for i in range(length):
        y = hx.mul(y, np.array([i % 2048, i // 2048, 1, 2, 3, 4, 5, 6], np.float16))
    return hx.graph(y)


def test_many_constants_take_linear_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Seconds of CPU time, the best of three."""
    seconds = {}
    for length in (4000, 16_000):
        graph = chain(length)
        times = []
        for _ in range(3):
            begin = time.process_time()
            write_mil(graph)
            times.append(time.process_time() - begin)
        seconds[length] = min(times)
    with capsys.disabled():
        print(
            f"\n16,000 constants: {seconds[16_000]:.2f} s, {seconds[16_000] / seconds[4000] / 4:.2f} times as much each"
            " as 4,000"
        )


MEMORY = """
import resource, numpy as np
from hexane import _core
arrays = [("fp16", np.full(1 << 22, i, np.float16)) for i in range(16)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
file, _ = _core.blob_write(arrays)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after - before) * 1024 / len(file))
"""


def test_the_writer_takes_the_memory_of_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    ratio = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True).stdout.strip()
    with capsys.disabled():
        print(f"\nmemory of the writer in addition to the arrays: {float(ratio):.2f} times their bytes")
