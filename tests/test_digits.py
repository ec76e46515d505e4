"""The shipped digits example: its files are what they say they are, and its NumPy reference can be trusted."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest

DIGITS = Path(__file__).parents[1] / "examples" / "digits"
MODEL = DIGITS / "digits.onnx"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("digits_reference", DIGITS / "reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def held_out(reference):
    return reference.held_out(DIGITS / "held_out.npz")


@pytest.fixture(scope="module")
def expected(reference, held_out):
    return reference.probabilities(held_out[0], reference.load_weights(MODEL))


def test_model_file_is_small_and_valid():
    assert MODEL.stat().st_size <= 300_000
    onnx.checker.check_model(onnx.load(MODEL), full_check=True)


def test_held_out_split_has_every_digit_about_equally_often(held_out):
    images, labels = held_out
    assert images.shape == (360, 1, 8, 8)
    assert images.dtype == np.float32
    assert images.min() == 0
    assert images.max() == 1
    counts = np.bincount(labels, minlength=10)
    assert len(counts) == 10
    assert counts.min() >= 34
    assert counts.max() <= 38


def test_reference_stays_in_fp32_and_gives_probabilities(expected):
    assert expected.dtype == np.float32
    np.testing.assert_allclose(expected.sum(axis=1), 1, atol=1e-5)


def test_reference_equals_onnxruntime(held_out, expected):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    answers = np.concatenate([session.run(None, {"image": image[None]})[0] for image in held_out[0]])
    assert np.abs(answers - expected).max() <= 1e-5 * np.abs(answers).max()


def test_held_out_accuracy_is_at_least_98_percent(held_out, expected):
    assert (expected.argmax(axis=1) == held_out[1]).mean() >= 0.98
