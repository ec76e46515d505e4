"""Non-maximum suppression of ML programs and of neural networks. Expected values are NumPy's, written from Apple's
description of NonMaximumSuppressionLayerParams in NeuralNetwork.proto."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import hexane as hx
from hexane.errors import Error

Array = np.ndarray
Results = tuple[Array, Array, Array, Array]


@pytest.fixture(scope="module")
def apple() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("coremltools", reason="coremltools is not installed")


def iou(a: Array, b: Array) -> float:
    """Of two boxes of a center and a size."""
    low, high = np.maximum(a[:2] - a[2:] / 2, b[:2] - b[2:] / 2), np.minimum(a[:2] + a[2:] / 2, b[:2] + b[2:] / 2)
    both = float(np.prod(np.maximum(high - low, 0)))
    return both / float(a[2] * a[3] + b[2] * b[3] - both)


def survivors(boxes: Array, scores: Array, overlap: float, least: float, within: bool) -> list[int]:
    """The boxes of one image that stay, by falling score."""
    best, kinds = scores.max(axis=1), scores.argmax(axis=1)
    chosen: list[int] = []
    for i in np.argsort(-best, kind="stable"):
        rivals = [k for k in chosen if not within or kinds[k] == kinds[i]]
        if best[i] >= least and all(iou(boxes[i], boxes[k]) <= overlap for k in rivals):
            chosen.append(int(i))
    return chosen


def expected(boxes: Array, scores: Array, overlap: float, least: float, most: int, within: bool) -> Results:
    images, _, classes = scores.shape
    found, their_scores = np.zeros((images, most, 4), np.float32), np.zeros((images, most, classes), np.float32)
    indices, numbers = np.full((images, most), -1), np.zeros(images, int)
    for i in range(images):
        stay = survivors(boxes[i], scores[i], overlap, least, within)[:most] or [int(scores[i].max(axis=1).argmax())]
        count = numbers[i] = len(stay)
        found[i, :count], their_scores[i, :count], indices[i, :count] = boxes[i, stay], scores[i, stay], stay
    return found, their_scores, indices, numbers


def detections(count: int, classes: int, images: int = 1, seed: int = 0) -> tuple[Array, Array]:
    """Clusters of boxes around a few objects."""
    rng = np.random.default_rng([count, classes, images, seed])
    objects = np.concatenate([rng.uniform(0, 60, (images, 5, 2)), rng.uniform(5, 20, (images, 5, 2))], axis=2)
    boxes = np.take_along_axis(objects, rng.integers(0, 5, (images, count, 1)), axis=1)
    boxes = (boxes * rng.uniform(0.8, 1.2, boxes.shape)).astype(np.float32)
    scores = rng.permutation(images * count * classes).reshape(images, count, classes)
    return boxes, (scores / scores.size).astype(np.float32)


def same(got: Any, want: Results) -> None:
    for array, right in zip(got.values(), want, strict=False):
        np.testing.assert_array_equal(np.asarray(array), right)


def ran(net: Any, **feeds: Array) -> Any:
    """Arrays of Core ML's neural networks are doubles by default."""
    kinds = {port.name: port.dtype.numpy for port in net.inputs}
    return net({name: array.astype(kinds[name]) for name, array in feeds.items()})


CASES = [(1, 10, 0.3, 0.4, False), (4, 10, 0.3, 0.4, True), (4, 60, 0.5, 0.0, True), (4, 3, 0.5, 0.2, False),
         (3, 20, 0.5, 2.0, True), (3, 20, 1.0, 0.9, False)]  # fmt: skip


def network(apple: Any, folder: Path, boxes: Array, scores: Array, inputs: int = 2, **options: Any) -> Path:
    from coremltools.models import datatypes
    from coremltools.models.neural_network import NeuralNetworkBuilder

    names = ["boxes", "scores", "overlap", "least", "most"][:inputs]
    shapes = [boxes.shape, scores.shape, (1,), (1,), (1,)]
    results = ["found", "their_scores", "indices", "number"]
    builder = NeuralNetworkBuilder(
        [(name, datatypes.Array(*shape)) for name, shape in zip(names, shapes, strict=False)],
        [(name, None) for name in results], disable_rank5_shape_mapping=True,
    )  # fmt: skip
    builder.add_nms("nms", names, results, **options)
    (folder / "net.mlmodel").write_bytes(builder.spec.SerializeToString())
    return folder / "net.mlmodel"


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize(("classes", "most", "overlap", "least", "within"), CASES)
def test_a_layer_keeps_the_boxes_that_apple_describes(
    apple: Any, tmp_path: Path, classes: int, most: int, overlap: float, least: float, within: bool, images: int
) -> None:
    """Also: more room than boxes, thresholds that no box reaches, and suppression of nothing."""
    boxes, scores = detections(40, classes, images)
    path = network(apple, tmp_path, boxes, scores, iou_threshold=overlap, score_threshold=least, max_boxes=most,
                   per_class_suppression=within)  # fmt: skip
    same(
        ran(hx.compile(path), boxes=boxes, scores=scores),
        expected(boxes, scores, overlap, np.float32(least), most, within),
    )


def test_a_layer_takes_thresholds_and_the_limit_as_inputs(apple: Any, tmp_path: Path) -> None:
    boxes, scores = detections(40, 3)
    net = hx.compile(network(apple, tmp_path, boxes, scores, inputs=5, per_class_suppression=True))
    for overlap, least, most in ((0.3, 0.5, 6), (0.6, 0.1, 12)):
        numbers = {"overlap": np.float32([overlap]), "least": np.float32([least]), "most": np.float32([most])}
        got = ran(net, boxes=boxes, scores=scores, **numbers)
        same(got, expected(boxes, scores, overlap, least, most, True))


def test_a_box_at_the_threshold_stays(apple: Any, tmp_path: Path) -> None:
    """Boxes below the threshold are rejected."""
    boxes, scores = np.float32([[[5, 5, 2, 2], [50, 50, 2, 2]]]), np.float32([[[0.9], [0.25]]])
    path = network(apple, tmp_path, boxes, scores, iou_threshold=0.5, score_threshold=0.25, max_boxes=2)
    assert ran(hx.compile(path), boxes=boxes, scores=scores)["indices"].tolist() == [[0, 1]]


@pytest.mark.parametrize("opset", ["iOS15", "iOS17"])
@pytest.mark.parametrize(("classes", "most", "overlap", "least", "within"), CASES)
def test_the_op_of_ml_programs_keeps_the_same(
    apple: Any, tmp_path: Path, classes: int, most: int, overlap: float, least: float, within: bool, opset: str
) -> None:
    """From iOS 17 on boxes lie on the last axis, and nothing is dropped for its score."""
    boxes, scores = detections(40, classes, images=2)
    old, mb = opset == "iOS15", apple.converters.mil.Builder
    given = [x if old else np.ascontiguousarray(x.transpose(0, 2, 1)) for x in (boxes, scores)]

    @mb.program(  # type: ignore[untyped-decorator]
        input_specs=[mb.TensorSpec(shape=x.shape) for x in given], opset_version=getattr(apple.target, opset)
    )
    def program(boxes: Any, scores: Any) -> Any:
        threshold = {"score_threshold": np.float32(least)} if old else {}
        return mb.non_maximum_suppression(boxes=boxes, scores=scores, iou_threshold=np.float32(overlap),
                                          max_boxes=most, per_class_suppression=within, **threshold)  # fmt: skip

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = apple.convert(program, convert_to="mlprogram", minimum_deployment_target=getattr(apple.target, opset),
                             skip_model_load=True, compute_precision=apple.precision.FLOAT32)  # fmt: skip
        made.save(str(tmp_path / "net.mlpackage"))
    want = expected(boxes, scores, overlap, np.float32(least if old else -np.inf), most, within)
    if not old:
        want = (want[0].transpose(0, 2, 1), want[1].transpose(0, 2, 1), want[2], want[3])
    got = hx.compile(tmp_path / "net.mlpackage")(*given)
    assert len(got) == (4 if old else 3)
    same(got, want)


def test_boxes_of_other_shapes_are_refused(apple: Any, tmp_path: Path) -> None:
    boxes, scores = np.zeros((1, 5, 4), np.float32), np.zeros((1, 6, 2), np.float32)
    path = network(apple, tmp_path, boxes, scores, max_boxes=2)
    with pytest.raises(Error, match=r"got boxes \[1, 5, 4\] and scores \[1, 6, 2\], need .*: nms"):
        hx.compile(path)


@pytest.mark.parametrize("seed", range(4))
def test_one_image_of_one_class_is_that_of_onnxruntime(apple: Any, tmp_path: Path, seed: int) -> None:
    runtime = pytest.importorskip("onnxruntime")
    boxes, scores = detections(200, 1, seed=seed)
    path = network(apple, tmp_path, boxes, scores, iou_threshold=0.4, score_threshold=0.1, max_boxes=30)
    names = ["boxes", "scores", "most", "iou", "least"]
    numbers = {"most": np.array([30]), "iou": np.float32([0.4]), "least": np.float32([0.1])}
    graph = helper.make_graph(
        [helper.make_node("NonMaxSuppression", names, ["y"], center_point_box=1)], "g",
        [helper.make_tensor_value_info("boxes", TensorProto.FLOAT, boxes.shape),
         helper.make_tensor_value_info("scores", TensorProto.FLOAT, (1, 1, 200))],
        [helper.make_tensor_value_info("y", TensorProto.INT64, None)],
        [numpy_helper.from_array(v, k) for k, v in numbers.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rows = session.run(None, {"boxes": boxes, "scores": scores.transpose(0, 2, 1)})[0]
    got = ran(hx.compile(path), boxes=boxes, scores=scores)
    count = int(got["number"][0])
    assert count == len(rows)
    np.testing.assert_array_equal(got["indices"][0, :count], rows[:, 2])


# ---- regions that are cut out ----

MODES = ["STRICT_ALIGN_ENDPOINTS_MODE", "ALIGN_ENDPOINTS_MODE", "UPSAMPLE_MODE", "ROI_ALIGN_MODE"]


def grid(first: float, last: float, count: int, mode: str) -> Array:
    """The places of SamplingMode in [first, last], in the words of NeuralNetwork.proto: x is last - first + 1."""
    x = last - first + 1
    if mode == "UPSAMPLE_MODE":
        start, end = 0.0, x - x / count
    elif mode == "ROI_ALIGN_MODE":
        spacing = max(1, x - 1) / count
        start, end = 0.5 * spacing, 0.5 * spacing + (count - 1) * spacing
    else:
        start, end = ((x - 1) / 2,) * 2 if count == 1 and mode == "ALIGN_ENDPOINTS_MODE" else (0.0, x - 1)
    return first + np.minimum(x - 1, np.linspace(start, end, count))


def bilinear(image: Array, rows: Array, columns: Array) -> Array:
    """image (channels, height, width) at each row and column."""
    for axis, places in ((1, rows), (2, columns)):
        low = np.floor(places).astype(int)
        high, part = np.minimum(low + 1, image.shape[axis] - 1), places - low
        shape = [-1 if i == axis else 1 for i in range(3)]
        image = image.take(low, axis) * (1 - part).reshape(shape) + image.take(high, axis) * part.reshape(shape)
    return image


ORDERS = {
    "CORNERS_HEIGHT_FIRST": lambda t, left, b, r: (t, left, b, r),
    "CORNERS_WIDTH_FIRST": lambda t, left, b, r: (left, t, r, b),
    "CENTER_SIZE_HEIGHT_FIRST": lambda t, left, b, r: ((t + b) / 2, (left + r) / 2, b - t, r - left),
    "CENTER_SIZE_WIDTH_FIRST": lambda t, left, b, r: ((left + r) / 2, (t + b) / 2, r - left, b - t),
}


@pytest.mark.parametrize("computed", [True, False])
@pytest.mark.parametrize(("order", "numbers", "size", "normalized", "scale"), [
    ("CORNERS_HEIGHT_FIRST", 4, (3, 4), False, 1.0), ("CORNERS_WIDTH_FIRST", 5, (14, 2), False, 0.5),
    ("CENTER_SIZE_HEIGHT_FIRST", 5, (1, 1), True, 1.0), ("CENTER_SIZE_WIDTH_FIRST", 4, (20, 20), True, 1.0),
])  # fmt: skip
@pytest.mark.parametrize("mode", MODES)
def test_regions_are_cut_out_as_apple_describes(
    apple: Any, tmp_path: Path, mode: str, order: str, numbers: int, size: tuple[int, int], normalized: bool,
    scale: float, computed: bool,
) -> None:  # fmt: skip
    """The last box is smaller than a pixel, the first is the whole image."""
    from coremltools.models import datatypes
    from coremltools.models.neural_network import NeuralNetworkBuilder

    images = np.random.default_rng(5).standard_normal((2, 3, 9, 12)).astype(np.float32)
    corners = np.array([[0, 0, 8, 11], [1.5, 2, 6.25, 9], [3, 3.5, 3.5, 4]]) / scale
    named = [1, 0, 1]
    given = corners / [8, 11, 8, 11] if normalized else corners
    boxes = np.array([ORDERS[order](*box) for box in given])
    boxes = np.column_stack([named, boxes]) if numbers == 5 else boxes
    boxes = boxes.reshape(3, 1, numbers, 1, 1).astype(np.float32)
    ports = [("x", datatypes.Array(1, *images.shape)), ("boxes", datatypes.Array(*boxes.shape))]
    builder = NeuralNetworkBuilder(ports[: 1 + computed], [("y", None)], disable_rank5_shape_mapping=True)
    if not computed:
        builder.add_load_constant_nd("boxes", "boxes", boxes, boxes.shape)
    builder.add_crop_resize("crop", ["x", "boxes"], "y", *size, mode, normalized, order, scale)
    (tmp_path / "net.mlmodel").write_bytes(builder.spec.SerializeToString())
    feeds = {"x": images[None], "boxes": boxes} if computed else {"x": images[None]}
    got = ran(hx.compile(tmp_path / "net.mlmodel"), **feeds)
    want = []
    for (top, left, bottom, right), index in zip(corners * scale, named, strict=True):
        places = grid(top, bottom, size[0], mode), grid(left, right, size[1], mode)
        want.append([bilinear(image, *places) for image in (images[index : index + 1] if numbers == 5 else images)])
    np.testing.assert_allclose(got, np.array(want), rtol=1e-4, atol=1e-4)
