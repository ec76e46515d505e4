"""Detectors' boxes, spectra, quotients of bytes and results as long as the data say, against LiteRT."""

import contextlib
from typing import Any

import numpy as np
import pytest
from flatbuffers import flexbuffers

import hexane as hx
from hexane.errors import Error, UnsupportedError
from hexane.importers.tflite.flex import numbers
from tflite_references import reference
from tflite_writer import TfliteModel

OPTIONS = {
    "max_detections": 7, "max_classes_per_detection": 1, "detections_per_class": 20, "nms_iou_threshold": 0.4,
    "nms_score_threshold": 0.3, "num_classes": 5, "y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0,
    "use_regular_nms": False,
}  # fmt: skip


def results(net: Any, *feeds: np.ndarray) -> list[np.ndarray]:
    made = net(*feeds)
    return list(made) if isinstance(made, tuple) else list(made.values()) if isinstance(made, dict) else [made]


def equal(got: Any, want: np.ndarray) -> None:
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def post_process(count: int = 60, background: int = 1, quantised: bool = False, **options: Any) -> TfliteModel:
    rng, m = np.random.default_rng(3), TfliteModel()
    kind: dict[str, Any] = {"kind": "uint8"} if quantised else {}
    anchors = np.concatenate([rng.uniform(0, 1, (count, 2)), rng.uniform(0.05, 0.4, (count, 2))], axis=1)
    given = {**OPTIONS, **options}
    columns = given["num_classes"] + background
    boxes = m.tensor((1, count, 4), **kind, **({"scales": 1 / 40, "zero": 128} if quantised else {}))
    scores = m.tensor((1, count, columns), **kind, **({"scales": 1 / 256} if quantised else {}))
    if quantised:
        fixed = m.tensor((count, 4), "uint8", (anchors * 200).round(), scales=1 / 200)
    else:
        fixed = m.tensor((count, 4), "float32", anchors)
    total = given["max_detections"] * given["max_classes_per_detection"]
    out = [m.tensor(shape) for shape in ((1, total, 4), (1, total), (1, total), (1,))]
    m.op("TFLite_Detection_PostProcess", [boxes, scores, fixed], out, **given)
    m.graph["inputs"], m.graph["outputs"] = [boxes, scores], out
    return m


@pytest.mark.parametrize(
    "options",
    [{}, {"background": 0}, {"max_classes_per_detection": 3}, {"use_regular_nms": True}, {"quantised": True},
     {"use_regular_nms": True, "detections_per_class": 2}, {"nms_score_threshold": 0.97}, {"max_detections": 80},
     {"use_regular_nms": True, "nms_score_threshold": 0.999}, {"count": 3}],
    ids=str,
)  # fmt: skip
def test_the_boxes_of_an_ssd_network_are_those_of_litert(options: dict[str, Any]) -> None:
    data, quantised = post_process(**options).tobytes(), options.get("quantised", False)
    count, columns = options.get("count", 60), 5 + options.get("background", 1)
    net = hx.compile(data, threads=1)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        boxes, scores = rng.normal(0, 2, (1, count, 4)).astype("f"), rng.uniform(0, 1, (1, count, columns)).astype("f")
        if quantised:
            boxes = (boxes * 40 + 128).clip(0, 255).astype(np.uint8)
            best = rng.permutation(np.arange(100, 256))[:count]  # no two boxes with one best score
            scores = (rng.random((count, columns)) * best[:, None]).astype(np.uint8)
            scores[np.arange(count), rng.integers(1, columns, count)] = best
            scores = scores[None]
        got, want = results(net, boxes, scores), reference(data, boxes, scores)
        number = int(want[3][0]) * (
            1 if options.get("use_regular_nms") else options.get("max_classes_per_detection", 1)
        )
        assert got[3] == want[3]
        for mine, theirs in zip(got[:3], want[:3], strict=True):
            assert mine.shape == theirs.shape
            equal(mine[:, :number], theirs[:, :number])
            assert not mine[:, number:].any()  # LiteRT leaves these as they were


@pytest.mark.parametrize("regular", [False, True])
def test_a_detection_has_places_for_more_classes_than_there_are(regular: bool) -> None:
    """LiteRT has max_classes_per_detection places for each detection, also where there are fewer classes, and where
    regular suppression uses one of them."""
    options = {"count": 9, "max_detections": 4, "max_classes_per_detection": 7, "use_regular_nms": regular}
    data = post_process(**options).tobytes()
    for seed in range(5):
        rng = np.random.default_rng(seed)
        feeds = rng.normal(0, 2, (1, 9, 4)).astype("f"), rng.uniform(0, 1, (1, 9, 6)).astype("f")
        got, want = results(hx.compile(data, threads=1), *feeds), reference(data, *feeds)
        number, classes = int(want[3][0]), 1 if regular else 5
        assert got[3] == want[3]
        for mine, theirs in zip(got[:3], want[:3], strict=True):
            assert mine.shape == theirs.shape == (1, 28, *mine.shape[2:])
            shape = (28, 1) if regular else (4, 7)
            mine, theirs = (x.reshape(*shape, -1) for x in (mine, theirs))
            equal(mine[:number, :classes], theirs[:number, :classes])
            assert not mine[number:].any()
            assert not mine[:, classes:].any()


def test_a_damaged_map_of_options_is_an_error() -> None:
    data = post_process().tobytes()
    at = data.index(b"max_detections")
    rng = np.random.default_rng(0)
    for _ in range(300):
        changed = bytearray(data)
        for place in rng.integers(at - 40, at + 400, 3):
            changed[place] = int(rng.integers(256))
        with contextlib.suppress(Error, UnsupportedError):
            hx.compile(bytes(changed), threads=1)


def test_maps_of_options_are_read_as_their_writer_reads_them() -> None:
    rng = np.random.default_rng(4)
    for _ in range(200):
        held: dict[str, Any] = {
            f"k{i}": [
                int(rng.integers(-(2**40), 2**40)),
                float(rng.normal()),
                bool(rng.integers(2)),
                int(rng.integers(9)),
            ][int(rng.integers(4))]
            for i in range(int(rng.integers(0, 40)))
        }
        data = flexbuffers.Dumps({**held, "text": "left out"})
        assert numbers(bytes(data)) == {k: v for k, v in flexbuffers.Loads(data).items() if k != "text"}


def suppression(most: int, overlap: float, least: float, soft: float | None = None) -> TfliteModel:
    m = TfliteModel()
    boxes, scores = m.tensor((40, 4)), m.tensor((40,))
    numbers = [m.tensor((), "int32", np.int32(most)), m.tensor((), "float32", overlap), m.tensor((), "float32", least)]
    out = [m.tensor((most,), "int32"), m.tensor((), "int32")]
    if soft is not None:
        numbers.append(m.tensor((), "float32", soft))
        out.insert(1, m.tensor((most,)))
    m.op(f"NON_MAX_SUPPRESSION_V{4 if soft is None else 5}", [boxes, scores, *numbers], out)
    m.graph["inputs"], m.graph["outputs"] = [boxes, scores], out
    return m


@pytest.mark.parametrize("soft", [None, 0.0])
@pytest.mark.parametrize(("most", "overlap", "least"), [(9, 0.3, 0.2), (40, 0.5, -9.0), (60, 1.0, 0.0), (5, 0.0, 0.0)])
def test_selected_boxes_are_those_of_litert(most: int, overlap: float, least: float, soft: float | None) -> None:
    """With squares of one size on a grid, some overlaps are exactly the threshold."""
    data = suppression(most, overlap, least, soft).tobytes()
    net = hx.compile(data, threads=1)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        corner = rng.integers(0, 6, (40, 2)) / 2
        boxes = np.concatenate([corner, corner + rng.choice([1, -1, 1.5], (40, 2))], axis=1).astype("f")
        scores = rng.permutation(40).astype("f") / 40
        for got, want in zip(results(net, boxes, scores), reference(data, boxes, scores), strict=True):
            equal(np.asarray(got), want)


def test_soft_suppression_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="soft suppression"):
        hx.compile(suppression(5, 0.5, 0.0, 0.5).tobytes())


@pytest.mark.parametrize(("shape", "lengths"), [((3, 1, 64), (1, 64)), ((3, 1, 50), (1, 64)), ((2, 9, 20), (8, 16))])
@pytest.mark.parametrize("part", ["COMPLEX_ABS", "REAL", "IMAG"])
def test_spectra_are_those_of_litert(shape: tuple[int, ...], lengths: tuple[int, int], part: str) -> None:
    m, spectrum = TfliteModel(), (shape[0], lengths[0], lengths[1] // 2 + 1)
    x, fixed = m.tensor(shape), m.tensor((2,), "int32", np.array(lengths))
    z, flat = m.tensor(spectrum, "COMPLEX64"), m.tensor((spectrum[0] * spectrum[1], spectrum[2]), "COMPLEX64")
    y = m.tensor((spectrum[0] * spectrum[1], spectrum[2]))
    wanted = m.tensor((2,), "int32", np.array([-1, spectrum[2]]))
    m.op("RFFT2D", [x, fixed], [z])
    m.op("RESHAPE", [z, wanted], [flat], new_shape=[-1, spectrum[2]])
    m.op(part, [flat], [y])
    m.graph["inputs"], m.graph["outputs"] = [x], [y]
    data, feed = m.tobytes(), np.random.default_rng(1).normal(0, 3, shape).astype("f")
    (want,) = reference(data, feed)
    got = np.asarray(hx.compile(data, threads=1)(feed))
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * float(np.abs(want).max()))


@pytest.mark.parametrize("squeezed", [[1], [-2], []])
def test_a_spectrum_of_keras_is_cast_to_its_real_parts(squeezed: list[int]) -> None:
    """As tf.signal.stft and tf.cast write it: an axis of 1 before RFFT2D, taken off after it."""
    m, feed = TfliteModel(), np.random.default_rng(1).normal(0, 3, (4, 64)).astype("f")
    x, four = m.tensor((4, 64)), m.tensor((4, 1, 64))
    z, flat, back = m.tensor((4, 1, 33), "COMPLEX64"), m.tensor((4, 33), "COMPLEX64"), m.tensor((4, 33, 1), "COMPLEX64")
    y, shape = m.tensor((4, 33, 1)), m.tensor((3,), "int32")
    m.op("EXPAND_DIMS", [x, m.tensor((), "int32", np.array(1))], [four])
    m.op("RFFT2D", [four, m.tensor((2,), "int32", np.array([1, 64]))], [z])
    m.op("SQUEEZE", [z], [flat], squeeze_dims=squeezed)
    m.op("EXPAND_DIMS", [flat, m.tensor((), "int32", np.array(-1))], [back])
    m.op("CAST", [back], [y])
    m.op("SHAPE", [back], [shape], out_type=2)
    m.graph["inputs"], m.graph["outputs"] = [x], [y, shape]
    data = m.tobytes()
    want, extents = reference(data, feed)
    got, got_extents = results(hx.compile(data, threads=1), feed)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * float(np.abs(want).max()))
    np.testing.assert_array_equal(got_extents, extents)


@pytest.mark.parametrize("part", ["REAL", "IMAG"])
def test_a_float_cast_to_complex_has_no_imaginary_part(part: str) -> None:
    m, feed = TfliteModel(), np.array([1.5, -2, 0, np.inf], "f")
    x, z, y = m.tensor((4,)), m.tensor((4,), "COMPLEX64"), m.tensor((4,))
    m.op("CAST", [x], [z])
    m.op(part, [z], [y])
    m.graph["inputs"], m.graph["outputs"] = [x], [y]
    np.testing.assert_array_equal(np.asarray(hx.compile(m.tobytes(), threads=1)(feed)), reference(m.tobytes(), feed)[0])


def test_complex_numbers_are_no_output() -> None:
    m = TfliteModel()
    x, z = m.tensor((1, 8)), m.tensor((1, 5), "COMPLEX64")
    m.op("RFFT2D", [x, m.tensor((2,), "int32", np.array([1, 8]))], [z])
    m.graph["inputs"], m.graph["outputs"] = [x], [z]
    with pytest.raises(UnsupportedError, match="complex numbers as an output"):
        hx.compile(m.tobytes())


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("scale", [0.004, 0.05, 3.0])
def test_quotients_of_bytes_have_the_bits_of_litert(kind: str, scale: float) -> None:
    """All pairs of bytes but two kinds that LiteRT does not define: a divisor of 0, and quotients so small that it
    shifts int32 by more than 31 bits, which it may turn into -128."""
    m, info = TfliteModel(), np.iinfo(kind)
    middle = (info.min + info.max + 1) // 2
    x, y = (m.tensor((256, 256), kind, scales=s, zero=middle + z) for s, z in ((0.03, 7), (0.02, -11)))
    out = m.tensor((256, 256), kind, scales=scale, zero=middle + 2)
    m.op("DIV", [x, y], [out], fused_activation_function=1 if scale == 3.0 else 0)
    m.graph["inputs"], m.graph["outputs"] = [x, y], [out]
    every = np.arange(info.min, info.max + 1).astype(kind)
    feeds = np.repeat(every[:, None], 256, 1), np.repeat(every[None], 256, 0)
    data, divisor = m.tobytes(), feeds[1].astype(int) - middle + 11
    got = np.asarray(hx.compile(data, threads=1)(*feeds)).astype(int)
    (want,) = reference(data, feeds[0], np.where(divisor == 0, every[-1], feeds[1]).astype(kind))
    with np.errstate(all="ignore"):
        steps = (feeds[0].astype(int) - middle - 7) * 0.03 / (divisor * 0.02) / scale
    exact = (np.nan_to_num(steps) + middle + 2).clip(middle + 2 if scale == 3.0 else info.min, info.max)
    assert np.abs(got - exact).max() <= 1
    defined = (divisor != 0) & (np.abs(steps) > 0.25) & (np.abs(want - exact) <= 1)
    assert defined.mean() > 0.6
    assert np.array_equal(got[defined], want[defined])


def test_a_transposed_convolution_quantises_each_image() -> None:
    rng, m = np.random.default_rng(5), TfliteModel()
    x, shape = m.tensor((2, 5, 6, 9)), m.tensor((4,), "int32", np.array([2, 10, 12, 7]))
    w = m.tensor((7, 3, 3, 9), "int8", rng.integers(-127, 128, (7, 3, 3, 9)), rng.uniform(0.001, 0.02, 7))
    bias, y = m.tensor((7,), "float32", rng.normal(0, 1, 7)), m.tensor((2, 10, 12, 7))
    m.op("TRANSPOSE_CONV", [shape, w, x, bias], [y], stride_h=2, stride_w=2, padding=0)
    m.codes[-1]["version"] = 3
    m.graph["inputs"], m.graph["outputs"] = [x], [y]
    data, feed = m.tobytes(), (rng.normal(0, 3, (2, 5, 6, 9)) * [[[[1]]], [[[40]]]]).astype("f")
    (want,) = reference(data, feed)
    got = np.asarray(hx.compile(data, threads=1)(feed))
    for mine, theirs in zip(got, want, strict=True):
        assert np.abs(mine - theirs).max() <= 1e-5 * np.abs(theirs).max()


def test_places_and_distinct_numbers_are_as_many_as_the_data_say() -> None:
    m = TfliteModel()
    x, k = m.tensor((3, 5), "bool"), m.tensor((12,), "int32")
    places, values, at = m.tensor((15, 2), "int64"), m.tensor((12,), "int32"), m.tensor((12,), "int32")
    m.op("WHERE", [x], [places])
    m.op("UNIQUE", [k], [values, at], idx_out_type=2)
    m.graph["inputs"], m.graph["outputs"] = [x, k], [places, values, at]
    data, rng = m.tobytes(), np.random.default_rng(2)
    net = hx.compile(data, threads=1)
    for chance in (0.2, 0.5, 1.0):  # LiteRT gives no empty tensor back
        feeds = rng.random((3, 5)) < chance, rng.integers(-3, 4, 12).astype(np.int32)
        for got, want in zip(results(net, *feeds), reference(data, *feeds), strict=True):
            assert np.array_equal(got, want)
