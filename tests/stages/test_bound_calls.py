"""Bound calls: they work in the buffers that they are given, and refuse wrong ones."""

from typing import Any

import numpy as np
import pytest

from hexane import _core
from hexane.errors import Error
from plans import copy_plan, ramp


def test_a_bound_call_works_in_its_buffers():
    program = _core.Program(copy_plan().tobytes())
    x, y = ramp(), np.zeros((3, 4), np.float32)
    call = program.bind({"x": x, "y": y})
    assert call.inputs["x"] is x
    assert call.outputs["y"] is y
    for value in (1, 2):
        x[:] = value
        assert call() is None
        assert (y == value).all()


def test_two_bound_calls_of_a_program_do_not_mix():
    program = _core.Program(copy_plan().tobytes())
    calls = [program.bind({"x": np.full((3, 4), value, np.float32)}) for value in range(3)]
    for _ in range(2):
        for value, call in enumerate(calls):
            call()
            assert (call.outputs["y"] == value).all()
            assert (program.run([ramp()])[0] == ramp()).all()


def test_a_bound_call_keeps_program_and_buffers_alive():
    buffer = bytearray(ramp().tobytes())
    view = memoryview(buffer).cast("B").cast("f", (3, 4))
    call = _core.Program(copy_plan().tobytes()).bind({"x": view})
    del view
    with pytest.raises(BufferError):
        buffer.clear()
    call()
    assert np.array_equal(call.outputs["y"], ramp())


def test_a_bound_call_takes_no_arguments():
    call = _core.Program(copy_plan().tobytes()).bind({"x": ramp()})
    with pytest.raises(TypeError, match="takes no arguments"):
        call(1)
    with pytest.raises(TypeError, match="takes no arguments"):
        call(x=1)


def test_a_bound_call_is_only_made_by_bind():
    with pytest.raises(TypeError, match="cannot create"):
        _core.Bound()


def read_only() -> Any:
    y = np.zeros((3, 4), np.float32)
    y.flags.writeable = False
    return y


SHARED = np.zeros(64, np.float32)
MISALIGNED = np.zeros(49, np.uint8)[1:].view(np.float32).reshape(3, 4)


@pytest.mark.parametrize(
    ("buffers", "message"),
    [
        ({}, r"\[input 'x'\] got nothing, need a buffer"),
        ({"x": ramp(), "z": ramp()}, "got the name 'z', which no port has"),
        ({"x": ramp(), "y": ramp((4, 3))}, r"\[output 'y'\] shape: got \(4, 3\), need \(3, 4\)"),
        ({"x": ramp(), "y": ramp(dtype=np.float16)}, r"\[output 'y'\] dtype: got float16, need float32"),
        ({"x": ramp(dtype=">f4")}, r"\[input 'x'\] dtype: got >f4, need float32 in native byte order"),
        ({"x": ramp((4, 3)).T}, r"\[input 'x'\] strides: got \(4, 12\), need C-contiguous"),
        ({"x": ramp(), "y": np.zeros((3, 8), np.float32)[:, ::2]}, r"\[output 'y'\] strides: got \(32, 8\), need"),
        ({"x": MISALIGNED}, r"\[input 'x'\] address: got .* need it aligned to 4 bytes"),
        ({"x": ramp(), "y": read_only()}, r"\[output 'y'\] got a read-only buffer"),
        ({"x": ramp(), "y": bytes(48)}, r"\[output 'y'\] dtype: got uint8"),
        (
            {"x": SHARED[:12].reshape(3, 4), "y": SHARED[11:23].reshape(3, 4)},
            r"\[output 'y'\] its buffer overlaps that of input 'x'",
        ),
        (
            {"x": SHARED[11:23].reshape(3, 4), "y": SHARED[:12].reshape(3, 4)},
            r"\[input 'x'\] its buffer overlaps that of output 'y'",
        ),
        (
            {"x": SHARED[:12].reshape(3, 4), "y": SHARED[:12].reshape(3, 4)},
            "its buffer overlaps that of",
        ),
        ({"x": [1.0]}, r"\[input 'x'\] got list, need an array"),
    ],
)
def test_wrong_buffers_are_refused(buffers: dict[str, Any], message: str):
    with pytest.raises(Error, match=message):
        _core.Program(copy_plan().tobytes()).bind(buffers)


def test_buffers_that_touch_do_not_overlap():
    x, y = SHARED[:12].reshape(3, 4), SHARED[12:24].reshape(3, 4)
    x[:] = ramp()
    _core.Program(copy_plan().tobytes()).bind({"x": x, "y": y})()
    assert np.array_equal(y, ramp())
