"""copy and reverse against NumPy's views, bit for bit."""

import numpy as np
import pytest

from hexane.errors import Error
from kernels import Array, poisoned, run, run_every_cut, same_bits

DTYPES = ["int8", "float16", "float32", "int64"]


def random_bits(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return rng.integers(0, 256, count, np.uint8).view(dtype).reshape(shape)


def copied(view: Array) -> Array:
    out = poisoned(view.shape, view.dtype)
    run_every_cut("copy", [view], [out])
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((5, 7), (1, 0)),
        ((64, 64), (1, 0)),
        ((65, 63), (1, 0)),
        ((17, 1000), (1, 0)),
        ((1000, 17), (1, 0)),
        ((2, 3, 20, 31), (0, 2, 3, 1)),
        ((2, 20, 31, 3), (0, 3, 1, 2)),
        ((1, 2, 40, 40), (0, 2, 3, 1)),
        ((1, 40, 40, 4), (0, 3, 1, 2)),
        ((2, 72, 9, 11), (0, 2, 3, 1)),
        ((2, 9, 11, 72), (0, 3, 1, 2)),
        ((1, 12, 5, 32), (0, 2, 1, 3)),
        ((3, 4, 5, 6), (3, 2, 1, 0)),
        ((2, 3, 4, 5, 6), (4, 1, 3, 0, 2)),
    ],
)
def test_copy_transposes(dtype: str, shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    view = random_bits(np.random.default_rng(1), shape, dtype).transpose(order)
    assert same_bits(copied(view), np.ascontiguousarray(view))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "to"),
    [
        ((1,), (9,)),
        ((3, 1), (3, 70)),
        ((1, 70), (5, 70)),
        ((4, 1, 3), (4, 6, 3)),
        ((1, 1), (1, 1)),
        ((2, 1, 8), (2, 65, 8)),
    ],
)
def test_copy_broadcasts(dtype: str, shape: tuple[int, ...], to: tuple[int, ...]) -> None:
    view = np.broadcast_to(random_bits(np.random.default_rng(2), shape, dtype), to)
    assert same_bits(copied(view), np.ascontiguousarray(view))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "index", [np.s_[2:9, 1:4], np.s_[::2, ::3], np.s_[:, 3:4], np.s_[4:4, :], np.s_[:, :65], np.s_[1, 2:], np.s_[3, 4]]
)
def test_copy_slices_both_sides(dtype: str, index: tuple[slice, ...]) -> None:
    rng = np.random.default_rng(3)
    source = np.asarray(random_bits(rng, (11, 200), dtype)[index])
    frame = random_bits(rng, (11, 200), dtype)
    wanted = frame.copy()
    wanted[index] = source
    run("copy", [source], [frame[index]] if source.ndim else [frame[3:4, 4:5].reshape(())], {})
    assert same_bits(frame, wanted)
    assert same_bits(copied(source), source.copy())


def test_copy_agrees_with_numpy_on_random_views() -> None:
    seed = int(np.random.default_rng().integers(1 << 30))
    print("seed", seed)
    rng = np.random.default_rng(seed)
    for _ in range(300):
        rank = int(rng.integers(0, 6))
        shape = tuple(int(n) for n in rng.choice([1, 2, 3, 4, 5, 8, 17, 33], rank))
        if np.prod(shape) > 100_000:
            continue
        view = random_bits(rng, shape, str(rng.choice(DTYPES))).transpose(rng.permutation(rank))
        view = view[tuple(slice(int(rng.integers(0, 2)), None, int(rng.integers(1, 3))) for _ in range(rank))]
        view = np.broadcast_to(view, (*rng.integers(1, 3, 1), *view.shape)) if rng.integers(2) else view
        view = np.asarray(view)
        order = rng.permutation(view.ndim)
        out = poisoned([view.shape[i] for i in order], view.dtype).transpose(np.argsort(order))
        run_every_cut("copy", [view], [out])
        assert same_bits(np.ascontiguousarray(out), np.ascontiguousarray(view))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axes", [(), (0,), (1,), (-1,), (0, 2), (0, 1, 2)])
def test_reverse_flips(dtype: str, axes: tuple[int, ...]) -> None:
    x = random_bits(np.random.default_rng(4), (5, 9, 33), dtype)
    out = poisoned(x.shape, dtype)
    run_every_cut("reverse", [x], [out], axes=axes)
    assert same_bits(out, np.ascontiguousarray(np.flip(x, axes)))


@pytest.mark.parametrize(("name", "attrs"), [("copy", {}), ("reverse", {"axes": (0,)})])
@pytest.mark.parametrize(("shape", "index"), [((3,), np.s_[:0]), ((4, 3), np.s_[4:]), ((3, 2, 2), np.s_[:, 1:1])])
def test_an_empty_output_writes_nothing(
    name: str, attrs: dict[str, object], shape: tuple[int, ...], index: tuple[slice, ...]
) -> None:
    frame = poisoned(shape, np.float32)
    out = frame[index]
    assert out.size == 0
    run(name, [np.ones(out.shape, np.float32)], [out], attrs)
    assert same_bits(frame, poisoned(shape, np.float32))


def test_copy_refuses_what_does_not_fit() -> None:
    x = np.zeros((3, 4), np.float32)
    with pytest.raises(Error, match=r"\[copy\] shape: got \(3, 5\), need \(3, 4\)"):
        run("copy", [x], [np.zeros((3, 5), np.float32)], {})
    with pytest.raises(Error, match="stride"):
        run("copy", [x], [np.lib.stride_tricks.as_strided(x, (3, 4), (4, 4))], {})
    with pytest.raises(Error, match="negative"):
        run("copy", [x[::-1]], [np.zeros((3, 4), np.float32)], {})
    with pytest.raises(Error, match="axis"):
        run("reverse", [x], [x.copy()], {"axes": (2,)})
    with pytest.raises(Error, match="twice"):
        run("reverse", [x], [x.copy()], {"axes": (1, -1)})
