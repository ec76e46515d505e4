"""Packages that take several listed shapes of an input."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.errors import Error, InputError
from hexane.graph import Graph
from hexane.importers.coreml.model import open_model

RNG = np.random.default_rng(11)
STEM = RNG.standard_normal((8, 3, 3, 3)).astype(np.float32) / 5
DENSE = RNG.standard_normal((4, 8)).astype(np.float32)


def detector(size: int) -> Graph:
    """Scores for each place of an image of any size, and its class."""
    x = hx.input("image", (1, 3, size, size))
    h = hx.relu(hx.conv(x * (1 / 255), STEM, strides=2, pad=1))
    h = hx.upsample_nearest_neighbor(
        hx.max_pool(h, kernel_sizes=2, strides=2), scale_factor_height=2.0, scale_factor_width=2.0
    )
    places = hx.transpose(hx.reshape(h, shape=(1, 8, h.shape[2] * h.shape[3])), perm=(0, 2, 1))
    classes = hx.softmax(hx.linear(hx.reshape(hx.reduce_mean(h, axes=(2, 3)), shape=(1, 8)), DENSE))
    return hx.graph({"places": hx.sigmoid(places), "classes": classes})


SIZES = (32, 48, 20)


@pytest.mark.parametrize("compute", ["fp16", "fp32"])
def test_each_listed_shape_computes_what_its_own_package_does(tmp_path: Path, compute: Any) -> None:
    path, alone = tmp_path / "net.mlpackage", tmp_path / "one.mlpackage"
    hx.save_coreml(detector(SIZES[0]), path, compute=compute, listed=[detector(size) for size in SIZES[1:]])
    net = hx.compile(path)
    for size in SIZES:
        photo = RNG.integers(0, 256, (1, 3, size, size)).astype(np.float32)
        hx.save_coreml(detector(size), alone, compute=compute)
        got, want = net(photo), hx.compile(alone)(photo)
        assert got["places"].shape == (1, size * size // 4, 8)
        for name in want:
            np.testing.assert_array_equal(got[name], want[name])
    with pytest.raises(InputError, match=r"got the shape 1x3x\d+x\d+, need one of 1x3x32x32, 1x3x48x48, 1x3x20x20"):
        net(np.zeros((1, 3, 40, 40), np.float32))


def test_coremltools_rebuilds_the_program_and_lists_the_shapes(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        apple = pytest.importorskip("coremltools", reason="coremltools is not installed")
        from coremltools.converters.mil.frontend.milproto.load import load

        path = tmp_path / "net.mlpackage"
        hx.save_coreml(detector(32), path, listed=[detector(48)], labels=["a", "b", "c", "d"])
        spec = apple.models.MLModel(str(path), skip_model_load=True).get_spec()
        (feature,) = spec.description.input
        listed = feature.type.multiArrayType.enumeratedShapes.shapes
        assert [list(one.shape) for one in listed] == [[1, 3, 32, 32], [1, 3, 48, 48]]
        program = load(spec, spec.specificationVersion, file_weights_dir=str(path / "Data/com.apple.CoreML/weights"))
    (conv,) = (op for op in program.functions["main"].operations if op.op_type == "conv")
    assert [str(d).isdigit() for d in conv.outputs[0].shape] == [True, True, False, False]


def test_an_image_of_several_sizes_lists_them(tmp_path: Path) -> None:
    path = tmp_path / "net.mlpackage"
    hx.save_coreml(detector(32), path, listed=[detector(48)], images={"image": "rgb,scale=1"})
    feature = open_model(path).features("main", open_model(path).program("main"))["image"]
    assert feature.sizes == ((32, 32, 3), (48, 48, 3))
    assert hx.compile(path)(RNG.integers(0, 256, (48, 48, 3), dtype=np.uint8))["places"].shape == (1, 576, 8)


def test_numbers_that_depend_on_the_shape_are_named(tmp_path: Path) -> None:
    def resized(size: int) -> Graph:
        x = hx.input("x", (1, 3, size, size))
        return hx.graph({"y": hx.pad(x, begin=(0, 0, 0, 0), end=(0, 0, 64 - size, 64 - size))})

    with pytest.raises(Error, match="numbers that depend on the shape, need none, or one shape: pad of pad at"):
        hx.save_coreml(resized(32), tmp_path / "net.mlpackage", listed=[resized(48)])
    assert not (tmp_path / "net.mlpackage").exists()
    with pytest.raises(Error, match="got 0 inputs of several shapes"):
        hx.save_coreml(detector(32), tmp_path / "net.mlpackage", listed=[detector(32)])
