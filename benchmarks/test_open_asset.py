"""The time to read a Core AI asset of 100 MB as a graph, for several encodings of its weights, next to Apple's own
package for Linux (coreai-core, `--apple-python PATH`), which reads operations but no weights.

The aim is 0.3 s.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from hexane.emit.coreai.asset import save_asset
from hexane.emit.coreai.write import emit_asset
from hexane.graph import Graph
from hexane.importers.coreai import import_coreai

WIDTH, BYTES = 1024, 100_000_000
LOADER = """
import sys, coreai.runtime
from pathlib import Path
from coreai.authoring.asset import AIModelAsset
print("ready", flush=True)
for line in sys.stdin:
    AIModelAsset.load(Path(line.strip())).summary()
    print("read", flush=True)
"""


def weight(stored: str, rng: np.random.Generator) -> tuple[hx.Tensor, float]:
    """A weight of WIDTH x WIDTH, and its bytes in a file."""
    shape = (WIDTH, WIDTH)
    match stored:
        case "fp32":
            return hx.const(rng.standard_normal(shape, np.float32)), WIDTH * WIDTH * 4
        case "palette4:g32":
            indices, tables = rng.integers(0, 16, shape), rng.standard_normal((WIDTH // 32, 1, 16), np.float32)
            return hx.decode_palette(hx.const(indices.astype(np.uint8)), hx.const(tables)), WIDTH * WIDTH / 2
        case "palette4":
            indices, table = rng.integers(0, 16, shape).astype(np.int32), rng.standard_normal(16, np.float32)
            return hx.gather(hx.const(table), hx.const(indices), axis=0), WIDTH * WIDTH / 2
        case "blockwise4:b32":
            numbers, scales = rng.integers(-8, 8, shape), rng.random((WIDTH, WIDTH // 32), np.float32) + 1
            return hx.decode_blocks(hx.const(numbers.astype(np.int8)), hx.const(scales)), WIDTH * WIDTH * 5 / 8
        case "int8":
            numbers, scales = rng.integers(-127, 128, shape), rng.random(WIDTH, np.float32) + 1
            return hx.dequantize(hx.const(numbers.astype(np.int8)), hx.const(scales)), WIDTH * WIDTH
    raise AssertionError(stored)


def network(stored: str) -> Graph:
    rng = np.random.default_rng(0)
    x, size = hx.input("x", (1, WIDTH)), 0.0
    while size < BYTES:
        w, more = weight(stored, rng)
        x, size = hx.relu(hx.linear(x, w)), size + more
    return hx.graph(x)


@pytest.fixture(scope="module", params=["fp32", "int8", "palette4:g32", "blockwise4:b32", "palette4"])
def asset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The name of the weights' encoding, and the asset, which is removed afterwards."""
    folder = tmp_path_factory.mktemp("asset") / "net.aimodel"
    save_asset(folder, emit_asset(network(request.param)), {"assetVersion": "2.0"})
    os.sync()  # pending writes would slow the first reader
    yield request.param, folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def apple(request: pytest.FixtureRequest) -> Iterator[Callable[[Path], None]]:
    """Reads assets in one process for all tests, because it starts slowly."""
    python = request.config.getoption("--apple-python")
    with subprocess.Popen([python, "-c", LOADER], stdin=-1, stdout=-1, stderr=subprocess.DEVNULL, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        requests, answers = child.stdin, child.stdout
        if answers.readline() != "ready\n":
            pytest.skip("no coreai-core; pip install coreai-core==1.0.0b3, or --apple-python PATH of a Python with it")

        def read(path: Path) -> None:
            requests.write(f"{path}\n")
            requests.flush()
            assert answers.readline() == "read\n"

        yield read
        requests.close()


@pytest.mark.parametrize("contestant", ["hexane", "coreai-core"])
def test_read_asset(
    asset: tuple[str, Path], contestant: str, contest: Callable[..., None], request: pytest.FixtureRequest
) -> None:
    stored, path = asset
    read = import_coreai if contestant == "hexane" else request.getfixturevalue("apple")
    contest(f"read 100 MB of {stored} | 1 | 0.3 s", contestant, lambda: (read(path), None)[1], rounds=9)
