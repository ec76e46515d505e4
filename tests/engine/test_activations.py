"""The engine's activation tables: their errors are those measured on silicon, and fitted knots are the fit that they
claim to be."""

from math import erf

import numpy as np
import pytest

import engine_planar as model
from engine_model import Array, half_away
from hexane.errors import Error
from hexane.targets import activations as tables
from hexane.targets.activations import activations

NUMBERS = model.EVERY[np.isfinite(model.EVERY)]
X = NUMBERS.astype(np.float64)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-np.clip(x, -700, 700)))


def gelu(x: Array) -> Array:
    return x * np.array([0.5 * (1 + erf(v / np.sqrt(2))) for v in np.clip(x, -30, 30)])


TRUE = {
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "erf": np.vectorize(erf),
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "inverse": lambda x: 1 / x,
    "gelu": gelu,
    "silu": lambda x: x * sigmoid(x),
    "sin": np.sin,
}


def errors(op: str, low: float, high: float) -> tuple[float, float]:
    """The largest error over all fp16 numbers of an interval: absolute, and in units of the last place."""
    inside = NUMBERS[(low <= X) & (high >= X)]
    want = np.asarray(TRUE[op](inside.astype(np.float64)))
    distance = np.abs(model.unary(op, inside).astype(np.float64) - want)
    exponent = np.maximum(np.frexp(want)[1] - 1, -14)
    place = np.ldexp(1.0, exponent - 10)
    return float(distance.max()), float((distance / place).max())


# What was measured on M6, to the digits that were published. Nobody says over which numbers; each interval is the whole domain, or one
# that a test would take.
MEASURED = [
    ("sigmoid", -65504, 65504, "3.355e-03", "810.8"),
    ("tanh", -65504, 65504, "", "11.0"),
    ("erf", -65504, 65504, "8.642e-04", "3.0"),
    ("exp", -10, 10, "", "9.1"),
    ("log", 0.001, 0.99999, "6.638e-03", ""),
    ("log", 1.0001, 1000, "", "91.0"),
    ("sqrt", 2.0**-14, 65504, "", "1.2"),
    ("rsqrt", 2.0**-14, 65504, "", "2.1"),
    ("gelu", -65504, 65504, "6.159e-03", ""),
    ("silu", -65504, 65504, "1.491e-02", ""),
    ("sin", -6.283, 6.283, "6.329e-04", ""),
]


@pytest.mark.parametrize(("op", "low", "high", "largest", "ulps"), MEASURED)
def test_errors_are_those_measured_on_silicon(op: str, low: float, high: float, largest: str, ulps: str) -> None:
    got, got_ulps = errors(op, low, high)
    assert not largest or f"{got:.3e}" == largest
    assert not ulps or f"{got_ulps:.1f}" == ulps


SAMPLED = {
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "erf": np.vectorize(erf),
    "exp2": np.exp2,
    "log2": np.log2,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "inverse": lambda x: 1 / x,
    "sin": np.sin,
}


@pytest.mark.parametrize("name", SAMPLED)
def test_knots_are_samples(name: str) -> None:
    table = activations()[name]
    assert np.array_equal(table.knots, half_away(SAMPLED[name](np.array(table.places))))


@pytest.mark.parametrize(("name", "function"), [("gelu", gelu), ("silu", lambda x: x * sigmoid(x))])
def test_fitted_knots_are_the_least_squares(name: str, function: model.Unary) -> None:
    table = activations()[name]
    x = X[(np.abs(X) >= 2.0**-14) & (np.abs(X) <= table.domain[1])]
    hats = np.stack([np.interp(x, table.places, row) for row in np.eye(len(table.knots))], 1)
    assert np.array_equal(table.knots, half_away(np.linalg.lstsq(hats, function(x), rcond=None)[0]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reduction": "cosh"}, r"gelu.reduction.*need one of none"),
        ({"knots": [0.0] * 34}, "gelu.knots.*need 2 to 33 numbers"),
        ({"domain": [0]}, "gelu.domain.*need 2 to 2 numbers"),
        ({"left": "steep"}, "gelu.left"),
        ({"status": "sure"}, "gelu.status"),
        ({"extra": 1}, "gelu.*need exactly"),
    ],
)
def test_a_broken_table_is_refused(change: dict[str, object], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = tables.table("activations")["gelu"]
    monkeypatch.setattr(tables, "table", lambda name: {"gelu": {**row, **change}})
    with pytest.raises(Error, match=words):
        tables.activations.__wrapped__()
