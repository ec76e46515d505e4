"""Core ML's neural networks (specification 1 to 5), as coremltools' NeuralNetworkBuilder writes them. Expected values are
NumPy's and onnxruntime's."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import hexane as hx
from coreml_files import package
from hexane.errors import Error, UnsupportedError
from hexane.importers.coreml.model import open_model
from hexane.importers.coreml.schema import messages

Array = np.ndarray
Build = Callable[..., Path]
RNG = np.random.default_rng(20)


def normal(*shape: int, scale: float = 1.0) -> Array:
    rng = np.random.default_rng([*shape, 7])
    return (rng.standard_normal(shape) * scale).astype(np.float32)


@pytest.fixture(scope="module")
def apple() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("coremltools", reason="coremltools is not installed")


@pytest.fixture
def build(apple: Any, tmp_path: Path) -> Build:
    """A network of inputs and outputs by name and shape, whose layers `write` adds. `exact`: of any axes, version 4."""

    def make(
        inputs: dict[str, Sequence[int]], outputs: Sequence[str], write: Callable[[Any], object], exact: bool = False,
        spec: Callable[[Any], object] | None = None, **options: Any,
    ) -> Path:  # fmt: skip
        from coremltools.models import datatypes
        from coremltools.models.neural_network import NeuralNetworkBuilder

        features = [(name, datatypes.Array(*shape)) for name, shape in inputs.items()]
        builder = NeuralNetworkBuilder(
            features, [(name, None) for name in outputs], disable_rank5_shape_mapping=exact, **options
        )
        write(builder)
        if spec is not None:
            spec(builder.spec)
        path = tmp_path / "net.mlmodel"
        path.write_bytes(builder.spec.SerializeToString())
        return path

    return make


def ran(path: Path, *arrays: Array, **named: Array) -> Any:
    net = hx.compile(path)
    return net(*[a.astype(i.dtype.numpy) for a, i in zip(arrays, net.inputs, strict=True)]) if arrays else net(named)


def near(got: Any, want: Array, tolerance: float = 1e-5) -> None:
    assert np.shape(got) == want.shape
    assert np.abs(np.asarray(got) - want).max() <= tolerance * max(np.abs(want).max(), 1e-6)


def by_onnx(nodes: list[Any], inputs: dict[str, Array], weights: dict[str, Array], output: str = "y") -> Array:
    """What onnxruntime computes."""
    runtime = pytest.importorskip("onnxruntime")
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(k, TensorProto.FLOAT, v.shape) for k, v in inputs.items()],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(v, k) for k, v in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run([output], inputs)[0])


def convolution(
    builder: Any, name: str, weight: Array, source: str, output: str, stride: int = 1, groups: int = 1,
    bias: Array | None = None, border: str = "same", **options: Any,
) -> None:  # fmt: skip
    out, inner, height, width = weight.shape
    if options.get("is_deconv"):
        inner, out = weight.shape[0], weight.shape[1] * groups
    builder.add_convolution(
        name, inner, out, height, width, stride, stride, border, groups, weight.transpose(2, 3, 1, 0)
        if not options.get("is_deconv") else weight.transpose(2, 3, 0, 1), bias, bias is not None, input_name=source,
        output_name=output, **options,
    )  # fmt: skip


# A classifier of photos: a padded stride, a depthwise convolution, a batch norm with a variance of 10^5, pools.
STEM, DEEP, POINT, DENSE = normal(8, 3, 3, 3, scale=0.2), normal(8, 1, 3, 3), normal(8, 8, 1, 1), normal(5, 8)
MEAN, VARIANCE, GAMMA, BETA = normal(8, scale=100), np.full(8, 1.5e5, np.float32), normal(8) + 1, normal(8)


def classifier(builder: Any) -> None:
    convolution(builder, "stem", STEM, "image", "a", stride=2)
    builder.add_batchnorm("norm", 8, GAMMA, BETA, MEAN, VARIANCE, "a", "b", epsilon=1e-3)
    builder.add_activation("relu", "RELU", "b", "c")
    convolution(builder, "deep", DEEP, "c", "d", groups=8, border="valid", padding_top=1, padding_bottom=1,
                padding_left=1, padding_right=1)  # fmt: skip
    convolution(builder, "point", POINT, "d", "e", bias=BETA)
    builder.add_elementwise("sum", ["c", "e"], "f", "ADD")
    builder.add_pooling("pool", 3, 3, 2, 2, "MAX", "VALID", "f", "g")
    builder.add_pooling("mean", 0, 0, 1, 1, "AVERAGE", "VALID", "g", "h", is_global=True)
    builder.add_flatten("flat", 0, "h", "i")
    builder.add_inner_product("dense", DENSE, normal(5), 8, 5, True, "i", "j")
    builder.add_softmax("softmax", "j", "scores")


def classifier_by_onnx(x: Array) -> Array:
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "stem"], ["a"], strides=[2, 2], auto_pad="SAME_UPPER"),
        node("BatchNormalization", ["a", "gamma", "beta", "mean", "variance"], ["b"], epsilon=1e-3),
        node("Relu", ["b"], ["c"]),
        node("Conv", ["c", "deep"], ["d"], group=8, pads=[1, 1, 1, 1]),
        node("Conv", ["d", "point", "beta"], ["e"]),
        node("Add", ["c", "e"], ["f"]),
        node("MaxPool", ["f"], ["g"], kernel_shape=[3, 3], strides=[2, 2]),
        node("GlobalAveragePool", ["g"], ["h"]),
        node("Flatten", ["h"], ["i"]),
        node("Gemm", ["i", "dense", "bias"], ["j"], transB=1),
        node("Softmax", ["j"], ["y"], axis=-1),
    ]
    weights = {
        "stem": STEM, "deep": DEEP, "point": POINT, "dense": DENSE, "bias": normal(5), "gamma": GAMMA, "beta": BETA,
        "mean": MEAN, "variance": VARIANCE,
    }  # fmt: skip
    return by_onnx(nodes, {"x": x}, weights).reshape(-1)


def test_a_classifier_of_images_is_read_with_its_preprocessing_and_labels(build: Build) -> None:
    def write(builder: Any) -> None:
        classifier(builder)
        builder.set_pre_processing_parameters(["image"], False, -0.5, -0.25, 0.125, image_scale=1 / 127.5)
        builder.set_class_labels(["cat", "dog", "owl", "fox", "bee"], "animal", "scores")

    path = build({"image": (3, 33, 35)}, ["scores"], write, mode="classifier")
    photo = RNG.integers(0, 256, (33, 35, 3), dtype=np.uint8)
    x = photo.transpose(2, 0, 1)[None].astype(np.float32) / np.float32(127.5)
    want = classifier_by_onnx(x + np.array([-0.5, -0.25, 0.125], np.float32).reshape(1, 3, 1, 1))
    found = ran(path, photo)
    near(found["scores"], want, 1e-4)
    assert found["animal"].tolist() == [want.argmax()]
    assert open_model(path).labels("main") == ("cat", "dog", "owl", "fox", "bee")


def test_an_image_in_the_order_blue_green_red_gets_the_bias_of_each_color(build: Build) -> None:
    def write(builder: Any) -> None:
        builder.add_activation("same", "LINEAR", "image", "y", [1.0, 0.0])
        builder.set_pre_processing_parameters(["image"], True, 1.0, 2.0, 3.0, image_scale=0.5)

    photo = RNG.integers(0, 256, (4, 6, 3), dtype=np.uint8)
    found = ran(build({"image": (3, 4, 6)}, ["y"], write), photo)
    near(found, photo.transpose(2, 0, 1)[::-1] * 0.5 + np.array([3.0, 2, 1], np.float32).reshape(3, 1, 1))


@pytest.mark.parametrize(("bits", "mode"), [(16, ""), (8, "linear"), (4, "linear"), (3, "linear_lut")])
def test_weights_in_few_bits_are_those_that_coremltools_says(apple: Any, tmp_path: Path, bits: int, mode: str) -> None:
    from coremltools.models import datatypes
    from coremltools.models.neural_network import NeuralNetworkBuilder, quantization_utils

    builder = NeuralNetworkBuilder([("x", datatypes.Array(5, 7, 9))], [("y", None)])
    convolution(builder, "up", normal(5, 6, 3, 3), "x", "h", stride=2, border="valid", is_deconv=True)
    convolution(builder, "down", normal(7, 6, 3, 3), "h", "y", bias=normal(7))
    model = apple.models.MLModel(builder.spec, skip_model_load=True)
    few = quantization_utils.quantize_weights(model, bits, mode or "linear")
    spec = few.get_spec() if hasattr(few, "get_spec") else few
    plain = type(spec)()
    plain.CopyFrom(spec)
    if bits < 16:
        quantization_utils._dequantize_nn_spec(plain.neuralNetwork)
    x, paths = normal(5, 7, 9), (tmp_path / "few.mlmodel", tmp_path / "plain.mlmodel")
    for path, written in zip(paths, (spec, plain), strict=True):
        path.write_bytes(written.SerializeToString())
    names = [name for name, _, _ in open_model(paths[0]).encodings()]
    assert any(name in ("fp16", f"scaled uint{bits}", f"palette of uint{bits}") for name in names)
    got = ran(paths[0], x)
    near(got, ran(paths[1], x), 1e-5)
    layers = spec.neuralNetwork.layers if bits == 16 else plain.neuralNetwork.layers
    if bits == 16:
        up, down = (np.frombuffer(one.convolution.weights.float16Value, np.float16) for one in layers)
        bias = np.frombuffer(layers[1].convolution.bias.float16Value, np.float16)
    else:
        up, down = (np.array(one.convolution.weights.floatValue) for one in layers)
        bias = np.array(layers[1].convolution.bias.floatValue)
    nodes = [
        helper.make_node("ConvTranspose", ["x", "up"], ["h"], strides=[2, 2]),
        helper.make_node("Conv", ["h", "down", "bias"], ["y"], auto_pad="SAME_UPPER"),
    ]
    weights = {"up": up.reshape(5, 6, 3, 3), "down": down.reshape(7, 6, 3, 3), "bias": bias}
    near(got, by_onnx(nodes, {"x": x[None]}, {k: v.astype(np.float32) for k, v in weights.items()})[0], 1e-4)


X = normal(6, 8, 10, scale=20)


def mean_of(x: Array, axes: tuple[int, ...]) -> Array:
    return x.astype(np.float64).mean(axes, keepdims=True)


def normalised(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    centred = x - mean_of(x, axes)
    return (centred / np.sqrt((centred**2).mean(axes, keepdims=True) + epsilon)).astype(np.float32)


def nearest(x: Array, factor: int) -> Array:
    return x.repeat(factor, -1).repeat(factor, -2)


def sampled(x: Array, rows: Array, columns: Array) -> Array:
    """Bilinear at these coordinates."""
    for axis, places in ((-2, rows), (-1, columns)):
        places = np.clip(places, 0, x.shape[axis] - 1)
        low = np.floor(places).astype(int)
        high = np.minimum(low + 1, x.shape[axis] - 1)
        weight = (places - low).reshape([-1] + [1] * (-1 - axis))
        x = x.take(low, axis) * (1 - weight) + x.take(high, axis) * weight
    return x


ACTIVATIONS: dict[str, tuple[Any, Array]] = {
    "RELU": (None, np.maximum(X, 0)), "TANH": (None, np.tanh(X)), "SIGMOID": (None, 1 / (1 + np.exp(-X))),
    "LEAKYRELU": ([0.1], np.where(X >= 0, X, 0.1 * X)), "ELU": (0.7, np.where(X >= 0, X, 0.7 * np.expm1(np.minimum(X, 0)))),
    "SCALED_TANH": ([1.7159, 0.66], 1.7159 * np.tanh(0.66 * X)), "LINEAR": ([2.0, -1.0], 2 * X - 1),
    "SIGMOID_HARD": ([0.2, 0.5], np.clip(0.2 * X + 0.5, 0, 1)), "THRESHOLDEDRELU": (1.5, np.where(X >= 1.5, X, 0)),
    "SOFTSIGN": (None, X / (1 + np.abs(X))), "SOFTPLUS": (None, np.logaddexp(0, X)),
    "PRELU": (normal(6), np.where(X >= 0, X, normal(6).reshape(6, 1, 1) * X)),
    "PARAMETRICSOFTPLUS": (
        [normal(6), np.abs(normal(6)) + 0.1],
        normal(6).reshape(6, 1, 1) * np.logaddexp(0, X * (np.abs(normal(6)) + 0.1).reshape(6, 1, 1)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_an_activation(build: Build, kind: str) -> None:
    given, want = ACTIVATIONS[kind]
    path = build({"x": X.shape}, ["y"], lambda b: b.add_activation("f", kind, "x", "y", given))
    near(ran(path, X), np.asarray(want, np.float32), 1e-5)


POSITIVE = np.abs(X) + 0.5
LAYERS: dict[str, tuple[Callable[[Any], object], Array]] = {
    "mvn": (lambda b: b.add_mvn("f", "x", "y", False, True, 1e-5), normalised(X, (1, 2), 1e-5)),
    "mvn of all": (lambda b: b.add_mvn("f", "x", "y", True, True, 1e-5), normalised(X, (0, 1, 2), 1e-5)),
    "mvn of the mean": (lambda b: b.add_mvn("f", "x", "y", True, False), (X - mean_of(X, (0, 1, 2))).astype(np.float32)),
    "instance norm": (
        lambda b: b.add_batchnorm("f", 6, np.ones(6), np.zeros(6), None, None, "x", "y", True, True, 1e-5),
        normalised(X, (1, 2), 1e-5),
    ),
    "norm of the batch": (
        lambda b: setattr(b.add_batchnorm("f", 6, np.ones(6), np.zeros(6), None, None, "x", "y", True, True, 1e-5).batchnorm,
                          "instanceNormalization", False),
        normalised(X, (1, 2), 1e-5),
    ),
    "l2": (lambda b: b.add_l2_normalize("f", "x", "y", 1e-5), X / np.sqrt((X.astype(np.float64) ** 2).sum() + 1e-5)),
    "lrn": (
        lambda b: b.add_lrn("f", "x", "y", 1e-2, 0.75, 5, 2.0),
        by_onnx([helper.make_node("LRN", ["x"], ["y"], alpha=1e-2, beta=0.75, bias=2.0, size=5)], {"x": X[None]}, {})[0],
    ),
    "softmax": (lambda b: b.add_softmax("f", "x", "y"), np.exp(X - X.max(0)) / np.exp(X - X.max(0)).sum(0)),
    "bias": (lambda b: b.add_bias("f", normal(6), "x", "y", [6]), X + normal(6).reshape(6, 1, 1)),
    "scale": (
        lambda b: b.add_scale("f", normal(6), normal(6, 8, 10), True, "x", "y", [6], [6, 8, 10]),
        X * normal(6).reshape(6, 1, 1) + normal(6, 8, 10),
    ),
    "nearest": (lambda b: b.add_upsample("f", 2, 2, "x", "y"), nearest(X, 2)),
    "bilinear": (
        lambda b: b.add_upsample("f", 2, 3, "x", "y", "BILINEAR"),
        sampled(X, np.arange(16) / 2, np.arange(30) / 3),
    ),
    "bilinear, corners": (
        lambda b: b.add_upsample("f", 2, 2, "x", "y", "BILINEAR", "ALIGN_CORNERS_TRUE"),
        sampled(X, np.arange(16) * 7 / 15, np.arange(20) * 9 / 19),
    ),
    "bilinear, centres": (
        lambda b: b.add_upsample("f", 2, 2, "x", "y", "BILINEAR", "ALIGN_CORNERS_FALSE"),
        sampled(X, (np.arange(16) + 0.5) / 2 - 0.5, (np.arange(20) + 0.5) / 2 - 0.5),
    ),
    "resize": (
        lambda b: b.add_resize_bilinear("f", "x", "y", 5, 13, "ROI_ALIGN_MODE"),
        sampled(X, (np.arange(5) + 0.5) * 7 / 5, (np.arange(13) + 0.5) * 9 / 13),
    ),
    "pad": (lambda b: b.add_padding("f", 1, 2, 3, 0, 4.5, "x", "y"), np.pad(X, ((0, 0), (3, 0), (1, 2)), constant_values=4.5)),
    "reflect": (
        lambda b: b.add_padding("f", 1, 2, 3, 0, 0, "x", "y", "reflection"), np.pad(X, ((0, 0), (3, 0), (1, 2)), "reflect"),
    ),
    "replicate": (
        lambda b: b.add_padding("f", 1, 2, 3, 0, 0, "x", "y", "replication"), np.pad(X, ((0, 0), (3, 0), (1, 2)), "edge"),
    ),
    "crop": (lambda b: b.add_crop("f", 1, 2, 3, 0, 0, ["x"], "y"), X[:, 3:, 1:-2]),
    "flatten": (lambda b: b.add_flatten("f", 0, "x", "y"), X.reshape(-1)),
    "flatten, channels last": (lambda b: b.add_flatten("f", 1, "x", "y"), X.transpose(1, 2, 0).reshape(-1)),
    "permute": (lambda b: b.add_permute("f", [0, 3, 1, 2], "x", "y"), X.transpose(2, 0, 1)),
    "reshape": (lambda b: b.add_reshape("f", "x", "y", (3, 16, 10), 0), X.reshape(3, 16, 10)),
    "reshape, channels last": (
        lambda b: b.add_reshape("f", "x", "y", (3, 16, 10), 1),
        X.transpose(1, 2, 0).reshape(16, 10, 3).transpose(2, 0, 1),
    ),
    "slice": (lambda b: b.add_slice("f", "x", "y", "height", 1, -1, 2), X[:, 1:-1:2]),
    "to depth": (
        lambda b: b.add_reorganize_data("f", "x", "y", "SPACE_TO_DEPTH", 2),
        by_onnx([helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=2)], {"x": X[None]}, {})[0],
    ),
    "average pool": (
        lambda b: b.add_pooling("f", 3, 3, 2, 2, "AVERAGE", "SAME", "x", "y", exclude_pad_area=True),
        by_onnx([helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER")],
                {"x": X[None]}, {})[0],
    ),
    "pool to the last pixel": (
        lambda b: b.add_pooling("f", 3, 3, 2, 2, "MAX", "INCLUDE_LAST_PIXEL", "x", "y", padding_top=1, padding_bottom=1,
                                padding_left=1, padding_right=1),
        by_onnx([helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4, ceil_mode=1)],
                {"x": X[None]}, {})[0],
    ),
    "l2 pool": (
        lambda b: b.add_pooling("f", 2, 2, 2, 2, "L2", "VALID", "x", "y"),
        np.sqrt((X.reshape(6, 4, 2, 5, 2) ** 2).sum((2, 4))),
    ),
    "reduce": (lambda b: b.add_reduce("f", "x", "y", "HW", "avg"), mean_of(X, (1, 2)).astype(np.float32).reshape(6)),
    "argmax": (lambda b: b.add_reduce("f", "x", "y", "C", "argmax"), X.argmax(0)[None].astype(np.float32)),
    "constant": (lambda b: (b.add_load_constant("c", "c", normal(6, 8, 10), (6, 8, 10)),
                            b.add_elementwise("f", ["x", "c"], "y", "MAX")), np.maximum(X, normal(6, 8, 10))),
    "average": (lambda b: (b.add_activation("g", "RELU", "x", "g"), b.add_elementwise("f", ["x", "g"], "y", "AVE")),
                (X + np.maximum(X, 0)) / 2),
    "concat and split": (
        lambda b: (b.add_split("s", "x", ["p", "q"]), b.add_elementwise("f", ["q", "p"], "y", "CONCAT")),
        np.concatenate([X[3:], X[:3]]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_five_axes(build: Build, name: str) -> None:
    write, want = LAYERS[name]
    near(ran(build({"x": X.shape}, ["y"], write), X), np.asarray(want, np.float32), 2e-5)


UNARY = {
    "sqrt": np.sqrt, "rsqrt": lambda v: 1 / np.sqrt(v + 1e-4), "inverse": lambda v: 1 / (v + 1e-4),
    "power": lambda v: v**1.5, "exp": np.exp, "log": np.log, "abs": np.abs, "threshold": lambda v: np.maximum(v, 1.5),
}  # fmt: skip


@pytest.mark.parametrize("mode", UNARY)
def test_a_function_of_each_element_after_its_scale_and_shift(build: Build, mode: str) -> None:
    path = build({"x": X.shape}, ["y"], lambda b: b.add_unary("f", "x", "y", mode, 1.5, 0.25, 0.1, 1e-4))
    near(ran(path, POSITIVE), np.asarray(UNARY[mode](POSITIVE.astype(np.float64) * 0.1 + 0.25), np.float32), 1e-5)


# ---- sequences ----

HIDDEN, INNER, STEPS, BATCH = 5, 4, 7, 2
SEQUENCE = normal(STEPS, BATCH, INNER)


def gates(count: int, seed: int = 0) -> tuple[list[Array], list[Array], list[Array]]:
    """Recurrent weights, weights and biases, in Core ML's order of gates."""
    rng = np.random.default_rng([count, seed])
    shapes = ((HIDDEN, HIDDEN), (HIDDEN, INNER), (HIDDEN,))
    return tuple([rng.standard_normal(s).astype(np.float32) for _ in range(count)] for s in shapes)  # type: ignore[return-value]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def lstm_by_numpy(
    x: Array, parts: Any, peep: Any = None, limit: float = 1e9, coupled: bool = False, forget: float = 0.0,
    inner: Any = sigmoid, update: Any = np.tanh,
) -> tuple[Array, Array, Array]:  # fmt: skip
    (ri, rf, ro, rz), (wi, wf, wo, wz), (bi, bf, bo, bz) = parts
    pi, pf, po = peep or (0.0, 0.0, 0.0)
    h = c = np.zeros((x.shape[1], HIDDEN))
    found = []
    for v in x.astype(np.float64):
        i = inner(v @ wi.T + h @ ri.T + bi + pi * c)
        f = inner(v @ wf.T + h @ rf.T + bf + forget + pf * c)
        z = update(v @ wz.T + h @ rz.T + bz)
        c = np.clip(c * (1 - i if coupled else f) + i * z, -limit, limit)
        h = np.tanh(c) * inner(v @ wo.T + h @ ro.T + bo + po * c)
        found.append(h)
    return np.stack(found), h, c


PEEP = [normal(HIDDEN), normal(HIDDEN) * 2, normal(HIDDEN) * 3]
LSTMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "forget bias": ({"forget_bias": True}, {"forget": 1.0}),
    "peepholes": ({"peep": PEEP}, {"peep": PEEP}),
    "a limit of the cell": ({"cell_clip_threshold": 0.3, "peep": PEEP}, {"limit": 0.3, "peep": PEEP}),
    "coupled gates": ({"coupled_input_forget_gate": True}, {"coupled": True}),
    "other activations": (
        {"inner_activation": "SIGMOID_HARD", "cell_state_update_activation": "LINEAR"},
        {"inner": lambda v: np.clip(0.2 * v + 0.5, 0, 1), "update": lambda v: v},
    ),
}


@pytest.mark.parametrize("name", LSTMS)
def test_an_lstm_as_its_equations_say(build: Build, name: str) -> None:
    options, about = LSTMS[name]
    hidden, weights, biases = gates(4)
    path = build({"x": (INNER,)}, ["y", "h", "c"], lambda b: b.add_unilstm(
        "f", hidden, weights, biases, HIDDEN, INNER, ["x"], ["y", "h", "c"], output_all=True, **options))  # fmt: skip
    net = hx.compile(path, input_shapes={"x": SEQUENCE.shape})
    found = net(x=SEQUENCE.astype(net.inputs[0].dtype.numpy))
    want = lstm_by_numpy(SEQUENCE, (hidden, weights, biases), **about)
    for got, expected in zip((found["y"], found["h"], found["c"]), want, strict=True):
        near(np.asarray(got).reshape(expected.shape), expected.astype(np.float32), 2e-5)


@pytest.mark.parametrize("whole", [True, False])
def test_both_directions_of_an_lstm_stand_next_to_each_other(build: Build, whole: bool) -> None:
    ahead, back = gates(4), gates(4, 1)
    path = build({"x": (INNER,)}, ["y"], lambda b: b.add_bidirlstm(
        "f", *ahead, *back, HIDDEN, INNER, ["x"], ["y", "h", "c", "hb", "cb"], output_all=whole))  # fmt: skip
    net = hx.compile(path, input_shapes={"x": SEQUENCE.shape})
    first, last, _ = lstm_by_numpy(SEQUENCE, ahead)
    second, last_back, _ = lstm_by_numpy(SEQUENCE[::-1], back)
    want = np.concatenate([first, second[::-1]], -1) if whole else np.concatenate([last, last_back], -1)[None]
    near(np.asarray(net(SEQUENCE.astype(net.inputs[0].dtype.numpy))), want.astype(np.float32)[..., None, None], 2e-5)


@pytest.mark.parametrize(("activation", "inner"), [("TANH", "SIGMOID"), ("LINEAR", "SIGMOID_HARD")])
def test_a_gru_as_its_equations_say(build: Build, activation: str, inner: str) -> None:
    (rz, rr, ro), (wz, wr, wo), (bz, br, bo) = parts = gates(3)
    path = build({"x": (INNER,)}, ["y", "h"], lambda b: b.add_gru(
        "f", *parts, HIDDEN, INNER, ["x"], ["y", "h"], activation, inner, True, True))  # fmt: skip
    f = sigmoid if inner == "SIGMOID" else lambda v: np.clip(0.2 * v + 0.5, 0, 1)
    g = np.tanh if activation == "TANH" else lambda v: np.clip(v, -50, 50)
    h, want = np.zeros((BATCH, HIDDEN)), []
    for v in SEQUENCE[::-1].astype(np.float64):
        z, r = f(v @ wz.T + h @ rz.T + bz), f(v @ wr.T + h @ rr.T + br)
        h = (1 - z) * g(v @ wo.T + (h * r) @ ro.T + bo) + z * h
        want.append(h)
    net = hx.compile(path, input_shapes={"x": SEQUENCE.shape})
    found = net(x=SEQUENCE.astype(net.inputs[0].dtype.numpy))
    near(np.asarray(found["y"]).reshape(STEPS, BATCH, HIDDEN), np.stack(want).astype(np.float32), 2e-5)


def test_a_simple_recurrent_layer_limits_what_its_relu_takes(build: Build) -> None:
    (r,), (w,), (b,) = gates(1)
    path = build({"x": (INNER,)}, ["y", "h"], lambda n: n.add_simple_rnn(
        "f", r * 4, w, b, HIDDEN, INNER, "RELU", ["x"], ["y", "h"], True))  # fmt: skip
    h, want = np.zeros((BATCH, HIDDEN)), []
    for v in SEQUENCE.astype(np.float64):
        h = np.maximum(np.clip(v @ w.T + h @ (4 * r).T + b, -50, 50), 0)
        want.append(h)
    assert np.max(want) == 50
    net = hx.compile(path, input_shapes={"x": SEQUENCE.shape})
    found = net(x=SEQUENCE.astype(net.inputs[0].dtype.numpy))
    near(np.asarray(found["y"]).reshape(STEPS, BATCH, HIDDEN), np.stack(want).astype(np.float32), 2e-5)


def test_an_embedding_takes_the_columns_that_are_named(build: Build) -> None:
    table = normal(4, 9)  # output channels, words
    path = build({"x": (1,)}, ["y"], lambda b: b.add_embedding("f", table, normal(4), 9, 4, True, "x", "y"))
    words = np.array([3, 8, 0, 3], np.float64).reshape(4, 1, 1)
    net = hx.compile(path, input_shapes={"x": words.shape})
    near(np.asarray(net(words.astype(net.inputs[0].dtype.numpy))).reshape(4, 4), table.T[[3, 8, 0, 3]] + normal(4))


# ---- layers of any axes, specification 4 ----

A, B = normal(2, 3, 4), normal(2, 4, 5)
EXACT: dict[str, tuple[dict[str, Array], Callable[[Any], object], Array]] = {
    "matmul": ({"a": A, "b": B}, lambda n: n.add_batched_mat_mul("f", ["a", "b"], "y"), A @ B),
    "matmul by a weight": (
        {"a": A},
        lambda n: n.add_batched_mat_mul("f", ["a"], "y", weight_matrix_rows=4, weight_matrix_columns=5, W=normal(4, 5), bias=normal(5)),
        A @ normal(4, 5) + normal(5),
    ),
    "inner product": ({"a": A}, lambda n: n.add_inner_product("f", normal(5, 4), None, 4, 5, False, "a", "y"), A @ normal(5, 4).T),
    "softmax": ({"a": A}, lambda n: n.add_softmax_nd("f", "a", "y", -2), np.exp(A) / np.exp(A).sum(-2, keepdims=True)),
    "transpose": ({"a": A}, lambda n: n.add_transpose("f", [2, 0, 1], "a", "y"), A.transpose(2, 0, 1)),
    "subtract": ({"a": A, "b": A[:1, :, :1]}, lambda n: n.add_subtract_broadcastable("f", ["a", "b"], "y"), A - A[:1, :, :1]),
    "power": ({"a": A}, lambda n: n.add_unary("f", "a", "y", "power", 2.0), A**2),
    "slice": (
        {"a": A},
        lambda n: n.add_slice_static("f", "a", "y", [0, -1, 1], [2, 0, 4], [1, -1, 2], [False] * 3, [False, True, False]),
        A[:, ::-1, 1:4:2],
    ),
    "layer norm": (
        {"a": A}, lambda n: n.add_layer_normalization("f", "a", "y", [4], normal(4), normal(4), 1e-5),
        normalised(A, (2,), 1e-5) * normal(4) + normal(4),
    ),
    "reduce": ({"a": A}, lambda n: n.add_reduce_sum("f", "a", "y", [0, -1], False), A.sum((0, 2))),
    "reduce all": ({"a": A}, lambda n: n.add_reduce_max("f", "a", "y", reduce_all=True, keepdims=False), A.max().reshape(1)),
    "clamp": ({"a": A}, lambda n: n.add_clamped_relu("f", "a", "y", 0.2, 0.5), np.minimum(np.where(A >= 0, A, 0.2 * A), 0.5)),
    "sort": ({"a": A}, lambda n: n.add_argsort("f", "a", "y", 1, True), np.argsort(-A, 1, kind="stable")),
    "interleave": (
        {"a": A, "b": A * 2}, lambda n: n.add_concat_nd("f", ["a", "b"], "y", 1, True),
        np.stack([A, A * 2], 2).reshape(2, 6, 4),
    ),
    "where": (
        {"a": A, "b": -A}, lambda n: (n.add_greater_than("g", ["a"], "g", alpha=0.1), n.add_where_broadcastable("f", ["g", "a", "b"], "y")),
        np.where(A > 0.1, A, -A),
    ),
    "squeeze": ({"a": A[:1]}, lambda n: n.add_squeeze("f", "a", "y", squeeze_all=True), A[0]),
    "reshape": ({"a": A}, lambda n: n.add_rank_preserving_reshape("f", "a", "y", [4, 0, -1]), A.reshape(4, 3, 2)),
    "pad": ({"a": A}, lambda n: n.add_constant_pad("f", ["a"], "y", 2.0, False, [0, 1, 2, 0, 0, 0]),
            np.pad(A, ((0, 1), (2, 0), (0, 0)), constant_values=2)),
    "triangle": ({"a": A}, lambda n: n.add_upper_triangular("f", "a", "y", 1), np.triu(A, 1)),
    "gather": ({"a": A, "i": np.array([2, -1, 0, 2], np.float32)}, lambda n: n.add_gather("f", ["a", "i"], "y", 1), A[:, [2, -1, 0, 2]]),
    "largest": (
        {"a": A}, lambda n: n.add_topk("f", ["a"], ["y", "i"], 2, -1), -np.sort(-A, -1)[..., :2],
    ),
    "volume": (
        {"a": normal(1, 2, 5, 6, 7)},
        lambda n: n.add_convolution3d("f", 2, 3, 3, 3, 3, normal(3, 2, 3, 3, 3), None, False, input_name="a", output_name="y"),
        by_onnx([helper.make_node("Conv", ["x", "w"], ["y"])], {"x": normal(1, 2, 5, 6, 7)}, {"w": normal(3, 2, 3, 3, 3)}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_a_layer_of_any_axes(build: Build, name: str) -> None:
    inputs, write, want = EXACT[name]
    net = hx.compile(build({k: v.shape for k, v in inputs.items()}, ["y"], write, exact=True))
    got = net({i.name: inputs[i.name].astype(i.dtype.numpy) for i in net.inputs})
    near(got["y"] if isinstance(got, dict) else got, np.asarray(want, np.float32), 2e-5)


# ---- what is not read ----


def test_one_error_names_each_layer_that_is_not_read_and_none_that_follows_it(tmp_path: Path) -> None:
    spec = messages()["Model"](specificationVersion=4)
    spec.description.input.add(name="x").type.multiArrayType.shape.append(4)
    spec.description.input[0].type.multiArrayType.dataType = 65568
    spec.description.output.add(name="y")
    network = spec.neuralNetwork
    network.arrayInputShapeMapping = 1
    for name, kind, source, target in (("mine", "custom", "x", "a"), ("next", "activation", "a", "b"),
                                       ("draw", "randomNormalLike", "x", "c"), ("soft", "softplus", "b", "y")):  # fmt: skip
        layer = network.layers.add(name=name, input=[source], output=[target])
        if kind == "softplus":
            layer.activation.softplus.SetInParent()
        elif kind == "activation":
            layer.activation.ReLU.SetInParent()
        else:
            getattr(layer, kind).SetInParent()
    with pytest.raises(UnsupportedError) as failed:
        open_model(package(tmp_path, spec.SerializeToString())).graph("main", {})
    text = str(failed.value)
    for part in ("custom: got a layer", "mine", "randomNormalLike", "draw"):
        assert part in text
    for part in ("next", "soft"):
        assert part not in text


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda w: w.floatValue.pop(), "got 19 numbers, need 20"),
        (lambda w: (w.ClearField("floatValue"), setattr(w, "float16Value", b"abc")), "need an even number"),
        (lambda w: (w.ClearField("floatValue"), setattr(w, "int8RawValue", b"a" * 20)), "at run time"),
        (lambda w: (w.ClearField("floatValue"), setattr(w, "rawValue", b"a" * 20)), "got weights of 0 bits"),
    ],
)
def test_weights_that_do_not_fit_are_refused(build: Build, damage: Callable[[Any], object], message: str) -> None:
    def spec(model: Any) -> None:
        damage(model.neuralNetwork.layers[0].innerProduct.weights)

    write = lambda b: b.add_inner_product("dense", normal(5, 4), None, 4, 5, False, "x", "y")  # noqa: E731
    path = build({"x": (4,)}, ["y"], write, spec=spec)
    with pytest.raises(Error, match=message):
        hx.compile(path)


def test_a_damaged_network_never_crashes(build: Build) -> None:
    """Of 200 mutants each is refused by an Error of ours, or read."""

    def write(builder: Any) -> None:
        classifier(builder)
        builder.set_class_labels(["cat", "dog", "owl", "fox", "bee"], "animal", "scores")

    path = build({"image": (3, 33, 35)}, ["scores"], write, mode="classifier")
    whole = path.read_bytes()
    rng, refused = np.random.default_rng(9), 0
    spots = [i for i in range(len(whole)) if i < 200 or i > len(whole) - 600]
    for _ in range(200):
        data = bytearray(whole)
        for at in rng.choice(spots, rng.integers(1, 4)):
            data[at] = rng.integers(0, 256)
        path.write_bytes(bytes(data))
        try:
            open_model(path).graph("main", {}, {})
        except hx.Error:
            refused += 1
    assert 50 < refused < 200


@pytest.mark.parametrize(("kernel", "border", "shape"), [(4, "same", (16, 20)), (3, "valid", (17, 21))])
def test_a_deconvolution_has_the_output_shape_that_its_padding_gives(
    build: Build, kernel: int, border: str, shape: tuple[int, int]
) -> None:
    weight = normal(6, 4, kernel, kernel)

    def write(output_shape: tuple[int, int]) -> Callable[[Any], None]:
        return lambda b: convolution(
            b, "up", weight, "x", "y", stride=2, border=border, is_deconv=True, output_shape=output_shape
        )

    pads = {"auto_pad": "SAME_UPPER"} if border == "same" else {}
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], **pads)
    want = by_onnx([node], {"x": X[None]}, {"w": weight})[0]
    near(ran(build({"x": X.shape}, ["y"], write(shape)), X), want, 2e-5)
    with pytest.raises(UnsupportedError, match=r"outputShape: got .* which the padding gives"):
        hx.compile(build({"x": X.shape}, ["y"], write((shape[0] + 1, shape[1]))))
