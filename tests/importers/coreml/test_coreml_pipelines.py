"""Pipelines: a network and the choice of its boxes, as exporters of YOLO write them. The boxes are NumPy's, by Apple's
description in NonMaximumSuppression.proto."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_coreml_boxes import survivors

import hexane as hx
from command import in_this_process
from hexane import sources
from hexane.errors import Error, UnsupportedError
from hexane.importers.coreml.model import open_model

Array = np.ndarray
SIZE, CLASSES = 32, 5
CELLS = (SIZE // 4) ** 2
SCORES, BOXES = "var_1", "var_2"  # names that a converter gave
OVERLAP, LEAST = 0.45, 0.5
RNG = np.random.default_rng(7)
WEIGHT = (RNG.standard_normal((4 + CLASSES, 3, 4, 4)) * 0.15).astype(np.float32)
CENTERS = np.stack(np.meshgrid(np.arange(8), np.arange(8)), axis=-1).reshape(CELLS, 2) / 8 + 1 / 16
SPREAD = np.concatenate([np.full((CELLS, 2), 0.1), np.full((CELLS, 2), 0.25)], axis=1).astype(np.float32)
OFFSET = np.concatenate([CENTERS, np.full((CELLS, 2), 0.2)], axis=1).astype(np.float32)
IMAGE = RNG.integers(0, 256, (SIZE, SIZE, 3)).astype(np.uint8)


@pytest.fixture(scope="module")
def apple() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("coremltools", reason="coremltools is not installed")


def program(apple: Any, precision: str = "FLOAT32") -> Any:
    """A detector as an ML program: an image to confidences (n, classes) and coordinates (n, 4)."""
    mb = apple.converters.mil.Builder

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 3, SIZE, SIZE))])  # type: ignore[untyped-decorator]
    def detector(image: Any) -> Any:
        x = mb.conv(x=image, weight=WEIGHT, strides=[4, 4], pad_type="valid")
        x = mb.sigmoid(x=mb.transpose(x=mb.reshape(x=x, shape=[4 + CLASSES, CELLS]), perm=[1, 0]))
        boxes = mb.slice_by_index(x=x, begin=[0, 0], end=[CELLS, 4])
        scores = mb.slice_by_index(x=x, begin=[0, 4], end=[CELLS, 4 + CLASSES])
        return mb.identity(x=scores, name=SCORES), mb.add(x=mb.mul(x=boxes, y=SPREAD), y=OFFSET, name=BOXES)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return apple.convert(
            detector, convert_to="mlprogram", skip_model_load=True, inputs=[apple.ImageType("image", scale=1 / 255)],
            compute_precision=getattr(apple.precision, precision),
        )  # fmt: skip


def network(apple: Any) -> Any:
    """The same detector of layers."""
    from coremltools.models import datatypes
    from coremltools.models.neural_network import NeuralNetworkBuilder

    builder = NeuralNetworkBuilder(
        [("image", datatypes.Array(3, SIZE, SIZE))],
        [(SCORES, datatypes.Array(CELLS, CLASSES)), (BOXES, datatypes.Array(CELLS, 4))],
        disable_rank5_shape_mapping=True,
    )
    builder.add_convolution("conv", 3, 4 + CLASSES, 4, 4, 4, 4, "valid", 1, WEIGHT.transpose(2, 3, 1, 0), None, False,
                            input_name="image", output_name="a")  # fmt: skip
    builder.add_reshape_static("flat", "a", "b", (4 + CLASSES, CELLS))
    builder.add_transpose("turn", (1, 0), "b", "c")
    builder.add_activation("squash", "SIGMOID", "c", "d")
    builder.add_slice_static("scores", "d", SCORES, [0, 4], [CELLS, 4 + CLASSES], [1, 1], [False] * 2, [False] * 2)
    builder.add_slice_static("boxes", "d", "e", [0, 0], [CELLS, 4], [1, 1], [False] * 2, [False] * 2)
    for name, op, values, given, made in (
        ("spread", "multiply", SPREAD, "e", "f"), ("offset", "add", OFFSET, "f", BOXES)
    ):  # fmt: skip
        builder.add_load_constant_nd(name, name, values, values.shape)
        getattr(builder, f"add_{op}_broadcastable")(op, [given, name], made)
    builder.set_pre_processing_parameters(image_input_names=["image"], image_scale=1 / 255)
    return apple.models.MLModel(builder.spec, skip_model_load=True)


def suppression(apple: Any, model: Any, within: bool = True) -> Any:
    """As exporters write it: inputs like the network's outputs, outputs of any number of rows."""
    spec = apple.proto.Model_pb2.Model(specificationVersion=5)
    for i, (name, width) in enumerate((("confidence", CLASSES), ("coordinates", 4))):
        port = model._spec.description.output[i].SerializeToString()
        spec.description.input.add().ParseFromString(port)
        spec.description.output.add().ParseFromString(port)
        spec.description.output[i].name = name
        array = spec.description.output[i].type.multiArrayType
        for low, high in ((0, -1), (width, width)):
            array.shapeRange.sizeRanges.add(lowerBound=low, upperBound=high)
        del array.shape[:]
    nms = spec.nonMaximumSuppression
    nms.confidenceInputFeatureName, nms.coordinatesInputFeatureName = SCORES, BOXES
    nms.confidenceOutputFeatureName, nms.coordinatesOutputFeatureName = "confidence", "coordinates"
    nms.iouThresholdInputFeatureName = "iouThreshold"
    nms.confidenceThresholdInputFeatureName = "confidenceThreshold"
    nms.iouThreshold, nms.confidenceThreshold = OVERLAP, LEAST
    nms.pickTop.perClass = within
    nms.stringClassLabels.vector.extend(["cat", "dog", "car", "bus", "tree"])
    return spec


def exported(
    apple: Any, folder: Path, model: Any, change: Callable[[Any], object] = lambda nms: None, within: bool = True
) -> Path:
    """The pipeline of both. change: of the model of suppression."""
    from coremltools.models import datatypes
    from coremltools.models.pipeline import Pipeline

    nms = suppression(apple, model, within)
    change(nms)
    pipeline = Pipeline(
        [("image", datatypes.Array(3, SIZE, SIZE)), ("iouThreshold", datatypes.Double()),
         ("confidenceThreshold", datatypes.Double())], ["confidence", "coordinates"],
    )  # fmt: skip
    pipeline.add_model(model._spec)
    pipeline.add_model(nms)
    described = pipeline.spec.description
    described.input[0].ParseFromString(model._spec.description.input[0].SerializeToString())
    for i in range(2):
        described.output[i].ParseFromString(nms.description.output[i].SerializeToString())
    pipeline.spec.specificationVersion = max(5, model._spec.specificationVersion)
    if model._spec.WhichOneof("Type") == "mlProgram":
        path = folder / "detector.mlpackage"
        apple.models.MLModel(pipeline.spec, weights_dir=model.weights_dir, skip_model_load=True).save(str(path))
        return path
    path = folder / "detector.mlmodel"
    path.write_bytes(pipeline.spec.SerializeToString())
    return path


def detector(image: Array) -> tuple[Array, Array]:
    """The scores and boxes of the network, by NumPy."""
    x = image.astype(np.float32) / 255
    patches = x.reshape(SIZE // 4, 4, SIZE // 4, 4, 3).transpose(0, 2, 4, 1, 3).reshape(CELLS, -1)
    y = 1 / (1 + np.exp(-(patches @ WEIGHT.reshape(4 + CLASSES, -1).T)))
    return y[:, 4:], y[:, :4] * SPREAD + OFFSET


def near(got: Any, overlap: float = OVERLAP, least: float = LEAST, within: bool = True, most: int = CELLS) -> int:
    scores, boxes = detector(IMAGE)
    stay = survivors(boxes, scores, overlap, least, within)[:most]
    for name, want in (("confidence", scores[stay]), ("coordinates", boxes[stay])):
        np.testing.assert_allclose(got[name], want, atol=1e-5)
    return len(stay)


@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize("kind", [program, network])
def test_a_detector_gives_the_boxes_that_stay(apple: Any, tmp_path: Path, kind: Any, within: bool) -> None:
    """Thresholds that nobody gives are those of the model."""
    net = hx.compile(exported(apple, tmp_path, kind(apple), within=within))
    count = near(net(image=IMAGE), within=within)
    assert 5 < count < CELLS
    assert count == near(net(IMAGE), within=within)


@pytest.mark.parametrize("kind", [program, network])
def test_thresholds_may_be_given(apple: Any, tmp_path: Path, kind: Any) -> None:
    net = hx.compile(exported(apple, tmp_path, kind(apple)))
    counts = {
        (overlap, least): near(
            net(image=IMAGE, iouThreshold=np.array([overlap]), confidenceThreshold=np.array([least])), overlap, least
        )
        for overlap in (0.1, 0.9)
        for least in (0.05, 0.6)
    }
    assert len(set(counts.values())) == 4
    assert near(net(image=IMAGE)) == near(net(image=IMAGE, confidenceThreshold=np.array([LEAST])))


def test_a_threshold_that_no_box_reaches_leaves_none(apple: Any, tmp_path: Path) -> None:
    net = hx.compile(exported(apple, tmp_path, network(apple)))
    got = net(image=IMAGE, confidenceThreshold=np.array([1.0]))
    assert (got["confidence"].shape, got["coordinates"].shape) == ((0, CLASSES), (0, 4))


@pytest.mark.parametrize("rows", [3, 80])
def test_a_fixed_number_of_rows_is_filled_with_zeros(apple: Any, tmp_path: Path, rows: int) -> None:
    def fix(nms: Any) -> None:
        size = nms.description.output[0].type.multiArrayType.shapeRange.sizeRanges[0]
        size.lowerBound = size.upperBound = rows

    got = hx.compile(exported(apple, tmp_path, network(apple), fix))(image=IMAGE)
    assert (got["confidence"].shape, got["coordinates"].shape) == ((rows, CLASSES), (rows, 4))
    count = near({name: array[: np.count_nonzero(array[:, 0])] for name, array in got.items()}, most=rows)
    assert count == min(rows, count)
    assert not got["coordinates"][count:].any()


def test_a_limit_of_rows_keeps_the_best(apple: Any, tmp_path: Path) -> None:
    def limit(nms: Any) -> None:
        nms.description.output[1].type.multiArrayType.shapeRange.sizeRanges[0].upperBound = 4

    assert near(hx.compile(exported(apple, tmp_path, network(apple), limit))(image=IMAGE), most=4) == 4


def test_a_range_of_rows_is_refused(apple: Any, tmp_path: Path) -> None:
    def limit(nms: Any) -> None:
        nms.description.output[1].type.multiArrayType.shapeRange.sizeRanges[0].lowerBound = 2

    with pytest.raises(
        UnsupportedError, match=r"outputs of 2 to 64 boxes, need a fixed number.*: nonMax.*, in model 2"
    ):
        hx.compile(exported(apple, tmp_path, network(apple), limit))


def test_a_threshold_that_the_model_does_not_have_is_an_input(apple: Any, tmp_path: Path) -> None:
    def unset(nms: Any) -> None:
        nms.nonMaximumSuppression.iouThreshold = 0

    path = exported(apple, tmp_path, network(apple), unset)
    assert [i.name for i in sources.open(path).function().signature.optional] == ["confidenceThreshold"]
    near(hx.compile(path)(image=IMAGE, iouThreshold=np.array([0.2])), overlap=0.2)


def test_the_model_of_suppression_opens_alone(apple: Any, tmp_path: Path) -> None:
    spec = suppression(apple, network(apple))
    (tmp_path / "nms.mlmodel").write_bytes(spec.SerializeToString())
    scores, boxes = detector(IMAGE)
    net = hx.compile(tmp_path / "nms.mlmodel")
    near(net(scores.astype(net.inputs[0].dtype.numpy), boxes.astype(net.inputs[1].dtype.numpy)))


def test_problems_are_named_with_their_model(apple: Any, tmp_path: Path) -> None:
    model = network(apple)
    layer = model._spec.neuralNetwork.layers.add(name="noise", input=[SCORES], output=["noise"])
    layer.randomNormalLike.SetInParent()
    path = exported(apple, tmp_path, model)
    with pytest.raises(UnsupportedError, match=r"randomNormalLike: .*: noise, in model 1"):
        hx.compile(path)


def test_a_name_that_no_model_computes_is_named(apple: Any, tmp_path: Path) -> None:
    def rename(nms: Any) -> None:
        nms.description.input[0].name = nms.nonMaximumSuppression.confidenceInputFeatureName = "other"

    with pytest.raises(Error, match=r"got no value for 'other', need .*, in model 2"):
        hx.compile(exported(apple, tmp_path, network(apple), rename))


def test_a_damaged_pipeline_never_crashes(apple: Any, tmp_path: Path) -> None:
    """Of 100 mutants each is refused by an Error of ours, or read."""
    path = exported(apple, tmp_path, network(apple))
    whole, rng, refused = path.read_bytes(), np.random.default_rng(3), 0
    for _ in range(100):
        data = bytearray(whole)
        for at in rng.integers(len(whole) - 1200, len(whole), rng.integers(1, 4)):
            data[at] = rng.integers(0, 256)
        path.write_bytes(bytes(data))
        try:
            model = open_model(path)
            model.signature("main")
            model.graph("main", {}, {})
        except Error:
            refused += 1
    assert 15 < refused < 100


def test_a_classifier_may_follow_a_network(apple: Any, tmp_path: Path) -> None:
    """pipelineClassifier: two neural networks, the second with labels."""
    from coremltools.models import datatypes
    from coremltools.models.neural_network import NeuralNetworkBuilder
    from coremltools.models.pipeline import PipelineClassifier

    weights = [RNG.standard_normal((6, 8)).astype(np.float32), RNG.standard_normal((3, 6)).astype(np.float32)]
    first = NeuralNetworkBuilder([("x", datatypes.Array(8))], [("features", datatypes.Array(6))])
    first.add_inner_product("dense", weights[0], None, 8, 6, False, "x", "features")
    second = NeuralNetworkBuilder([("features", datatypes.Array(6))], [("scores", None)], mode="classifier")
    second.add_inner_product("dense", weights[1], None, 6, 3, False, "features", "logits")
    second.add_softmax("softmax", "logits", "scores")
    second.set_class_labels(["a", "b", "c"], "classLabel", "scores")
    pipeline = PipelineClassifier([("x", datatypes.Array(8))], ["a", "b", "c"], ["classLabel", "scores"])
    pipeline.add_model(first.spec)
    pipeline.add_model(second.spec)
    (tmp_path / "net.mlmodel").write_bytes(pipeline.spec.SerializeToString())
    x = RNG.standard_normal(8)
    logits = weights[1] @ (weights[0] @ x)
    net = hx.compile(tmp_path / "net.mlmodel")
    got = net(x)
    assert got["classLabel"] == logits.argmax()
    probabilities = next(array for name, array in got.items() if name != "classLabel")
    np.testing.assert_allclose(probabilities, np.exp(logits) / np.exp(logits).sum(), rtol=1e-5)


@pytest.mark.parametrize("kind", [program, network])
def test_a_pipeline_in_a_pipeline(apple: Any, tmp_path: Path, kind: Any) -> None:
    """Thresholds of the inner one are inputs of both. A name that is inside of the inner one is not seen outside."""
    path = exported(apple, tmp_path, kind(apple))
    file = path / "Data/com.apple.CoreML/model.mlmodel" if path.is_dir() else path
    inner = apple.proto.Model_pb2.Model()
    inner.ParseFromString(file.read_bytes())
    outer = apple.proto.Model_pb2.Model(specificationVersion=inner.specificationVersion)
    outer.description.CopyFrom(inner.description)
    outer.pipeline.models.add().CopyFrom(inner)
    outer.pipeline.names.append("detector")
    file.write_bytes(outer.SerializeToString())
    net = hx.compile(path)
    assert 5 < near(net(image=IMAGE)) < CELLS
    near(net(image=IMAGE, iouThreshold=np.array([0.1])), overlap=0.1)
    outer.description.output[0].name = SCORES
    file.write_bytes(outer.SerializeToString())
    with pytest.raises(Error, match=f"got the output '{SCORES}', need one that a model of the pipeline computes"):
        hx.compile(path)
    outer.description.output[0].name = "confidence"
    outer.pipeline.models[0].pipeline.models[1].nonMaximumSuppression.confidenceInputFeatureName = "other"
    outer.pipeline.models[0].pipeline.models[1].description.input[0].name = "other"
    file.write_bytes(outer.SerializeToString())
    with pytest.raises(Error, match=r"got no value for 'other', need .*, in model 2, in detector"):
        hx.compile(path)


def test_commands_say_that_it_is_a_pipeline(apple: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli = in_this_process(capsys)
    path = exported(apple, tmp_path, program(apple, "FLOAT16"))
    ended = cli("info", path)
    assert (ended.code, ended.err) == (0, "")
    assert "a pipeline of 2 models: model 1, an ML program; model 2, non-maximum suppression" in ended.out
    assert "labels  5: cat, dog, car, bus, tree" in ended.out
    record = json.loads(cli("info", path, "--json").out)
    assert [m["kind"] for m in record["coreml"]["models"]] == ["an ML program", "non-maximum suppression"]
    np.savez(tmp_path / "x.npz", image=IMAGE)
    ended = cli("run", path, "--input", tmp_path / "x.npz")
    assert (ended.code, ended.err) == (0, "")
    ended = cli("check", path, "--target", "M4")
    assert ended.err == ""
    assert "non_max_suppression" in ended.out
