"""Damaged plans of the engine's arithmetic: every number of the activation tables set to extremes, checksums and sizes
right.

None may crash, hang, or raise anything but Error, also where a table has no domain, or one that no double divides.
"""

import random
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane import _core
from hexane.emit.plan import emit_plan
from hexane.errors import Error
from hexane.graph import Array
from hexane.program.attrs import fields
from turns import share

Sections = dict[str, Any]
SMALLEST = 5e-324
DOUBLES = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    2.0,
    32.0,
    33.0,
    1e9,
    65504.0,
    1e300,
    -1e300,
    SMALLEST,
    -SMALLEST,
    1e-300,
    2.0**63,
]
DOUBLES += [float("nan"), float("inf"), -float("inf")]
SEEDS = [0, *[pytest.param(seed, marks=pytest.mark.slow) for seed in share(range(1, 128))]]
MUTANTS = 160  # for each seed
TABLE = ["reduction", "domain[0]", "domain[1]", "segments", "clamp[0]", "clamp[1]", "left[0]", "left[1]"]
TABLE += ["right[0]", "right[1]", "at_zero", "at_infinity", *(f"knots[{i}]" for i in range(33))]


def network() -> hx.Tensor:
    """Every table, a softmax, a product and a 3x3 convolution, which may be Winograd's."""
    x = hx.input("x", (1, 4, 6, 8))
    y = hx.conv(x, np.full((4, 4, 3, 3), 0.1, np.float32), pad=1)
    for op in ("sigmoid", "tanh", "erf", "exp", "exp2", "sin", "cos", "gelu", "silu", "softsign"):
        y = y + getattr(hx, op)(x)
    positive = hx.abs(x) + 0.5
    for op in ("log", "sqrt", "rsqrt", "inverse"):
        y = y + getattr(hx, op)(positive)
    y = hx.elu(y, alpha=0.5) + hx.scaled_tanh(x, alpha=1.5, beta=0.5)
    return hx.softmax(hx.matmul(y, np.full((8, 5), 0.25, np.float32)), axis=-1)


@pytest.fixture(scope="module")
def sections() -> Sections:
    program = hx.compile(hx.graph(network()), target="h17s", threads=1).program
    assert program is not None
    return dict(emit_plan(program))


def block(sections: Sections) -> tuple[slice, dict[str, int]]:
    """Where the engine's parameters lie among the bytes of attributes, and the place of each of their doubles by its
    name."""
    (row,) = [r for r in sections["numerics"] if r["bytes"]]
    places, at = {}, 0
    for name, _, count in fields(_core.numerics_families()["engine"]):
        named = TABLE if count == len(TABLE) else [""]
        places.update({f"{name}.{field}" if field else name: at + i for i, field in enumerate(named)})
        at += len(named)
    assert row["bytes"] == 8 * at
    return slice(int(row["offset"]), int(row["offset"] + row["bytes"])), places


def damaged(sections: Sections, numbers: dict[str, float]) -> Sections:
    where, places = block(sections)
    attrs = np.frombuffer(sections["attrs"], np.uint8).copy()
    doubles = attrs[where].view(np.float64)
    for name, value in numbers.items():
        doubles[places[name]] = value
    return {**sections, "attrs": attrs}


def run(sections: Sections) -> Array | None:
    x = np.linspace(-70000, 70000, 192, dtype=np.float32).reshape(1, 4, 6, 8)
    try:
        return np.asarray(_core.Program(sections, threads=1).run([x])[0])
    except Error:
        return None


def test_the_plan_that_is_damaged_is_right(sections: Sections) -> None:
    assert run(sections) is not None


@pytest.mark.parametrize("seed", SEEDS)
def test_numbers_of_tables_set_to_extremes(sections: Sections, seed: int) -> None:
    rng = random.Random(seed)
    names = list(block(sections)[1])
    num_run = 0
    for _ in range(MUTANTS):
        numbers = {rng.choice(names): rng.choice(DOUBLES) for _ in range(rng.choice((1, 1, 2, 3)))}
        num_run += run(damaged(sections, numbers)) is not None
    assert MUTANTS // 2 < num_run < MUTANTS  # most numbers are free, and some of the others are refused


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        (
            {"sigmoid.domain[0]": 0.0, "sigmoid.domain[1]": SMALLEST},
            "need a number of segments per unit that a double holds",
        ),
        ({"sin.domain[0]": -1.0, "sin.domain[1]": 0.0}, "the quarter of a period"),
        ({"sin.domain[0]": 0.0, "sin.domain[1]": 1e-300}, "the quarter of a period"),
        ({"tanh.segments": float("nan")}, "segments, need 1 to"),
    ],
)
def test_a_table_without_an_index_for_each_number_is_refused(
    sections: Sections, numbers: dict[str, float], says: str
) -> None:
    """NaN became an index."""
    with pytest.raises(Error, match=says):
        _core.Program(damaged(sections, numbers), threads=1)
