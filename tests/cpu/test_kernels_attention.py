"""scaled_dot_product_attention against NumPy in fp64, and PyTorch's where it is installed."""

import math
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.errors import Error
from hexane.ops import OPS
from kernels import Array, poisoned, run, run_every_cut

PLAIN = {"scale": 1.0, "causal": 0, "zero_hidden": 0, "hidden": -math.inf}
NAME = "scaled_dot_product_attention"
DTYPE = pytest.mark.parametrize("dtype", ["float32", "float16"])
TOLERANCE = {"float32": 2e-6, "float16": 1e-3}  # of the largest result


def random(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def operands(query: tuple[int, ...], key: tuple[int, ...], width: int, dtype: str = "float32") -> list[Array]:
    return [random(query, dtype, 1), random(key, dtype, 2), random((*key[:-1], width), dtype, 3)]


def wanted(inputs: list[Array | None], **attrs: Any) -> Array:
    wide = [x if x is None or x.dtype == bool else x.astype(np.float64) for x in inputs]
    with np.errstate(invalid="ignore"):
        return OPS[NAME].ref(*wide, *[None] * (4 - len(wide)), **{**PLAIN, **attrs})


def attention(inputs: list[Array | None], **attrs: Any) -> Array:
    """Computed whole, and the same bits in pieces of every cut."""
    shape = wanted(inputs, **attrs).shape
    out = poisoned(shape, inputs[0].dtype)  # type: ignore[union-attr]
    everything = [*inputs, *[None] * (4 - len(inputs))]
    run_every_cut(NAME, everything, [out], **{**PLAIN, **attrs})
    return out


def assert_right(inputs: list[Array | None], **attrs: Any) -> None:
    got, want = attention(inputs, **attrs), wanted(inputs, **attrs)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    error = np.abs(np.nan_to_num(got) - np.nan_to_num(want)).max(initial=0)
    assert error <= TOLERANCE[got.dtype.name] * max(1, np.abs(np.nan_to_num(want)).max(initial=0))


@DTYPE
@pytest.mark.parametrize(
    ("query", "key", "width"),
    [
        ((1, 1), (1, 1), 1),
        ((5, 4), (3, 4), 2),
        ((17, 63), (65, 63), 17),
        ((65, 16), (64, 16), 64),
        ((2, 3, 130, 8), (2, 3, 37, 8), 33),
        ((12, 1, 64), (12, 200, 64), 64),
        ((6, 4, 20), (6, 31, 20), 5),
        ((6, 5, 20), (6, 31, 20), 5),
        ((1, 100, 4), (1, 1000, 4), 4),
        ((3, 7, 4), (9, 4), 6),
        ((7, 4), (3, 9, 4), 6),
        ((2, 4, 3, 1, 8), (2, 4, 1, 50, 8), 8),
        ((2, 4, 3, 5, 8), (2, 1, 1, 50, 8), 8),
        ((2, 0, 4), (2, 5, 4), 3),
        ((2, 4, 0), (2, 5, 0), 3),
        ((2, 4, 3), (2, 0, 3), 3),
        ((2, 4, 3), (2, 5, 3), 0),
        ((2, 20, 3), (2, 0, 3), 3),
    ],
)
def test_attention_of_every_shape(query: tuple[int, ...], key: tuple[int, ...], width: int, dtype: str) -> None:
    assert_right(operands(query, key, width, dtype), scale=0.3)
    if query[-2] == key[-2]:
        assert_right(operands(query, key, width, dtype), scale=0.3, causal=1)


@DTYPE
@pytest.mark.parametrize("rows", [1, 2, 40])
@pytest.mark.parametrize("mask", [(3, 1, 70), (70,), (1,), (), (2, 3, 40, 70), (40, 1), (1, 1, 40, 70)])
def test_attention_masks_broadcast(mask: tuple[int, ...], rows: int, dtype: str) -> None:
    mask = tuple(rows if d == 40 else d for d in mask)
    inputs = operands((2, 3, rows, 16), (2, 3, 70, 16), 20, dtype)
    assert_right([*inputs, random(mask, dtype, 4)], scale=0.25)
    assert_right([*inputs, np.asarray(random(mask, dtype, 4) > -1)], scale=0.25)


@pytest.mark.parametrize("rows", [1, 30])
def test_attention_computes_small_integers_exactly(rows: int) -> None:
    """Scores that differ by much: softmax picks one key."""
    rng = np.random.default_rng(0)
    query = np.eye(32, dtype=np.float32)[rng.integers(0, 32, (4, rows))] * 128
    key, value = np.eye(32, dtype=np.float32)[None].repeat(4, 0), rng.integers(-9, 9, (4, 32, 7)).astype(np.float32)
    np.testing.assert_array_equal(attention([query, key, value]), np.einsum("brk,bkv->brv", query / 128, value))


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_attention_sees_the_past_only(rows: int) -> None:
    assert_right(operands((2, rows, 8), (2, rows, 8), 8), causal=1)
    assert_right(operands((2, rows, 8), (2, 2 * rows, 8), 8), causal=1)
    assert_right([*operands((2, rows, 8), (2, rows, 8), 8), random((rows, rows), "float32", 4)], causal=1)


@pytest.mark.parametrize("rows", [2, 20])
@pytest.mark.parametrize("zero_hidden", [0, 1])
@pytest.mark.parametrize("mask", ["bool", "float32"])
def test_a_query_that_sees_no_key(rows: int, zero_hidden: int, mask: str) -> None:
    keep = np.ones((rows, 9), bool)
    keep[1] = False
    inputs = [*operands((2, rows, 8), (2, 9, 8), 8), keep if mask == "bool" else np.where(keep, 0, -np.inf).astype("f")]
    assert_right(inputs, zero_hidden=zero_hidden)
    assert (attention(inputs, zero_hidden=1)[:, 1] == 0).all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("hidden", [-1e30, -2.5, 3.0, -math.inf])
def test_a_hidden_score_is_the_number_that_hides_whatever_it_was(rows: int, hidden: float, dtype: str) -> None:
    query, key, value = operands((2, rows, 8), (2, 30, 8), 8, dtype)
    key[:, 3], key[:, 4], key[:, 5] = np.nan, np.inf, np.finfo(dtype).max
    keep = np.random.default_rng(5).uniform(size=(rows, 30)) < 0.7
    keep[:, 3:6] = False
    keep[0] = False
    assert_right([query, key, value, keep], hidden=hidden)
    if hidden > -math.inf:
        assert not np.isnan(attention([query, key, value, keep], hidden=hidden)).any()


@pytest.mark.parametrize("rows", [1, 20])
def test_attention_carries_nan_and_infinity(rows: int) -> None:
    query, key, value = operands((2, rows, 8), (2, 30, 8), 8)
    value[0, 3, 2] = np.nan
    assert_right([query, key, value])
    query[1, 0] = np.inf
    assert_right([query, key, value])


@pytest.mark.parametrize("rows", [1, 20])
def test_attention_does_not_overflow_where_its_result_does_not(rows: int) -> None:
    query, key, value = operands((2, rows, 8), (2, 30, 8), 8)
    value[:] = 3e38
    np.testing.assert_allclose(attention([query * 100, key * 100, value]), 3e38, rtol=1e-5)


def swap(x: Array) -> Array:
    """The same numbers, columns dense."""
    return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)


@DTYPE
@pytest.mark.parametrize("rows", [1, 30])
@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_attention_reads_strided_operands(which: int, rows: int, dtype: str) -> None:
    inputs = [*operands((3, rows, 20), (3, 50, 20), 24, dtype), random((3, rows, 50), dtype, 4)]
    plain = attention(inputs)
    swapped = [swap(x) if i == which else x for i, x in enumerate(inputs)]
    gaps = [np.repeat(x, 2, -1)[..., ::2] if i == which else x for i, x in enumerate(inputs)]
    heads = [np.repeat(x, 2, 1)[:, ::2] if i == which else x for i, x in enumerate(inputs)]
    for other in (swapped, gaps, heads):
        np.testing.assert_allclose(attention(other), plain, rtol=0, atol=TOLERANCE[dtype])


def test_attention_writes_rows_with_gaps() -> None:
    inputs = operands((2, 4, 9, 8), (2, 4, 9, 8), 8)
    out = poisoned((2, 9, 4, 8), "float32").transpose(0, 2, 1, 3)
    run(NAME, [*inputs, None], [out], PLAIN)
    np.testing.assert_array_equal(out, attention(inputs))


@pytest.mark.parametrize(
    ("query", "key", "value", "mask", "out"),
    [
        ((4, 5), (6, 4), (6, 4), None, (4, 4)),
        ((4, 5), (6, 5), (7, 4), None, (4, 4)),
        ((4, 5), (6, 5), (6, 4), None, (4, 5)),
        ((4, 5), (6, 5), (6, 4), None, (5, 4)),
        ((4, 5), (6, 5), (6, 4), None, (1, 4, 4)),
        ((2, 4, 5), (3, 6, 5), (6, 4), None, (2, 4, 4)),
        ((4, 5), (6, 5), (6, 4), (4, 5), (4, 4)),
        ((4, 5), (6, 5), (6, 4), (3, 6), (4, 4)),
        ((4, 5), (6, 5), (6, 4), (1, 4, 6), (4, 4)),
        ((5,), (6, 5), (6, 4), None, (4,)),
    ],
)
def test_attention_refuses_shapes_that_do_not_fit(query: Any, key: Any, value: Any, mask: Any, out: Any) -> None:
    arrays = [None if s is None else np.ones(s, "float32") for s in (query, key, value, mask)]
    with pytest.raises(Error, match=rf"\[{NAME}\]"):
        run(NAME, arrays, [np.ones(out, "float32")], PLAIN)


def test_attention_refuses_sizes_that_overflow() -> None:
    huge = np.lib.stride_tricks.as_strided(np.ones(1, "float32"), (2**50, 2), (0, 4))
    with pytest.raises(Error, match=r"2\^40"):
        run(NAME, [np.ones((9, 2), "f"), huge, huge, None], [np.ones((9, 2), "f")],
            PLAIN)  # fmt: skip


@pytest.mark.parametrize(("mask", "causal"), [(None, False), (None, True), ("float32", False), ("bool", False)])
def test_attention_agrees_with_pytorch(mask: str | None, causal: bool) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    query, key, value = operands((2, 3, 40, 16), (2, 3, 40, 16), 24)
    hide = None if mask is None else random((40, 40), "float32", 4)
    if mask == "bool":
        hide = hide > -1  # type: ignore[operator]
    tensors = [None if x is None else torch.from_numpy(x) for x in (query, key, value, hide)]
    want = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=causal).numpy()
    inputs = [x for x in (query, key, value, hide) if x is not None]
    np.testing.assert_allclose(attention(inputs, scale=1 / math.sqrt(16), causal=int(causal)), want, atol=2e-6)


def test_attention_reads_a_cache_in_place() -> None:
    """A decoder's step: keys and values are states, and no step copies them."""
    position = hx.input("position", (1,), "int32")
    key, value = (
        hx.write_state(hx.state(n, (4, 32, 16)), hx.input(f"new_{n}", (4, 1, 16)), position, axis=1) for n in "kv"
    )
    seen = hx.const(np.arange(32, dtype=np.int32)) <= position
    net = hx.compile(hx.scaled_dot_product_attention(hx.input("q", (4, 1, 16)), key, value, seen), threads=1)
    assert sorted(str(s["kernel"]) for s in net.steps) == ["less_equal", NAME, "write_slice", "write_slice"]
    cache = [random((4, 32, 16), "float32", seed) for seed in (1, 2)]
    for at in range(3):
        query = random((4, 1, 16), "float32", 10 + at)
        got = net(position=np.int32([at]), new_k=cache[0][:, at : at + 1], new_v=cache[1][:, at : at + 1], q=query)
        want = wanted([query, cache[0][:, : at + 1], cache[1][:, : at + 1]], scale=0.25)
        np.testing.assert_allclose(got, want, atol=1e-6)


@DTYPE
@pytest.mark.parametrize("mask", ["bool", "float"])
@pytest.mark.parametrize("shown", [1, 63, 64, 65, 700, 1000])
def test_one_query_reads_the_keys_that_its_mask_shows(shown: int, mask: str, dtype: str) -> None:
    """A cache with room for 1,000 keys costs what is filled: nothing reads the rest, which is NaN here."""
    query, key, value = operands((3, 1, 32), (3, 1000, 32), 40, dtype)
    query, value = (2 * query).astype(dtype), (300 * value).astype(dtype)
    shows = np.arange(1000) < shown
    given = shows if mask == "bool" else np.where(shows, 0, -np.inf).astype(dtype)
    want = wanted([query, key, value, given])
    key[:, (shown + 63) // 64 * 64 :] = np.nan
    value[:, (shown + 63) // 64 * 64 :] = np.nan
    got = poisoned(want.shape, dtype)
    run(NAME, [query, key, value, given], [got], PLAIN)
    assert np.abs(got - want).max() <= TOLERANCE[dtype] * max(1, np.abs(want).max())
