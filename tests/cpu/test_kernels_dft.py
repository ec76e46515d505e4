"""dft against NumPy in fp64."""

from pathlib import Path

import numpy as np
import pytest

from hexane.errors import Error
from hexane.ops import OPS
from instruction_sets import assert_passes_on, on_others
from kernels import Array, poisoned, run, run_every_cut

NAME = "dft"
KINDS = {  # (inverse, onesided, parts of the input)
    "real": (0, 0, 1),
    "complex": (0, 0, 2),
    "half": (0, 1, 1),
    "back": (1, 0, 2),
    "back from real": (1, 0, 1),
    "back to real": (1, 1, 2),
}
KIND = pytest.mark.parametrize("kind", KINDS)
# Powers of two, odd radices, their products, primes beyond a butterfly, and windows of speech: 400 and 512.
LENGTHS = [*range(1, 34), 37, 49, 64, 75, 97, 121, 127, 202, 254, 400, 441, 512, 1021, 2048]
EXACT = 2e-6  # relative L2


def signal(shape: tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def attrs(kind: str, length: int, axis: int) -> dict[str, int]:
    inverse, onesided, _ = KINDS[kind]
    return {"axis": axis, "length": length, "inverse": inverse, "onesided": onesided}


def wanted(x: Array, **attributes: int) -> Array:
    return np.asarray(OPS[NAME].ref(x.astype(np.float64), **attributes))


def computed(x: Array, **attributes: int) -> Array:
    """Computed whole, and the same bits in pieces of every cut."""
    out = poisoned(wanted(x, **attributes).shape, "float32")
    run_every_cut(NAME, [x], [out], **attributes)
    return out


def assert_close(got: Array, want: Array) -> None:
    assert np.linalg.norm(got - want) <= EXACT * np.linalg.norm(want)


@KIND
@pytest.mark.parametrize("length", LENGTHS)
def test_a_transform_is_numpy_s(length: int, kind: str) -> None:
    extent = length // 2 + 1 if kind == "back to real" else length
    x = signal((3, extent, KINDS[kind][2]), length)
    assert_close(computed(x, **attrs(kind, length, 1)), wanted(x, **attrs(kind, length, 1)))


@KIND
@pytest.mark.parametrize("length", [1, 6, 16, 37, 74])
@pytest.mark.parametrize("extent", [0, 1, 5, 40, 90])
def test_a_signal_is_cropped_or_padded(extent: int, length: int, kind: str) -> None:
    x = signal((2, extent, KINDS[kind][2]), length)
    assert_close(computed(x, **attrs(kind, length, 1)), wanted(x, **attrs(kind, length, 1)))


@KIND
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_any_axis_but_the_last(axis: int, kind: str) -> None:
    x = signal((5, 19, 6, KINDS[kind][2]))
    length = x.shape[axis]
    assert_close(computed(x, **attrs(kind, length, axis)), wanted(x, **attrs(kind, length, axis)))


@KIND
def test_a_line_does_not_depend_on_its_neighbours(kind: str) -> None:
    x = signal((40, 24, KINDS[kind][2]))
    x[:, :, 0] *= np.logspace(-18, 18, 40, dtype=np.float32)[:, None]
    whole = computed(x, **attrs(kind, 24, 1))
    for i in range(40):
        np.testing.assert_array_equal(computed(x[i : i + 1], **attrs(kind, 24, 1))[0], whole[i])


@KIND
def test_rows_may_have_gaps(kind: str) -> None:
    x = signal((24, 7, 9, KINDS[kind][2])).transpose(1, 0, 2, 3)[:, :, 1:5]
    want = computed(np.ascontiguousarray(x), **attrs(kind, 24, 1))
    out = poisoned((*want.shape[:2], 11, want.shape[3]), "float32")[:, :, 3:7]
    run(NAME, [x], [out], attrs(kind, 24, 1))
    np.testing.assert_array_equal(out, want)


def test_a_broadcast_line_is_read_in_place() -> None:
    x = np.broadcast_to(signal((1, 32, 1)), (20, 32, 1))
    out = poisoned((20, 17, 2), "float32")
    run(NAME, [x], [out], attrs("half", 32, 1))
    np.testing.assert_array_equal(out, computed(np.ascontiguousarray(x), **attrs("half", 32, 1)))


@pytest.mark.parametrize("axis", [0, 1])
def test_without_lines_nothing_is_written(axis: int) -> None:
    shape = (0, 8, 2) if axis else (8, 0, 2)
    assert computed(np.zeros(shape, np.float32), **attrs("complex", 8, axis)).size == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"length": 0}, "length: got 0"),
        ({"length": 1 << 40}, "length: got"),
        ({"axis": 2}, "axis: got 2, need one before the last"),
        ({"axis": 7}, "axis"),
        ({"inverse": 2}, "flag: got 2"),
        ({"onesided": 1}, "last axis: got 2, need the other one"),
        ({"length": 9}, "output: got"),
    ],
)
def test_operands_that_do_not_fit(changed: dict[str, int], message: str) -> None:
    with pytest.raises(Error, match=message):
        run(NAME, [signal((3, 8, 2))], [poisoned((3, 8, 2), "float32")], {**attrs("complex", 8, 1), **changed})


@on_others
def test_transforms_on_an_instruction_set(name: str) -> None:
    assert_passes_on(name, "numpy_s or cropped or neighbours", [Path(__file__)])
