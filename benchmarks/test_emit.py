"""How long it takes to write MIL with its weights to disk, beside writing that many bytes, and whether many constants cost more each."""

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
from hexane import _core
from hexane.emit.mil import Mil, emit_mil
from hexane.emit.mil.form import mil_form
from hexane.emit.mil.write import write_mil
from hexane.importers.onnx import import_onnx
from hexane.pipeline import divide
from hexane.runtime.mil import save_mil
from hexane.stages.join import Parts
from hexane.targets.query import load_chip

H13 = load_chip("h13")


def resnet18(config: Any) -> hx.Graph:
    """The one segment of ResNet-18."""
    graph, segments = divide(import_onnx(model_path("resnet18_224", config.getoption("--models"))), H13)
    (piece,) = Parts(graph, segments).graphs()
    return piece


@pytest.mark.parametrize("contestant", ["hexane", "writing the bytes"])
@pytest.mark.parametrize("part", ["from fp16", "from the model"])
def test_resnet18_to_disk(
    part: str, contestant: str, contest: Callable[..., None], pytestconfig: Any, tmp_path: Path
) -> None:
    """Both sync to the disk. From fp16: text and weights of a graph in MIL's form; from the model: passes and rounding too."""
    piece = resnet18(pytestconfig)
    form = mil_form(piece, H13)
    mil = emit_mil(piece, H13)

    def ours() -> object:
        made: Mil = write_mil(form) if part == "from fp16" else emit_mil(piece, H13)
        return save_mil(made, tmp_path)

    def bytes_alone() -> object:
        _core.save_file(str(tmp_path / "weights.bin"), mil.weights)
        _core.save_file(str(tmp_path / "text"), mil.text.encode())
        return None

    contest(
        f"MIL of ResNet-18 to disk, {part} | 1 | -",
        contestant,
        ours if contestant == "hexane" else bytes_alone,
        rounds=9,
    )


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
            f"\n16,000 constants: {seconds[16_000]:.2f} s, {seconds[16_000] / seconds[4000] / 4:.2f} times as much each as 4,000"
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
        print(f"\nmemory of the writer beside the arrays: {float(ratio):.2f} of their bytes")
