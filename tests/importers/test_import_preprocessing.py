"""n-grams and encoded images in ONNX files."""

import io
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import hexane as hx
from onnx_models import by_onnxruntime, model, node

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)


def tf_idf(x: Any, **attributes: Any) -> onnx.ModelProto:
    return model([node("TfIdfVectorizer", "x", "y", **attributes)], {"x": x}, ["y"])


def random_grams(rng: np.random.Generator) -> dict[str, Any]:
    """Single numbers, pairs and triples of small numbers, some of them twice, in columns of any order."""
    lengths = [int(n) for n in rng.integers(0, 6, 3)]
    grams = [rng.integers(0, 4, (count, length)) for length, count in enumerate(lengths, 1)]
    count = sum(lengths)
    begins = np.cumsum([0, *[g.size for g in grams]])[:-1]
    return {
        "pool_int64s": np.concatenate([g.reshape(-1) for g in grams]).tolist(),
        "ngram_counts": begins.tolist(),
        "ngram_indexes": rng.permutation(count).tolist(),
        "weights": rng.standard_normal(count).astype(np.float32).tolist(),
    }


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
def test_counts_of_n_grams_are_those_of_onnxruntime(mode: str, dtype: Any) -> None:
    rng = np.random.default_rng(5)
    for turn in range(20):
        grams = random_grams(rng)
        if not grams["pool_int64s"] or len(set(map(tuple, _rows(grams)))) < len(grams["ngram_indexes"]):
            continue  # onnxruntime refuses an n-gram that is there twice
        shape = (int(rng.integers(1, 4)), int(rng.integers(1, 12)))[turn % 2 :]
        x = rng.integers(0, 4, shape).astype(dtype)
        least = int(rng.integers(1, 3))
        options = {"mode": mode, "min_gram_length": least, "max_gram_length": int(rng.integers(least, 4))}
        proto = tf_idf(x, **grams, **options, max_skip_count=int(rng.integers(0, 4)))
        (want,) = by_onnxruntime(proto, {"x": x})
        np.testing.assert_allclose(hx.compile(proto, target="host")(x), want, rtol=1e-6)


def _rows(grams: dict[str, Any]) -> list[list[int]]:
    pool, ends = grams["pool_int64s"], [*grams["ngram_counts"], len(grams["pool_int64s"])]
    return [
        pool[at : at + length]
        for length, (begin, end) in enumerate(pairwise(ends), 1)
        for at in range(begin, end, length)
    ]


def test_n_grams_of_one_column_are_added() -> None:
    x = np.array([1, 2, 2, 1, 2], np.int32)
    grams = {"pool_int64s": [1, 2, 1, 2], "ngram_counts": [0, 2], "ngram_indexes": [1, 1, 0]}
    options = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 0}
    got = hx.compile(tf_idf(x, **grams, **options), target="host")(x)
    np.testing.assert_array_equal(got, [2, 5])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ngram_counts": [0, 3]}, "ngram_counts: got"),
        ({"ngram_indexes": [0]}, "got 1 ngram_indexes"),
        ({"mode": "tf"}, "mode='tf'"),
        ({"max_skip_count": -1}, "max_skip_count=-1"),
    ],
)
def test_a_damaged_vectorizer_is_an_error(changed: dict[str, Any], message: str) -> None:
    grams = {"pool_int64s": [1, 2, 1, 2], "ngram_counts": [0, 2], "ngram_indexes": [1, 2, 0]}
    options = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 0}
    with pytest.raises(hx.Error, match=message):
        hx.compile(tf_idf(np.zeros(4, np.int32), **{**grams, **options, **changed}), target="host")


def encoded(form: str) -> np.ndarray:
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed: pip install 'hexane[images]'")
    file = io.BytesIO()
    image.fromarray(PIXELS).save(file, format=form)
    return np.frombuffer(file.getvalue(), np.uint8)


def decoder(data: Any, **attributes: Any) -> onnx.ModelProto:
    return model([node("ImageDecoder", "x", "y", **attributes)], {"x": data}, ["y"], opset=20)


@pytest.mark.parametrize("form", ["PNG", "BMP", "PPM", "TIFF"])
@pytest.mark.parametrize("pixel_format", ["RGB", "BGR"])
def test_an_image_is_its_pixels(form: str, pixel_format: str) -> None:
    data = encoded(form)
    net = hx.compile(decoder(data, pixel_format=pixel_format), target="host", input_values={"x": data})
    np.testing.assert_array_equal(net(), PIXELS if pixel_format == "RGB" else PIXELS[..., ::-1])


def test_a_grey_image_has_one_channel() -> None:
    data = encoded("PNG")
    net = hx.compile(decoder(data, pixel_format="Grayscale"), target="host", input_values={"x": data})
    assert net().shape == (5, 7, 1)


def test_bytes_of_no_image_are_an_error() -> None:
    encoded("PNG")
    data = np.arange(40, dtype=np.uint8)
    with pytest.raises(hx.Error, match="got 40 bytes that are no image"):
        hx.compile(decoder(data), target="host", input_values={"x": data})


def test_an_op_that_an_old_opset_has_as_opset_6_is_taken() -> None:
    x = np.array([True, False])
    proto = model([node("Not", "x", "y")], {"x": x}, ["y"], opset=1)
    np.testing.assert_array_equal(hx.compile(proto, target="host")(x), ~x)
    proto = model([helper.make_node("Relu", ["x"], ["y"])], {"x": np.ones(2, np.float32)}, ["y"], opset=1)
    with pytest.raises(hx.Error, match="got it as opset 1 has it, need opset 6 or newer"):
        hx.compile(proto, target="host")
