"""What a bound call holds: nothing that Python does to it, or to its arrays, reaches memory that is not theirs."""

import copy
import gc
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hexane as hx

pytestmark = pytest.mark.usefixtures("young")
SIZE = 40_000  # floats: freed memory of that size goes back to the system


def bound() -> Any:
    x = hx.input("x", (SIZE,))
    return hx.compile({"y": hx.relu(x), "z": x + 1.0}, threads=1).bind(
        x=np.full(SIZE, 2, np.float32), y=np.zeros(SIZE, np.float32)
    )


def works(call: Any) -> None:
    for array in (*call.inputs.values(), *call.outputs.values()):
        assert array.shape == (SIZE,)
    call.inputs["x"][:] = 3
    call()
    assert (call.outputs["y"] == 3).all()
    assert (call.outputs["z"] == 4).all()


SIDES = pytest.mark.parametrize(("side", "name"), [("inputs", "x"), ("outputs", "y"), ("outputs", "z")])

OF_MAPPINGS: dict[str, Callable[[Any, str], Any]] = {
    "setitem": lambda m, name: operator.setitem(m, name, np.zeros(1)),
    "delitem": lambda m, name: operator.delitem(m, name),
    "clear": lambda m, name: m.clear(),
    "pop": lambda m, name: m.pop(name),
    "popitem": lambda m, name: m.popitem(),
    "update": lambda m, name: m.update({name: np.zeros(1)}),
    "setdefault": lambda m, name: m.setdefault("new", np.zeros(1)),
    "ior": lambda m, name: operator.ior(m, {name: np.zeros(1)}),
    "init": lambda m, name: m.__init__({}),
}


@SIDES
@pytest.mark.parametrize("change", OF_MAPPINGS)
def test_the_mappings_of_a_bound_call_are_read_only(side: str, name: str, change: str) -> None:
    call = bound()
    try:
        OF_MAPPINGS[change](getattr(call, side), name)
    except (TypeError, AttributeError):
        pass
    else:
        assert change in ("ior", "init")  # which make something else, or do nothing
    works(call)


@SIDES
def test_the_dict_behind_a_mapping_does_not_hold_the_buffers(side: str, name: str) -> None:
    class Thief:
        """Comparing a mapping proxy gives the other object the mapping behind it."""

        def __eq__(self, other: object) -> bool:
            other.clear()  # type: ignore[attr-defined]
            return True

        __hash__ = None  # type: ignore[assignment]

    call = bound()
    y, z = call.outputs["y"], call.outputs["z"]
    _ = getattr(call, side) == Thief()
    gc.collect()
    call()
    assert (y == 2).all()
    assert (z == 3).all()


@pytest.mark.parametrize("name", ["inputs", "outputs", "new"])
def test_attributes_of_a_bound_call_cannot_be_set_or_deleted(name: str) -> None:
    call = bound()
    with pytest.raises((AttributeError, TypeError)):
        setattr(call, name, {})
    with pytest.raises((AttributeError, TypeError)):
        delattr(call, name)
    with pytest.raises(TypeError):
        setattr(type(call), name, {})
    with pytest.raises(TypeError):
        call.__class__ = type("Other", (), {})
    works(call)


def test_a_bound_call_is_neither_copied_nor_derived_from() -> None:
    call = bound()
    for copying in (copy.copy, copy.deepcopy):
        with pytest.raises(hx.Error, match="got a bound call, which holds buffers of this process"):
            copying(call)
    with pytest.raises(TypeError):
        type("Derived", (type(call),), {})
    works(call)


def other_memory(array: Any) -> None:
    array.__setstate__((1, (1,), np.dtype(np.float32), False, b"\0" * 4))


def same_size_elsewhere(array: Any) -> None:
    array.__setstate__((1, (SIZE,), np.dtype(np.float32), False, b"\0" * 4 * SIZE))


OF_ARRAYS: dict[str, Callable[[Any], Any]] = {
    "resize": lambda a: a.resize(1, refcheck=False),
    "grow": lambda a: a.resize(SIZE * 100, refcheck=False),
    "setstate": other_memory,
    "setstate of the same size": same_size_elsewhere,
    "data": lambda a: setattr(a, "data", np.zeros(SIZE, np.float32).data),
    "shape": lambda a: setattr(a, "shape", (2, SIZE // 2)),
    "strides": lambda a: setattr(a, "strides", (0,)),
    "dtype": lambda a: setattr(a, "dtype", np.int32),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@SIDES
@pytest.mark.parametrize("change", OF_ARRAYS)
def test_an_array_that_was_changed_in_place_is_refused_or_cannot_be_changed(side: str, name: str, change: str) -> None:
    call = bound()
    array = getattr(call, side)[name]
    try:
        OF_ARRAYS[change](array)
    except (ValueError, AttributeError, TypeError):
        works(call)
    else:
        with pytest.raises(
            hx.Error, match=rf"\[{side[:-1]}put '{name}'\] got an array that was changed|'{name}'\] got"
        ):
            call()


@SIDES
def test_an_array_is_never_resized_while_it_is_bound(side: str, name: str) -> None:
    call = bound()
    array = getattr(call, side)[name]
    with pytest.raises(ValueError, match="cannot resize"):
        array.resize(1, refcheck=False)
    works(call)
    del call
    array.resize(1, refcheck=False)


def test_an_output_made_read_only_is_not_written() -> None:
    call = bound()
    y = call.outputs["y"]
    call()
    call.inputs["x"][:] = 7
    y.flags.writeable = False
    with pytest.raises(hx.Error, match=r"\[output 'y'\] got an array that was changed"):
        call()
    assert (y == 2).all()
    y.flags.writeable = True
    call()
    assert (y == 7).all()


def test_an_input_that_is_made_read_only_is_still_read() -> None:
    call = bound()
    call.inputs["x"].flags.writeable = False
    call()
    assert (call.outputs["y"] == 2).all()


def test_dropping_every_name_keeps_what_a_call_needs() -> None:
    x = hx.input("x", (SIZE,))
    net = hx.compile({"y": hx.relu(x)}, threads=1)
    buffers = {"x": np.full(SIZE, 5, np.float32), "y": np.zeros(SIZE, np.float32)}
    call = net.bind(**buffers)
    y = buffers["y"]
    del net
    buffers.clear()
    gc.collect()
    junk = [np.full(SIZE, 9, np.float32) for _ in range(4)]
    call()
    assert (y == 5).all()
    outputs = call.outputs
    del call
    gc.collect()
    assert (outputs["y"] == 5).all()
    assert len(junk) == 4


@pytest.mark.parametrize("kind", ["list", "dict"])
def test_inputs_that_change_while_they_are_read_stay_alive(kind: str) -> None:
    class Exported:
        """Empties what it came in as soon as it is asked for its memory."""

        def __dlpack__(self, **kwargs: Any) -> Any:
            given.clear()
            gc.collect()
            return np.ones(SIZE, np.float32).__dlpack__(**kwargs)

        def __dlpack_device__(self) -> Any:
            return np.ones(1, np.float32).__dlpack_device__()

    a, b = hx.input("a", (SIZE,)), hx.input("b", (SIZE,))
    net = hx.compile(a + b, threads=1)
    values = [Exported(), np.full(SIZE, 2, np.float32)]
    given: Any = values if kind == "list" else dict(zip("ab", values, strict=True))
    if kind == "list":
        assert (net._core.run(given)[0] == 3).all()
    else:
        with pytest.raises(hx.Error, match=r"\[input 'b'\] got nothing"):
            net._core.run(given)
