"""The time to read the 110M decoder's ONNX file, with its weights inside or in a file of their own, against
`onnx.load`."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from hexane.importers.onnx import import_onnx

sys.path.append(str(Path(__file__).parents[1] / "examples" / "decoder"))
from onnx_peer import make_peer
from reference import Config, make_weights


@pytest.fixture(scope="module", params=["inside", "beside"])
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The place of the weights ("inside" or "beside" the file), and the file of 440 MB, which is removed afterwards."""
    folder = tmp_path_factory.mktemp("decoder")
    model = make_peer(Config(), make_weights(Config()))
    onnx.save(model, folder / "m.onnx", save_as_external_data=request.param == "beside", location="weights.bin")
    del model
    os.sync()  # pending writes would slow the first reader
    yield request.param, folder / "m.onnx"
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.parametrize("contestant", ["hexane", "onnx.load"])
def test_import_decoder(decoder: tuple[str, Path], contestant: str, contest: Callable[..., None]) -> None:
    where, path = decoder

    def run() -> None:
        """Drops the graph, because the next import would compare its constants with a living graph's."""
        if contestant == "hexane":
            import_onnx(path, values={"pos": np.array([10])})
        else:
            onnx.load(path)

    contest(f"import the decoder, weights {where} | 1 | >= 0.67", contestant, run, rounds=9)
