"""The shipped digits example: its files are what they say they are, and hexane agrees with its NumPy reference."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest

import hexane as hx
from compare import assert_close

DIGITS = Path(__file__).parents[2] / "examples" / "digits"
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
    assert_close(expected, answers)


def test_held_out_accuracy_is_at_least_98_percent(held_out, expected):
    assert (expected.argmax(axis=1) == held_out[1]).mean() >= 0.98


@pytest.mark.parametrize("threads", [1, 2])
def test_hexane_equals_the_reference(threads, held_out, expected):
    net = hx.compile(MODEL, threads=threads)
    answers = np.concatenate([net(image[None]) for image in held_out[0]])
    assert_close(answers, expected)


def test_hexane_held_out_accuracy_is_at_least_98_percent(held_out):
    images, labels = held_out
    net = hx.compile(MODEL)
    predicted = [net(image[None]).argmax() for image in images]
    assert np.mean(predicted == labels) >= 0.98


def test_bound_call_follows_its_input_buffer(held_out):
    net = hx.compile(MODEL)
    image, answer = np.empty((1, 1, 8, 8), np.float32), np.empty((1, 10), np.float32)
    call = net.bind(image=image, probabilities=answer)
    for held in held_out[0][:20]:
        image[0] = held
        call()
        np.testing.assert_array_equal(answer, net(held[None]))


def test_run_prints_pictures_accuracy_latency_and_device():
    ran = subprocess.run([sys.executable, DIGITS / "run.py"], check=True, capture_output=True, encoding="utf-8")
    assert "█" in ran.stdout
    assert re.search(r"^accuracy    hexane (9[89]|100)\.\d\d% of 360 held-out images", ran.stdout, re.MULTILINE)
    for line in (
        "predicted",
        "label",
        "disagree    on 0 images",
        "latency     median",
        "ran on",
    ):
        assert line in ran.stdout
