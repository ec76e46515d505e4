"""Packages that Apple's converter writes: read, run and judged; and what is no package."""

import shutil
import warnings
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from coreml_files import package, relu_spec
from hexane import sources
from hexane.errors import UnsupportedError
from hexane.importers.coreml.model import open_model
from hexane.importers.coreml.program import unpacked
from hexane.importers.coreml.schema import messages
from hexane.importers.files import read_view

Build = Callable[..., Path]


@pytest.fixture(scope="module")
def apple() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("coremltools", reason="coremltools is not installed")


@pytest.fixture(scope="module")
def build(apple: Any, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Converts a program of MIL's builder to a package."""

    def make(program: Any, name: str = "net", **options: Any) -> Path:
        target = tmp_path_factory.mktemp("coreml") / f"{name}.mlpackage"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            options = {"minimum_deployment_target": apple.target.iOS17, **options}
            model = apple.convert(program, convert_to="mlprogram", skip_model_load=True, **options)
            model.save(str(target))
        return target

    return make


def weights(*shape: int, scale: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(sum(shape))
    return (rng.standard_normal(shape) * scale / np.sqrt(max(np.prod(shape[1:]), 1))).astype(np.float32)


def detector(apple: Any) -> Any:
    """Pixels of 0..255, a batch norm with a variance of 10^5, a residual and pools, as a trained detector has them."""
    mb = apple.converters.mil.Builder

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 3, 32, 32))])  # type: ignore[untyped-decorator]
    def program(x: Any) -> Any:
        y = mb.conv(x=x, weight=weights(8, 3, 3, 3), strides=[2, 2], pad_type="same", name="stem")
        spread = np.full(8, 1.5e5, np.float32)
        y = mb.batch_norm(x=y, mean=weights(8, scale=100.0), variance=spread, gamma=weights(8) + 1, beta=weights(8))
        y = mb.relu(x=y)
        z = mb.conv(x=y, weight=weights(8, 1, 3, 3), groups=8, pad_type="same")
        y = mb.add(x=y, y=mb.silu(x=z))
        y = mb.max_pool(x=y, kernel_sizes=[3, 3], strides=[2, 2], pad_type="custom", pad=[1, 1, 1, 1])
        y = mb.upsample_nearest_neighbor(x=y, scale_factor_height=2.0, scale_factor_width=2.0)
        y = mb.reduce_mean(x=y, axes=[2, 3], keep_dims=False)
        return mb.softmax(x=mb.linear(x=y, weight=weights(5, 8), bias=weights(5)), axis=-1, name="scores")

    return program


def by_hand(x: np.ndarray) -> hx.Tensor:
    """The same network in Hexane's own ops."""
    h = hx.conv(hx.input("x", x.shape), weights(8, 3, 3, 3), strides=2, pad=(0, 1, 0, 1))
    h = hx.batch_norm(
        h, weights(8, scale=100.0), np.full(8, 1.5e5, np.float32), weights(8) + 1, weights(8), epsilon=1e-5
    )
    h = hx.relu(h)
    h = h + hx.silu(hx.conv(h, weights(8, 1, 3, 3), groups=8, pad=1))
    h = hx.max_pool(h, kernel_sizes=3, strides=2, pad=1)
    h = hx.upsample_nearest_neighbor(h, scale_factor_height=2.0, scale_factor_width=2.0)
    h = hx.reduce_mean(h, axes=(2, 3), keep_dims=False)
    return hx.softmax(hx.linear(h, weights(5, 8), weights(5)), axis=-1)


@pytest.mark.parametrize("precision", ["FLOAT32", "FLOAT16"])
def test_a_network_with_pixels_and_large_variances(apple: Any, build: Build, precision: str) -> None:
    path = build(detector(apple), compute_precision=getattr(apple.precision, precision))
    pixels = np.random.default_rng(4).integers(0, 256, (1, 3, 32, 32)).astype(np.float32)
    got = hx.compile(path)(pixels)
    want = np.asarray(hx.compile(by_hand(pixels))(pixels))
    assert np.abs(np.asarray(got) - want).max() <= (1e-6 if precision == "FLOAT32" else 5e-3)
    report = hx.preflight(path, "M4")
    assert report.segments is not None
    assert any("scores" in e.node.where for e in report.entries)


def test_shapes_that_vary_are_decided_by_calls(apple: Any, build: Build) -> None:
    mb, types = apple.converters.mil.Builder, apple.converters.mil.mil
    size = types.get_new_symbol()

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, size, 8))])  # type: ignore[untyped-decorator]
    def program(x: Any) -> Any:
        y = mb.linear(x=x, weight=weights(4, 8), bias=weights(4))
        return mb.reshape(x=y, shape=[-1, 4], name="y")

    shape = apple.Shape(shape=(1, apple.RangeDim(2, 64, default=16), 8))
    path = build(program, inputs=[apple.TensorType(name="x", shape=shape)])
    net = hx.compile(path)
    assert isinstance(net, hx.OpenModel)
    assert str(net.inputs[0]) == "x: fp32[1, ?, 8]" or net.inputs[0].shape == (1, None, 8)
    for length in (2, 16, 64):
        assert np.asarray(net(np.ones((1, length, 8), np.float32))).shape == (length, 4)
    with pytest.raises(hx.Error, match="got 65 on axis 1, need 2 to 64"):
        net(np.ones((1, 65, 8), np.float32))
    assert sources.open(path).graph().inputs[0].shape == (1, 16, 8)  # the default of the package
    assert hx.preflight(path, "M1")
    assert open_model(path).features("main", open_model(path).program("main"))["x"].text() == "fp32[1, 2..64, 8]"


def test_states_keep_what_calls_write(apple: Any, build: Build) -> None:
    mb = apple.converters.mil.Builder
    types = apple.converters.mil.mil.types

    @mb.program(
        input_specs=[mb.TensorSpec(shape=(3,), dtype=types.fp16), mb.StateTensorSpec(shape=(3,), dtype=types.fp16)],
        opset_version=apple.target.iOS18,
    )  # type: ignore[untyped-decorator]
    def program(x: Any, total: Any) -> Any:
        before = mb.read_state(input=total)
        return mb.coreml_update_state(state=total, value=mb.add(x=before, y=x), name="y")

    net = hx.compile(build(program, minimum_deployment_target=apple.target.iOS18))
    step = np.array([1, 2, 3], np.float16)
    assert np.asarray(net(step)).tolist() == [1, 2, 3]
    assert np.asarray(net(step)).tolist() == [2, 4, 6]
    net.reset_state()
    assert np.asarray(net(step)).tolist() == [1, 2, 3]


@pytest.mark.parametrize("read", ["the state", "the update"])
def test_a_row_of_a_state_is_written_in_place(apple: Any, build: Build, read: str) -> None:
    """A cache of keys, as converters write it: read, updated at a position, written, and read again."""
    mb = apple.converters.mil.Builder
    types = apple.converters.mil.mil.types
    specs = [
        mb.TensorSpec(shape=(1, 1, 4), dtype=types.fp16),
        mb.TensorSpec(shape=(1,), dtype=types.int32),
        mb.StateTensorSpec(shape=(1, 6, 4), dtype=types.fp16),
    ]

    @mb.program(input_specs=specs, opset_version=apple.target.iOS18)  # type: ignore[untyped-decorator]
    def program(x: Any, at: Any, cache: Any) -> Any:
        none, end = np.zeros(1, np.int32), np.full(1, 4, np.int32)
        before, row = mb.read_state(input=cache), mb.relu(x=x)
        begin = mb.concat(values=[none, at, none], axis=0)
        last = mb.concat(values=[none + 1, mb.add(x=at, y=np.int32(1)), end], axis=0)
        after = mb.slice_update(x=before, update=row, begin=begin, end=last)
        kept = mb.coreml_update_state(state=cache, value=after)
        keys = kept if read == "the state" else after
        return mb.matmul(x=x, y=keys, transpose_y=True, name="y")

    path = build(program, minimum_deployment_target=apple.target.iOS18)
    graph = open_model(path).graph("main", {})
    (write,) = (node for node in graph.nodes if node.op == "write_state")
    assert write.inputs[1] is not None
    assert write.inputs[1].shape == (1, 1, 4)
    assert "scatter_nd" not in graph.ops
    net, rng, held = hx.compile(path), np.random.default_rng(0), np.zeros((1, 6, 4), np.float16)
    for at in (0, 1, 5, 3, -1):
        x = rng.integers(-4, 5, (1, 1, 4)).astype(np.float16)
        held[:, at] = np.maximum(x[:, 0], 0)
        got = np.asarray(net(x, np.array([at], np.int32)))
        np.testing.assert_array_equal(got, x @ held.transpose(0, 2, 1))


@pytest.mark.parametrize("color", ["RGB", "BGR"])
def test_an_image_goes_in_as_pixels(apple: Any, build: Build, color: str) -> None:
    mb = apple.converters.mil.Builder

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 3, 4, 6))])  # type: ignore[untyped-decorator]
    def program(image: Any) -> Any:
        return mb.reduce_sum(x=image, axes=[2, 3], keep_dims=False, name="y")

    layout = getattr(apple.colorlayout, color)
    path = build(program, inputs=[apple.ImageType(name="image", shape=(1, 3, 4, 6), color_layout=layout, scale=2.0)])
    picture = np.random.default_rng(1).integers(0, 256, (4, 6, 3)).astype(np.uint8)
    sums = picture.reshape(-1, 3).sum(0).astype(np.float64) * 2
    want = sums if color == "RGB" else sums[::-1]
    np.testing.assert_allclose(np.asarray(hx.compile(path)(picture)).reshape(-1), want, rtol=2e-3)


def test_a_classifier_has_its_labels(apple: Any, build: Build) -> None:
    mb = apple.converters.mil.Builder

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 4))])  # type: ignore[untyped-decorator]
    def program(x: Any) -> Any:
        return mb.softmax(x=x, axis=-1, name="p")

    path = build(program, classifier_config=apple.ClassifierConfig(["ant", "bee", "cat", "dog"]))
    found = hx.compile(path)(np.array([[0, 1, 5, 2]], np.float32))
    assert isinstance(found, dict)
    assert found["classLabel"].tolist() == [2]
    assert open_model(path).labels("main") == ("ant", "bee", "cat", "dog")
    np.testing.assert_allclose(found["classLabel_probs"].sum(), 1, rtol=1e-3)


def test_ops_that_cannot_be_read_are_named_at_once(apple: Any, build: Build) -> None:
    mb = apple.converters.mil.Builder

    @mb.program(input_specs=[mb.TensorSpec(shape=(2, 4))])  # type: ignore[untyped-decorator]
    def program(x: Any) -> Any:
        y = mb.add(x=x, y=mb.random_normal(shape=[2, 4], name="noise"))
        return mb.mul(x=y, y=mb.random_uniform(shape=[2, 4], name="more"), name="y")

    path = build(program)
    with pytest.raises(
        UnsupportedError, match=r"2 kinds of ops(.|\n)*random_normal: .*noise(.|\n)*random_uniform: .*more"
    ):
        hx.compile(path)


# ---- files that are damaged, or something else ----


def test_a_package_written_by_hand_runs(tmp_path: Path) -> None:
    net = hx.compile(package(tmp_path, relu_spec().SerializeToString()))
    assert np.asarray(net(np.array([-1, 2], np.float32))).tolist() == [0, 2]


def test_a_function_that_is_none_is_named(tmp_path: Path) -> None:
    made = package(tmp_path, relu_spec().SerializeToString())
    with pytest.raises(hx.Error, match=r"net\.mlpackage: got the function 'nope', need one of main"):
        hx.compile(f"{made}#nope")
    (made / "Manifest.json").unlink()
    with pytest.raises(hx.Error, match=r"net\.mlpackage: 'Manifest.json'"):
        hx.compile(made)


@pytest.mark.parametrize("path", ["../../secret", "/etc/passwd", "com.apple.CoreML/../../../x", 5])
def test_paths_stay_in_the_package(tmp_path: Path, path: Any) -> None:
    (tmp_path / "secret").write_bytes(relu_spec().SerializeToString())
    with pytest.raises(hx.Error, match=r"need a file inside the model's folder|need a text"):
        hx.compile(package(tmp_path, relu_spec().SerializeToString(), path))


def test_other_kinds_of_models_say_what_to_do(tmp_path: Path) -> None:
    spec = messages()["Model"](specificationVersion=4)
    spec.neuralNetwork.SetInParent()
    with pytest.raises(hx.Error, match="got a neural network without layers, need one"):
        hx.compile(package(tmp_path, spec.SerializeToString()))
    shutil.rmtree(tmp_path / "net.mlpackage")
    spec = messages()["Model"](specificationVersion=4)
    spec.pipeline.models.add().neuralNetwork.layers.add(name="a")
    unread = spec.pipeline.models.add()
    unread.MergeFromString(bytes([302 << 3 & 127 | 130, 302 >> 4, 0]))  # an empty tree ensemble, field 302
    spec.pipeline.models.add().pipeline.SetInParent()
    spec.pipeline.names.extend(["net", "trees"])
    with pytest.raises(UnsupportedError, match=r"with trees, a tree ensemble, need ML programs"):
        hx.compile(package(tmp_path, spec.SerializeToString()))
    shutil.rmtree(tmp_path / "net.mlpackage")
    with pytest.raises(hx.Error, match="Git LFS pointer"):
        hx.compile(package(tmp_path, b"version https://git-lfs.github.com/spec/v1\n"))


def test_a_damaged_package_never_crashes(tmp_path: Path) -> None:
    """Of 300 mutants each is refused by an Error of ours, or read."""
    whole = relu_spec().SerializeToString()
    rng, refused = np.random.default_rng(8), 0
    made = package(tmp_path, whole)
    file = made / "Data" / "com.apple.CoreML" / "model.mlmodel"
    for _ in range(300):
        data = bytearray(whole)
        for at in rng.integers(0, len(data), rng.integers(1, 4)):
            data[at] = rng.integers(0, 256)
        file.write_bytes(bytes(data[: rng.integers(1, len(data) + 1)] if rng.random() < 0.3 else data))
        try:
            model = open_model(made)
            model.graph(model.functions[0], {}, {})
        except hx.Error:
            refused += 1
    assert 100 < refused < 300


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6])
def test_integers_of_few_bits_lie_lowest_bit_first(bits: int) -> None:
    numbers = np.random.default_rng(bits).integers(0, 1 << bits, 66)
    packed = np.packbits(((numbers[:, None] >> np.arange(bits)) & 1).reshape(-1).astype(np.uint8), bitorder="little")
    assert unpacked(packed, bits, 66).tolist() == numbers.tolist()
    with pytest.raises(hx.Error, match="need 66 integers"):
        unpacked(packed[:-1], bits, 66)


def test_the_file_of_weights_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the file for each constant took a minute and gigabytes with real networks."""
    y = x = hx.input("x", (1, 16, 8, 8))
    for _ in range(12):
        y = hx.relu(hx.conv(y, weights(16, 16, 3, 3), pad=1))
    written = hx.save_coreml(hx.graph({"y": y}), tmp_path / "net.mlpackage").path
    reads = []

    def counted(descriptor: int, where: str) -> memoryview:
        reads.append(where)
        return read_view(descriptor, where)

    monkeypatch.setattr("hexane.importers.coreml.package.read_view", counted)
    image = np.linspace(0, 255, prod(x.shape), dtype=np.float32).reshape(x.shape)
    assert np.isfinite(hx.compile(written)(image)).all()
    assert len(reads) == 1
