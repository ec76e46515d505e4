"""Infinities in MIL: masks are finite, comparisons ask the largest finite number, other infinities are tensors."""

import re
from collections.abc import Callable

import numpy as np
import pytest

import hexane as hx
from hexane.build import Tensor
from hexane.emit.mil import Mil
from hexane.errors import Error
from hexane.graph import Array
from hexane.importers.mil import load_mil
from mil_programs import assert_read_back, program
from stand_in import StandIn, needs_stand_in

pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")
SCALAR_IN_FILE = re.compile(r"\b\w+\(BLOBFILE")
LEAST = np.array(-np.inf, np.float16)
# Rows of keys that count: some, all, none.
SHOWN = np.array([[True, False, True, False], [True] * 4, [False] * 4])
AGAIN = np.where(np.array([[True, True, False, True], [False, True, True, True], [False] * 4]), 0, -np.inf)
ADDED = np.where(SHOWN, 0, -np.inf).astype(np.float16)
SCORES = np.random.default_rng(3).uniform(-4, 4, (3, 4)).astype(np.float16)
Q = np.random.default_rng(4).uniform(-1, 1, (1, 2, 3, 8)).astype(np.float16)
K, V = (np.random.default_rng(i).uniform(-1, 1, (1, 2, 4, 8)).astype(np.float16) for i in (5, 6))


def fp16(name: str, *shape: int) -> Tensor:
    return hx.input(name, shape, dtype="fp16")


def scores() -> Tensor:
    return fp16("s", *SCORES.shape)


def hidden(x: Tensor) -> Tensor:
    return hx.select(SHOWN, x, LEAST)


def written_out(x: Tensor) -> Tensor:
    return hx.exp(x - hx.reduce_max(x, axes=(-1,), keep_dims=True))


def attention(mask: Array, **attrs: bool) -> Tensor:
    return hx.scaled_dot_product_attention(fp16("q", *Q.shape), fp16("k", *K.shape), fp16("v", *V.shape), mask, **attrs)


MASKS: dict[str, Callable[[], Tensor]] = {
    "select": lambda: hx.softmax(hidden(scores())),
    "select and scale": lambda: hx.softmax(hidden(scores()) / np.float16(8)),
    "sum": lambda: hx.softmax(scores() + ADDED),
    "difference": lambda: hx.softmax(scores() - (-ADDED)),
    "two sums": lambda: hx.softmax((scores() + ADDED) + AGAIN.astype(np.float16)),
    "written out": lambda: written_out(hidden(scores())),
    "attention": lambda: attention(SHOWN),
    "attention by sums": lambda: attention(ADDED),
    "causal attention": lambda: attention(SHOWN, causal=True),
    "attention with zeros": lambda: attention(SHOWN, zero_hidden=True),
    "attention by sums with zeros": lambda: attention(ADDED, zero_hidden=True),
}


def feeds(mil: Mil) -> dict[str, Array]:
    return {p.name: {"s": SCORES, "q": Q, "k": K, "v": V}[p.user_name] for p in mil.inputs}


def emitted(outputs: Tensor) -> Mil:
    mil = program(hx.graph(outputs))
    assert not SCALAR_IN_FILE.search(mil.text)
    assert not re.search(r"\b(inf|nan)\b", mil.text)
    assert_read_back(mil)
    return mil


def computed(mil: Mil, arrays: dict[str, Array], **options: str) -> Array:
    result = hx.compile(load_mil(mil.text, mil.weights), threads=1, **options)(arrays)  # type: ignore[arg-type]
    return np.asarray(result)


@pytest.mark.parametrize("options", [{}, {"target": "h13"}, {"target": "h17s"}], ids=["host", "h13", "h17s"])
@pytest.mark.parametrize("name", MASKS)
def test_a_mask_of_infinities_is_finite_and_gives_what_the_host_gives(name: str, options: dict[str, str]) -> None:
    mil = emitted(MASKS[name]())
    for node in mil.graph.nodes:
        assert node.data is None or np.isfinite(node.data.astype(np.float32)).all()
    given = feeds(mil)
    with np.errstate(all="ignore"):
        host = np.asarray(hx.compile(hx.graph(MASKS[name]()), threads=1)(given))
    found = computed(mil, given, **options)
    assert np.isfinite(found).all()
    known = ~np.isnan(host)  # a row whose keys are all hidden has no number on the host
    assert known[..., :2, :].all()
    np.testing.assert_allclose(found[known], host[known], atol=4e-3, rtol=0)


def test_the_mask_is_the_fact() -> None:
    constants = [n.data for n in emitted(MASKS["select"]()).graph.nodes if n.data is not None]
    assert [float(data) for data in constants if data.size == 1] == [-40000.0]


@pytest.mark.parametrize("op", ["equal", "not_equal", "greater", "greater_equal", "less", "less_equal"])
@pytest.mark.parametrize("limit", [np.inf, -np.inf])
@pytest.mark.parametrize("left", [True, False])
def test_a_comparison_with_an_infinity_is_right_for_every_number(op: str, limit: float, left: bool) -> None:
    x = np.array([-np.inf, -65504, -1, 0, 6e-8, 65504, np.inf, np.nan], np.float16)
    number = np.array(limit, np.float16)
    compare = getattr(hx, op)
    a, b = (number, fp16("s", 8)) if left else (fp16("s", 8), number)
    outputs = hx.select(compare(a, b), fp16("t", 8), np.float16(-1))
    mil = emitted(outputs)
    with np.errstate(invalid="ignore"):
        want = np.where(getattr(np, op)(number, x) if left else getattr(np, op)(x, number), 2, -1)
    np.testing.assert_array_equal(computed(mil, {"s": x, "t": np.full(8, 2, np.float16)}), want)


def test_an_infinity_that_somebody_sees_stays() -> None:
    """As an output, in the logarithm of a softmax, and where a number is chosen by a comparison."""
    x = scores()
    infinite = np.array(np.inf, np.float16)
    for outputs in (hidden(x), hx.log_softmax(hidden(x)), hx.select(x > np.float16(0), x, infinite)):
        mil = emitted(outputs)
        assert "tensor<fp16, [1]>(BLOBFILE" in mil.text
        want = np.asarray(hx.compile(hx.graph(outputs), threads=1)(s=SCORES))
        np.testing.assert_allclose(computed(mil, {"s": SCORES}), want, atol=4e-3)
        assert np.isinf(want[0]).any()


def test_an_infinity_where_no_tensor_may_stand_is_refused() -> None:
    x = hx.reduce_sum(fp16("s", 8), axes=(0,), keep_dims=False)
    with pytest.raises(Error, match=r"got the number inf where MIL takes no tensor, need it finite"):
        program(hx.graph(hx.reshape(hx.select(x > np.float16(0), x, np.array(np.inf, np.float16)), shape=(1,))))


@pytest.mark.parametrize("name", ["attention", "causal attention", "select", "infinite"])
def test_the_compiler_of_the_stand_in_takes_it(name: str) -> None:
    needs_stand_in()
    x = scores()
    outputs = MASKS[name]() if name in MASKS else hx.select(hx.is_inf(x), np.array(np.inf, np.float16), x)
    mil = emitted(outputs)
    stand_in = StandIn()
    ane = stand_in.open()
    stand_in.free(stand_in.compile(ane, mil.text, {"weights/weights.bin": mil.weights} if mil.weights else {}))
    stand_in.library.hexane_ane_close(ane)
