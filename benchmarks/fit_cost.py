"""Fits the parameters of `hexane.cost` to published latencies and writes targets/shared/cost.toml.

    python benchmarks/fit_cost.py ROWS.csv [--write]      fit, print the residuals, and write the parameters
    python benchmarks/fit_cost.py ROWS.csv --judge        compare the written parameters with the rows; fits nothing

A chip's rate is the mean over all chips times the chip's deviation, which a penalty keeps small; rates of products are
scaled by the chip's peak. Residuals count by their logarithm, large ones linearly (Huber). Intervals are quantiles of
residuals on rows left out of a fit (ten folds), or on chips left out of it. Whole networks (cost_networks.py) are left
out of every fit; their residuals count in the intervals for networks.
"""

import argparse
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from cost_networks import BENCHMARKS, NETWORKS
from cost_rows import Row, graph_of, read_rows

from hexane.cost.demand import KINDS, Demand, demand
from hexane.cost.estimate import estimate_program
from hexane.cost.formula import call_us, compute_us, engine_us, in_network, layer_us, transfer_us, weights_us
from hexane.cost.parameters import RATES, SCALED, Rates, choose, peak_ratio
from hexane.options import Options
from hexane.pipeline import compile_segments, divide
from hexane.program import Program
from hexane.targets.query import load_chip
from hexane.targets.tables import FOLDER, parse_toml

Array = np.ndarray

PRIORS = parse_toml((Path(__file__).parent / "cost_priors.toml").read_text(encoding="utf-8"), "cost_priors.toml")
WEAK = 0.4  # Prior deviation of the chips' mean from the start of the search, as a logarithm.
NOISE = 0.12  # Noise of a measurement, as a logarithm.
HUBER = 1.5  # Threshold, in units of NOISE.
FOLDS = 10
FEW = 10  # fewest measurements of a kind of program for quantiles of that kind alone
STEPS = 40
LEAST = 2  # fewest networks on a product to estimate the time of further layers
WHOLE = "whole network"


@cache
def compiled(workload: str, params: str, chip: str) -> Program:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = NETWORKS[params][0]() if workload == WHOLE else graph_of(workload, params)
        divided, segments = divide(graph, load_chip(chip))
        return compile_segments(divided, segments, load_chip(chip), Options())


@cache
def demanded(workload: str, params: str, chip: str) -> Demand:
    return demand(compiled(workload, params, chip))


@dataclass(frozen=True)
class Table:
    """The rows as arrays. `chip`, `calls` and `log` have an entry per row; `kind` and `layer` one per layer, whose row
    is in `row`."""

    chips: tuple[str, ...]
    chip: Array
    calls: Array  # submissions, read, written
    row: Array
    kind: Array
    layer: Array  # operations, weights, data, traffic
    log: Array

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Table":
        chips = tuple(sorted({r.chip for r in rows}))
        found = [demanded(r.workload, r.params, r.chip) for r in rows]
        flat = [(i, layer) for i, d in enumerate(found) for layer in d.layers]
        return cls(
            chips,
            np.array([chips.index(r.chip) for r in rows]),
            np.array([(d.submissions, d.read, d.written) for d in found], float).T,
            np.array([i for i, _ in flat]),
            np.array([KINDS.index(layer.kind) for _, layer in flat]),
            np.array([(x.operations, x.weights, x.data, x.traffic) for _, x in flat], float).T,
            np.log([r.latency_us for r in rows]),
        )

    def predict(self, rates: Array, further: Array | float = 1.0) -> Array:
        """Logarithms of microseconds. rates: one row for each chip, in the order of RATES; further, for each row: the
        time of a layer in a network as a fraction of its time alone, except for the longest layer."""
        calls, computing, moving, longest = self.times(rates)
        part = in_network(np.maximum(computing, 1e-9), longest, further)
        return np.log(calls + part * engine_us(computing, moving))

    def times(self, rates: Array) -> tuple[Array, Array, Array, Array]:
        """Microseconds of each row: calls; computing layers and moving layers, each timed as if alone; the longest
        layer."""
        of = {name: rates[self.chip, i] for i, name in enumerate(RATES)}
        calls = call_us(*self.calls, of["floor_us"], of["read_gbps"], of["write_gbps"])
        layers = {name: column[self.row] for name, column in of.items()}
        gops = np.stack([layers.get(f"{kind}_gops", np.full(self.row.shape, np.inf)) for kind in KINDS])
        parts = (
            compute_us(self.layer[0], gops[self.kind, np.arange(self.row.size)]),
            weights_us(self.layer[1], self.layer[2], layers["tile_bytes"], layers["stream_gbps"]),
            transfer_us(self.layer[3], layers["traffic_gbps"]),
        )
        us, moves = layer_us(*parts), self.kind == KINDS.index("move")
        computing, moving = (np.bincount(self.row[w], us[w], len(self.log)) for w in (~moves, moves))
        longest = np.zeros(len(self.log))
        np.maximum.at(longest, self.row[~moves], us[~moves])
        return calls, computing, moving, longest


def fit(rows: Sequence[Row]) -> dict[str, Rates]:
    table = Table.of(rows)
    count, width = len(table.chips), len(RATES)
    scale = np.zeros((count, width))
    for c, chip in enumerate(table.chips):
        scale[c, [RATES.index(name) for name in SCALED]] = np.log(peak_ratio(load_chip(chip), load_chip("M1")))
        if known := PRIORS["stream_gbps"].get(chip):
            scale[c, RATES.index("stream_gbps")] = np.log(known / PRIORS["start"]["stream_gbps"])
    start = np.log([PRIORS["start"][name] for name in RATES])
    spread = np.array([PRIORS["spread"][name] for name in RATES])

    def rates(x: Array) -> Array:
        middle, deviations = x[:width], x[width:].reshape(count, width)
        return np.exp(start + WEAK * middle + spread * deviations + scale)

    def residuals(x: Array) -> Array:
        return (table.predict(rates(x)) - table.log) / NOISE

    x, damping = np.zeros((count + 1) * width), 1.0

    def loss(x: Array, r: Array) -> float:
        large = np.abs(r) > HUBER
        return float(np.where(large, 2 * HUBER * np.abs(r) - HUBER**2, r**2).sum() + (x**2).sum())

    r = residuals(x)
    for _ in range(STEPS):
        weight = np.minimum(1, HUBER / np.maximum(np.abs(r), 1e-9))
        jacobian = np.stack([(residuals(x + 1e-5 * unit) - r) / 1e-5 for unit in np.eye(x.size)], axis=1)
        normal = jacobian.T @ (weight[:, None] * jacobian) + np.eye(x.size)
        step = np.linalg.solve(normal + damping * np.eye(x.size), jacobian.T @ (weight * r) + x)
        moved = residuals(x - step)
        if loss(x - step, moved) < loss(x, r):
            x, r, damping = x - step, moved, damping / 3
        else:
            damping *= 4
    return {chip: Rates(*map(float, row)) for chip, row in zip(table.chips, rates(x), strict=True)}


def factors(rows: Sequence[Row], known: dict[str, Rates], further: dict[str, float] | None = None) -> Array:
    """measured / estimated of each row, with the rates that `choose` takes for its chip."""
    table, rates, names = chosen(rows, known)
    further = further or {}
    parts = [further.get(names[r.chip], 1.0) if kind_of(r) == "network" else 1.0 for r in rows]
    return np.exp(table.log - table.predict(rates, np.array(parts)))


def chosen(rows: Sequence[Row], known: dict[str, Rates]) -> tuple[Table, Array, dict[str, str]]:
    """The rows as a table, the rates of its chips, and by chip the product with these rates."""
    table = Table.of(rows)
    found = {chip: choose(load_chip(chip), known) for chip in table.chips}
    rates = np.array([[getattr(found[chip].rates, name) for name in RATES] for chip in table.chips])
    return table, rates, {chip: c.measured_on for chip, c in found.items()}


def further_layers(networks: Sequence[Row], known: dict[str, Rates]) -> dict[str, float]:
    """For each product with at least LEAST whole networks: the time of a layer in a network as a fraction of its time
    alone, the median over the networks. The longest layer counts in full."""
    if not networks:
        return {}
    table, rates, _ = chosen(networks, known)
    calls, computing, moving, longest = table.times(rates)
    part = (np.exp(table.log) - calls) / engine_us(computing, moving)
    told = (part * computing - longest) / (computing - longest)
    by: dict[str, list[float]] = defaultdict(list)
    for row, value in zip(networks, told, strict=True):
        if row.chip in known:
            by[row.chip].append(float(value))
    return {chip: float(np.exp(np.median(np.log(v)))) for chip, v in by.items() if len(v) >= LEAST}


def architecture(row: Row) -> str:
    """The network's name without its size, such as "Whisper"."""
    return row.params.split()[0]


def unseen_networks(networks: Sequence[Row], known: dict[str, Rates]) -> Array:
    """measured / estimated of whole networks, with `further_layers` from networks of other architectures."""
    found = np.ones(len(networks))
    for name in {architecture(r) for r in networks}:
        out = [i for i, r in enumerate(networks) if architecture(r) == name]
        others = [r for r in networks if architecture(r) != name]
        found[out] = factors([networks[i] for i in out], known, further_layers(others, known))
    return found


def unseen_rows(rows: Sequence[Row]) -> Array:
    """measured / estimated, with fits that leave out the network on its chip: FOLDS of them."""
    networks = sorted({(r.chip, r.network) for r in rows})
    order = np.random.default_rng(0).permutation(len(networks))
    fold = {network: int(order[i]) % FOLDS for i, network in enumerate(networks)}
    return _held_out(rows, [fold[r.chip, r.network] for r in rows])


def unseen_chips(rows: Sequence[Row]) -> Array:
    """measured / estimated, with fits that leave out the chip."""
    return _held_out(rows, [r.chip for r in rows])


def _held_out(rows: Sequence[Row], group: Sequence[object]) -> Array:
    """Fits without each group in turn, and never with whole networks."""
    found = np.ones(len(rows))
    for one in set(group):
        known = fit([r for r, g in zip(rows, group, strict=True) if g != one and r.workload != WHOLE])
        out = [i for i, g in enumerate(group) if g == one]
        found[out] = factors([rows[i] for i in out], known)
    return found


def whole_networks() -> list[Row]:
    """The networks of cost_networks.py, without the made-up networks in BENCHMARKS."""
    return [
        Row(chip, chip, WHOLE, name, ms * 1e3)
        for name, (_, published) in NETWORKS.items()
        if name not in BENCHMARKS
        for chip, ms in published.items()
    ]


def kind_of(row: Row) -> str:
    return demanded(row.workload, row.params, row.chip).kind


def print_factors(title: str, rows: Sequence[Row], ratio: Array, covered: Array | None = None) -> None:
    """Geometric-mean and worst factor, by chip and by kind."""
    error = np.exp(np.abs(np.log(ratio)))
    print(f"\n{title}, within a factor of 1.5: {(error <= 1.5).sum()} of {error.size}")
    print(f"{'':<16}{'rows':>6}{'geometric mean':>17}{'worst':>8}{'p10..p90 holds':>17}")

    def line(name: str, where: Iterable[int]) -> None:
        at = np.array(list(where), int)
        mean = np.exp(np.log(error[at]).mean())
        held = "" if covered is None else f"{100 * covered[at].mean():.0f} %"
        print(f"{name:<16}{at.size:>6}{mean:>17.2f}{error[at].max():>8.2f}{held:>17}")

    for keys in ([r.chip for r in rows], [kind_of(r) for r in rows]):
        for key in sorted(set(keys)):
            line(key, (i for i, k in enumerate(keys) if k == key))
    line("all", range(len(rows)))


def quantiles(rows: Sequence[Row], ratio: Array) -> dict[str, tuple[float, float]]:
    """p10 and p90 of the ratio for each kind with at least FEW rows, predicted for the next row (Weibull's quantiles:
    the least and greatest of ten rows are about p9 and p91). "network": programs with layers of several kinds,
    including attention. "other": all rows, for kinds with fewer than FEW."""
    by: dict[str, list[float]] = defaultdict(list)
    for row, value in zip(rows, ratio, strict=True):
        kind = kind_of(row)
        by[kind].append(value)
        if row.workload != WHOLE:
            by["other"].append(value)
        if kind == "attention":
            by["network"].append(value)
    found = {
        kind: np.quantile(values, (0.1, 0.9), method="weibull")
        for kind, values in sorted(by.items())
        if len(values) >= FEW
    }
    return {kind: (float(low), float(high)) for kind, (low, high) in found.items()}


def widened(
    narrow: dict[str, tuple[float, float]], wide: dict[str, tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    """The interval of a chip left out of the fit is wider than that of a row left out. If a kind's rows do not show
    this, its interval is widened by the factor for all rows."""
    (low, high), (wide_low, wide_high) = narrow["other"], wide["other"]
    assert wide_low < low
    assert wide_high > high
    down, up = wide_low / low, wide_high / high

    def span(kind: str) -> tuple[float, float]:
        (low, high), (wide_low, wide_high) = narrow[kind], wide[kind]
        return wide_low if wide_low < low else low * down, wide_high if wide_high > high else high * up

    return {kind: span(kind) for kind in narrow}


def covered(rows: Sequence[Row], ratio: Array, known: dict[str, tuple[float, float]]) -> Array:
    """For each row: whether its ratio lies in the interval of its kind."""
    spans = [known.get(kind_of(row), known["other"]) for row in rows]
    return np.array([low <= value <= high for (low, high), value in zip(spans, ratio, strict=True)])


def alone(rows: Sequence[Row], ratio: Array) -> Array:
    """For each row: whether a whole network lies in the interval from all other architectures, on any chip."""
    found = np.ones(len(rows), bool)
    for name in {architecture(r) for r in rows if r.workload == WHOLE}:
        out = np.array([r.workload == WHOLE and architecture(r) == name for r in rows])
        spans = quantiles([r for r, o in zip(rows, out, strict=True) if not o], ratio[~out])
        found[out] = covered([r for r, o in zip(rows, out, strict=True) if o], ratio[out], spans)
    return found


def judge(rows: Sequence[Row]) -> None:
    found = [estimate_program(compiled(r.workload, r.params, r.chip), load_chip(r.chip)) for r in rows]
    ratio = np.array([r.latency_us / e.latency_us for r, e in zip(rows, found, strict=True)])
    covered = np.array([e.p10_us <= r.latency_us <= e.p90_us for r, e in zip(rows, found, strict=True)])
    print_factors("the parameters in targets/shared/cost.toml", rows, ratio, covered)


def written(
    rows: Sequence[Row],
    name: str,
    known: dict[str, Rates],
    further: dict[str, float],
    intervals: dict[str, dict[str, tuple[float, float]]],
) -> str:
    lines = [
        "# Written by benchmarks/fit_cost.py: do not edit. docs/cost.md has the formula and what each number means.",
        f'source = "fitted on {len(rows)} published latencies, {name}"',
        'status = "fitted"',
        "",
        "[host]  # the CPU of the placement model",
        "gops = 20.0",
        "gbps = 10.0",
        'source = "guide ch18"',
        'status = "decoded"',
    ]
    for chip, rates in known.items():
        count = sum(r.chip == chip for r in rows)
        lines += ["", f'[chips."{chip}"]', f"rows = {count}"]
        lines += [f"{key} = {float(f'{getattr(rates, key):.4g}')}" for key in RATES]
    lines += ["", "[networks]  # the part of its time alone that each further layer of a network takes"]
    lines += [f'"{chip}" = {part}' for chip, part in further.items()]
    for title, spans in intervals.items():
        lines += ["", f"[{title}]  # p10 and p90 of measured / estimated"]
        lines += [f"{kind} = [{low:.3f}, {high:.3f}]" for kind, (low, high) in spans.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="a table with the columns machine, workload, params, latency_ms")
    parser.add_argument("--write", action="store_true", help="write targets/shared/cost.toml")
    parser.add_argument("--judge", action="store_true", help="only compare the written parameters with the rows")
    options = parser.parse_args()
    rows = read_rows(options.rows)
    if options.judge:
        judge(rows)
        return
    known = fit(rows)
    print_factors("fitted to all rows", rows, factors(rows, known))
    networks = whole_networks()
    further = {chip: float(f"{part:.3g}") for chip, part in further_layers(networks, known).items()}
    print_factors(f"fitted to all networks: further layers take {further}", networks, factors(networks, known, further))
    every = [*rows, *networks]
    seen, chips = np.append(unseen_rows(rows), unseen_networks(networks, known)), unseen_chips(every)
    count = len(rows)
    spans = quantiles(every, seen)
    # For products with fewer than LEAST published networks.
    spans["plain_network"] = quantiles(every, np.append(seen[:count], factors(networks, known)))["network"]
    of_chips = quantiles(every, chips)
    of_chips["plain_network"] = of_chips["network"]
    intervals = {"unseen_rows": spans, "unseen_chips": widened(spans, of_chips)}
    for title, ratio, wide in (
        (f"rows left out, {FOLDS} folds", seen, "unseen_rows"),
        ("a chip left out", chips, "unseen_chips"),
    ):
        print_factors(title, rows, ratio[:count], covered(every, ratio, intervals[wide])[:count])
        print_factors(f"{title}: whole networks", networks, ratio[count:], alone(every, ratio)[count:])
    if options.write:
        text = written(rows, options.rows.name, known, further, intervals)
        (FOLDER / "shared" / "cost.toml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
