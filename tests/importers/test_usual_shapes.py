"""Free dims for which a file names a usual shape: commands take it, calls of a compiled model may have another."""

import re
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from command import in_this_process
from hexane import sources
from hexane.cli.options import named_shape
from hexane.errors import Error
from hexane.importers.signature import SpecialisationNeeded
from tflite_writer import TfliteModel


def scaled(signature: list[int], shape: list[int]) -> bytes:
    m = TfliteModel()
    x, y = m.tensor(shape, shape_signature=signature), m.tensor(shape, shape_signature=signature)
    m.op("MUL", [x, m.tensor((3,), "float32", [1.0, 2.0, 3.0])], [y])
    m.graph["inputs"], m.graph["outputs"] = [x], [y]
    return m.tobytes()


def test_a_file_with_a_free_batch_is_one_image_for_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(scaled([-1, 4, 3], [1, 4, 3]))
    assert sources.open(path).graph().inputs[0].shape == (1, 4, 3)
    for words in (["check", path, "--target", "M4"], ["run", path], ["compile", path, "-o", tmp_path / "net.hxp"]):
        assert in_this_process(capsys)(*words).code == 0
    net = hx.compile(path, threads=1)
    for batch in (1, 5):
        x = np.ones((batch, 4, 3), np.float32)
        assert np.array_equal(np.asarray(net(x)), x * [1, 2, 3])


def test_commands_say_the_shape_that_they_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not where an option or an input decides it."""
    path, image = tmp_path / "net.tflite", tmp_path / "x.npy"
    path.write_bytes(scaled([-1, 4, 3], [1, 4, 3]))
    np.save(image, np.ones((5, 4, 3), np.float32))
    for words in (["check", path, "--target", "M4", "--json"], ["run", path], ["estimate", path, "--target", "M4"]):
        run = in_this_process(capsys)
        assert run(*words).err == "note: t0 is 1x4x3, as the file says: --input-shape t0:DIMS sets another shape\n"
        assert run(*words, "--input-shape", "t0:2x4x3").err == ""
        assert run(*words, "--input", image).err == ""
    assert "[5, 4, 3]" in in_this_process(capsys)("run", path, "--input", image).out


def test_other_free_dims_have_to_be_given_as_the_error_says(tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(scaled([-1, -1, 3], [1, 1, 3]))
    with pytest.raises(SpecialisationNeeded) as caught:
        sources.open(path).graph()
    found = re.search(r"--input-shape (\S+)", str(caught.value))
    assert found is not None
    assert named_shape(found[1]) == ("t0", (1, 1, 3))
    with pytest.raises(Error, match="need"):
        sources.open(path).graph({"t0": (1, 4, 5)})
