"""Fits the rates of the cost model to measurements on this machine's engine: `hexane bench --calibrate`.

Each fitted rate is the known rate times a factor. A penalty keeps the factor near 1, so a rate that no configuration
depends on keeps its value. Residuals are logarithms; large ones count linearly (Huber).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hexane.bench.table import estimated
from hexane.cost.demand import Demand, LayerDemand
from hexane.cost.estimate import predicted_us
from hexane.cost.parameters import RATES, Rates, calibration
from hexane.errors import Error
from hexane.targets.fact import Fact
from hexane.targets.query import load_chip

NOISE = 0.1  # Noise of a measurement, as a logarithm.
SPREAD = 1.0  # Spread of a rate around the known rate, as a logarithm.
HUBER = 1.5  # Threshold, in units of NOISE.
STEPS = 30
FEEDS = 0.02  # a rate is measured if a change of it changes a result by this part of the latency


def calibrated(document: Mapping[str, Any]) -> str:
    """The rates as a file for `hexane estimate --rates`. Rates that no result depends on keep their source. Raises
    Error for a document that has no right result with an estimate."""
    known = estimated(document)
    if not known:
        raise Error("[bench] --calibrate: got no right result with an estimate, need at least one from an engine")
    where = document["environment"]
    chip = load_chip(where["asked"] or where["target"])
    before = calibration(chip)
    rates, fed = fit([(_demand(r["demand"]), r["times_us"]["p50"]) for r in known], before.rates)
    build = where["os_build"] or "unknown"
    count = f"{len(known)} configuration{'s' if len(known) > 1 else ''}"
    source = f"measured on {chip.label}, OS build {build}, {count} of hexane bench"
    kept = Fact(None, f"{before.source}; rates of {before.measured_on}", before.status)
    lines = [
        "# Written by `hexane bench --calibrate`, for `hexane estimate --rates`.",
        f"source = {_quoted(source)}",
        'status = "fitted"',
        "",
        f"[chips.{_quoted(chip.asked or chip.name)}]",
        f"rows = {len(known)}",
    ]
    for name in RATES:
        value = float(f"{getattr(rates, name):.4g}")
        said = f", source = {_quoted(kept.source)}, status = {_quoted(kept.status)} }}"
        lines.append(f"{name} = {value}" if name in fed else f"{name} = {{ value = {value}{said}")
    return "\n".join(lines) + "\n"


def fit(results: Sequence[tuple[Demand, float]], start: Rates) -> tuple[Rates, frozenset[str]]:
    """The rates fitted to demands and their microseconds, and the names of the rates that influence some result."""
    first, measured = np.array([getattr(start, name) for name in RATES]), np.log([us for _, us in results])

    def rates(x: np.ndarray[Any, Any]) -> Rates:
        return Rates(*map(float, first * np.exp(SPREAD * x)))

    def residuals(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        fitted = rates(x)
        result: np.ndarray[Any, Any] = (np.log([predicted_us(d, fitted) for d, _ in results]) - measured) / NOISE
        return result

    def loss(x: np.ndarray[Any, Any], r: np.ndarray[Any, Any]) -> float:
        size = np.abs(r)
        return float(np.where(size > HUBER, 2 * HUBER * size - HUBER**2, r**2).sum() + (x**2).sum())

    def slopes(x: np.ndarray[Any, Any], r: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.stack([(residuals(x + 1e-5 * unit) - r) / 1e-5 for unit in np.eye(x.size)], axis=1)

    x, damping = np.zeros(len(RATES)), 1.0
    r = residuals(x)
    jacobian = slopes(x, r)
    for _ in range(STEPS):
        weight = np.minimum(1, HUBER / np.maximum(np.abs(r), 1e-9))
        normal = jacobian.T @ (weight[:, None] * jacobian) + np.eye(x.size)
        step = np.linalg.solve(normal + damping * np.eye(x.size), jacobian.T @ (weight * r) + x)
        moved = residuals(x - step)
        if loss(x - step, moved) < loss(x, r):
            x, r, damping = x - step, moved, damping / 3
            jacobian = slopes(x, r)
        else:
            damping *= 4
    depends = (np.abs(jacobian) * NOISE / SPREAD).max(axis=0) >= FEEDS
    return rates(x), frozenset(name for name, one in zip(RATES, depends, strict=True) if one)


def _demand(given: Mapping[str, Any]) -> Demand:
    return Demand(**{**given, "layers": tuple(LayerDemand(**layer) for layer in given["layers"])})


def _quoted(text: str) -> str:
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text) + '"'
