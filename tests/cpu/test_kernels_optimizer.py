"""adam_step, lion_step, momentum_step and sgd_step: against their records, in pieces, and over their operands."""

from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.build import FUNCTIONS
from hexane.graph import Array
from hexane.reference import run_reference

STEPS: dict[str, tuple[int, dict[str, Any]]] = {
    "adam_step": (2, {"decay": 0.1}),
    "lion_step": (1, {"decay": 0.1}),
    "momentum_step": (1, {"nesterov": True, "decay": 0.1}),
    "sgd_step": (0, {"decay": 0.1}),
}
MOMENTS = ("m", "v")


def arrays(shape: tuple[int, ...], num_moments: int, apply: bool) -> dict[str, Array]:
    rng = np.random.default_rng(len(shape))
    w, g, m, v = (rng.standard_normal(shape).astype(np.float32) for _ in range(4))
    rates = np.array([0.01, 1.5, 1.2, 0.5, apply], np.float32)
    moments = dict(zip(MOMENTS[:num_moments], (m, np.abs(v)), strict=False))
    return {"w": w, "g": g, **moments, "rates": rates}


@pytest.mark.parametrize("apply", [True, False])
@pytest.mark.parametrize("shape", [(1,), (17,), (3, 1029), (2, 5, 7, 9), (0, 4)])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_what_its_record_says(name: str, shape: tuple[int, ...], apply: bool) -> None:
    num_moments, attrs = STEPS[name]
    feeds = arrays(shape, num_moments, apply)
    results = FUNCTIONS[name](*[hx.input(n, a.shape) for n, a in feeds.items()], **attrs)
    outputs = results if isinstance(results, tuple) else (results,)
    graph = hx.graph({f"y{i}": t for i, t in enumerate(outputs)})
    want = list(run_reference(graph, feeds).values())
    for threads in (1, 2):
        got = hx.compile(graph, threads=threads)(feeds)
        for i, array in enumerate(want):
            one = got[f"y{i}"] if len(want) > 1 else got
            np.testing.assert_allclose(one, array, rtol=2e-6, atol=2e-6)
            if not apply:
                np.testing.assert_array_equal(one, list(feeds.values())[0 if i == 0 else i + 1])


@pytest.mark.parametrize("name", STEPS)
def test_a_step_lies_over_its_operands(name: str) -> None:
    """No step copies, and nothing but the gradient is in the arena."""
    num_moments, attrs = STEPS[name]
    feeds = arrays((64, 33), num_moments, True)
    kept = {n: hx.state(n, init=a) for n, a in feeds.items() if n in ("w", *MOMENTS)}
    given = [kept[n] if n in kept else hx.input(n, a.shape) for n, a in feeds.items()]
    results = FUNCTIONS[name](*given, **attrs)
    outputs = results if isinstance(results, tuple) else (results,)
    updates = [hx.write_state(s, t, np.array(0)) for s, t in zip(kept.values(), outputs, strict=True)]
    net = hx.compile(hx.graph({"doubled": given[1] * 2.0}, updates), threads=1)
    assert isinstance(net, hx.Model)
    assert [s["kernel"] for s in net.steps].count(name) == 1
    assert "write_slice" not in [s["kernel"] for s in net.steps]
    assert net.memory["arena"] == 0
    net(g=feeds["g"], rates=feeds["rates"])
    graph = hx.graph({f"y{i}": t for i, t in enumerate(outputs)})
    states = {n: feeds[n] for n in kept}
    want = run_reference(graph, {"g": feeds["g"], "rates": feeds["rates"]}, dict(states))
    for state, array in zip(kept, want.values(), strict=True):
        np.testing.assert_allclose(net.read_state(state), array, rtol=2e-6, atol=2e-6)
