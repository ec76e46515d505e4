"""Compiles a model with compressed weights, and measures their error."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from hexane.compression.compress import STAGE, compress_weights, exchanged, modes
from hexane.compression.encode import as_stored, encode, fits_fp16, kept_whole, stored_bytes, without_mask
from hexane.compression.fit import Fitted, fit_scales
from hexane.compression.request import PALETTES, Compression, palette_of
from hexane.compression.search import MARGIN, Choice, least_bytes, search, within, within_bytes
from hexane.compression.streams import said, streams
from hexane.compression.weights import Weight, find_weights, with_tied_weights
from hexane.errors import Error
from hexane.graph import Array, Graph, Value, unique
from hexane.graph.decisions import Decision, counted
from hexane.ops.encodings import encoding_of
from hexane.runtime.predicted import corrected, distances, predicted, reference
from hexane.targets import Chip, Target
from hexane.targets.rules import rules

GROUPED = ("palette2:g16", "palette3:g16", "palette4:g16")  # With more bits, one table per tensor is as good.
SEED, RANDOM_FEEDS = 0, 2
MOST_TRIALS = 48  # If more measurements were needed, errors are predicted.
ROUNDS = 3  # Rounds of choosing by predicted errors and measuring the choice.
SURVEYED = (
    1,
    0.7,
    0.5,
    0.35,
    0.25,
    0.15,
    0.1,
    0.06,
    0.03,
    0.01,
)  # Mixtures are surveyed at these tolerances, as fractions of the largest error.
LEAST_TOLERANCE = 1e-3  # If the search needs less than this fraction of the requested tolerance, weights stay whole.


class Runs(Protocol):
    """The part of a compiled model's interface that measuring errors needs."""

    @property
    def inputs(self) -> tuple[Any, ...]: ...
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class LayerReport:
    """A weight: its layer's place, its encoding, bytes before and after, how the target reads it, and the error of the
    network's outputs if only this weight is compressed; None if not measured."""

    layer: str
    encoding: str
    bytes_before: int
    bytes_after: int
    streams: bool
    target_does: str
    error: float | None


@dataclass(frozen=True, slots=True)
class Point:
    """Bytes of all weights, and the largest relative error of an output with them. encoding: the encoding of all layers
    that support it, while other layers are not compressed; "" if layers have different encodings."""

    encoding: str
    bytes: int
    error: float


@dataclass(frozen=True, slots=True)
class Survey:
    """Alternatives for the weights, measured on this CPU in the model's dtypes. layers: per layer its encodings, with
    the error if it alone is compressed; alike: all layers in one encoding; mixed: for several tolerances the mixture
    that `within` chooses, by increasing bytes."""

    layers: tuple[tuple[Choice, ...], ...]
    alike: tuple[Point, ...]
    mixed: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Compressed:
    """The graph with compressed weights, and a report per weight. error: the largest relative error of an output of the
    compiled program, None if not measured; measured_on: the inputs used for it. weights: each weight as stored, in the
    order of the layers. survey: the alternatives, if requested."""

    graph: Graph
    layers: tuple[LayerReport, ...]
    error: float | None
    measured_on: str
    weights: tuple[tuple[Weight, Value], ...]
    survey: Survey | None = None


class _Trial:
    """The network on this CPU with its weights as params, so that a weight is replaced without compiling again."""

    def __init__(
        self,
        graph: Graph,
        weights: Sequence[Weight],
        feeds: "Feeds",
        build: Callable[[Graph], Any],
        threads: int,
    ) -> None:
        self.weights, self.threads = weights, threads
        self.names = [f"%weight{i}" for i in range(len(weights))]
        params = {
            w: unique("param", name, w.whole.type, w.whole.node.data, w.node.sources)
            for name, w in zip(self.names, weights, strict=True)
        }
        self.net = build(exchanged(graph, params))
        self.feeds = feeds
        self.whole = feeds.run(self.net)
        self.made: dict[tuple[int, str], Value] = {}
        self.choices: dict[tuple[int, str], Choice] = {}
        self._held: dict[int, str] = {}  # current encodings; a weight without an encoding is not compressed

    def prepare(self, wanted: Sequence[tuple[int, str]]) -> None:
        """Encodes these weights on all threads. A weight alone would use one."""
        missing = [key for key in dict.fromkeys(wanted) if key not in self.made]
        with ThreadPoolExecutor(self.threads) as pool:
            made = list(pool.map(lambda key: encode(self.weights[key[0]], key[1]), missing))
        self.made.update(zip(missing, made, strict=True))

    def encoded(self, index: int, encoding: str) -> Value:
        if (index, encoding) not in self.made:
            self.made[index, encoding] = encode(self.weights[index], encoding)
        return self.made[index, encoding]

    def choice(self, index: int, encoding: str) -> Choice:
        """Returns the weight in this encoding, with the error if it alone is compressed. Measured once."""
        if (index, encoding) not in self.choices:
            size = stored_bytes(self.weights[index], encoding, self.encoded(index, encoding))
            error = 0.0 if encoding == "none" else self.error({index: encoding})
            self.choices[index, encoding] = Choice(encoding, size, error)
        return self.choices[index, encoding]

    def error(self, chosen: Mapping[int, str]) -> float:
        """Returns the error with only these weights compressed."""
        self._hold({i: encoding for i, encoding in chosen.items() if encoding != "none"})
        return relative_error(self.whole, self.feeds.run(self.net))

    def _hold(self, chosen: dict[int, str]) -> None:
        """Sets the network's encodings. Packing is slow, so only weights that change are updated."""
        changed = {i: chosen.get(i, "none") for i in {**self._held, **chosen} if self._held.get(i) != chosen.get(i)}
        numbers = {self.names[i]: encoding_of(self.encoded(i, e)).decode().node.data for i, e in changed.items()}
        self.net.update(**numbers)
        self._held = chosen


class Feeds:
    """Inputs for measuring errors: the user's, or seeded random ones."""

    def __init__(self, graph: Graph, given: Sequence[Mapping[str, Any]]) -> None:
        self.feeds = [dict(feed) for feed in given] or _random_feeds(graph)
        count = len(self.feeds)
        self.said = counted(count, "calibration input") if given else f"{count} random inputs of the seed {SEED}"

    def run(self, net: Runs) -> list[Array]:
        """Returns the outputs for all inputs in one list."""
        return [y for outputs in self.each(net) for y in outputs]

    def each(self, net: Runs) -> Iterator[list[Array]]:
        """Yields the outputs for each input."""
        dtypes = {port.name: port.dtype.numpy for port in net.inputs}
        for feed in self.feeds:
            if getattr(net, "state_names", ()):
                net.reset_state()  # type: ignore[attr-defined]
            got = net({k: np.asarray(v, dtypes.get(k), order="C") for k, v in feed.items()})
            yield [np.array(y) for y in (got.values() if isinstance(got, dict) else [got])]


def _random_feeds(graph: Graph) -> list[dict[str, Array]]:
    rng = np.random.default_rng(SEED)
    tables = [n.inputs[0].shape[n.attrs["axis"]] for n in graph.nodes if n.op == "gather" and n.inputs[0] is not None]
    most = max(min(tables, default=2), 1)  # an integer input may be an index of a table

    def numbers(value: Value) -> Array:
        kind = value.dtype.numpy
        if value.dtype.kind == "float":
            return rng.standard_normal(value.shape).astype(kind)
        return rng.integers(0, 2 if value.dtype.kind == "bool" else most, value.shape).astype(kind)

    return [{str(v.node.attrs["name"]): numbers(v) for v in graph.inputs} for _ in range(RANDOM_FEEDS)]


def relative_error(whole: Sequence[Array], got: Sequence[Array]) -> float:
    """Returns the largest |y - y'| / |y| of an output, in Euclidean norms over the elements that are finite in y.
    Infinite if an element is finite in y but not in y'."""
    most = 0.0
    for y, other in zip(whole, got, strict=True):
        a, b = y.astype(np.float64), other.astype(np.float64)
        if a.shape != b.shape:
            return float("inf")
        known = np.isfinite(a)
        a, b = a[known], b[known]
        size, distance = float(np.linalg.norm(a)), float(np.linalg.norm(a - b))
        if not np.isfinite(distance):
            return float("inf")
        most = max(most, 0.0 if distance == 0 else distance / size if size else float("inf"))
    return most


def compressed(
    graph: Graph,
    asked: Compression,
    target: Target,
    build: Callable[[Graph], Any],
    build_trial: Callable[[Graph], Any],
    *,
    threads: int = 1,
    measures: bool = False,
    surveys: bool = False,
) -> tuple[Compressed, Any]:
    """Returns the graph compressed as requested, and the result of `build` for it. build_trial: compiles for this CPU.
    measures: measure the error even if the request does not need it. surveys: measure every encoding of every layer.

    With a tolerance, the error of the compiled program is measured, and layers get more bits until the error is within
    the tolerance. With a budget of bytes too, the result has the least error within the budget. Raises Error if a
    budget or a tolerance cannot be met.
    """
    graph = with_tied_weights(graph)
    weights = find_weights(graph)
    wanted = modes(weights, asked)
    fitted: dict[Weight, Fitted] = {}
    if asked.feeds:
        given = Feeds(graph, asked.feeds)
        kept = dict(zip(weights, wanted, strict=True))
        fitted = fit_scales(graph, kept, lambda changed: list(given.each(build_trial(changed))), threads)
    if not (asked.searches or measures or surveys) or not weights:
        rewritten, values = compress_weights(graph, dict(zip(weights, wanted, strict=True)), target, threads, fitted)
        reports = _reports(weights, wanted, values, target, {})
        if asked.budget is not None:
            _check_budget(sum(layer.bytes_after for layer in reports), asked.budget)
        return Compressed(rewritten, reports, None, "nothing", _stored(weights, values)), build(rewritten)
    feeds = Feeds(graph, asked.feeds)
    trial = _Trial(graph, weights, feeds, build_trial, threads)
    trial.made |= {(i, wanted[i]): fitted[w].value for i, w in enumerate(weights) if w in fitted}
    layers = _layers(weights, wanted, trial, target)
    if asked.budget is not None:
        _check_budget(least_bytes(layers), asked.budget)
    survey = _surveyed(weights, wanted, trial, target) if surveys else None
    whole = feeds.run(build(graph))

    def made_of(encodings: Sequence[str], reason: str) -> tuple[Compressed, Any]:
        made = {(weights[i], encoding): value for (i, encoding), value in trial.made.items()}
        chosen = dict(zip(weights, encodings, strict=True))
        rewritten, values = compress_weights(graph, chosen, target, threads, fitted, made)
        rewritten = (
            rewritten.decided(Decision(STAGE, "network", "auto", f"{reason} on {feeds.said}")) if reason else rewritten
        )
        net = build(rewritten)
        error = relative_error(whole, feeds.run(net))
        errors = {key: choice.error for key, choice in trial.choices.items()}
        reports = _reports(weights, encodings, values, target, errors)
        return Compressed(rewritten, reports, error, feeds.said, _stored(weights, values), survey), net

    if not asked.searches:
        return made_of(wanted, "")
    if asked.budget is None:
        assert asked.limit is not None
        return _within_tolerance(layers, wanted, trial, asked.limit, made_of)
    budget = asked.budget
    chosen = _settled(layers, trial, lambda: [c.encoding for c in _least_error(layers, trial, budget)[0]])
    taken = sum(trial.choice(i, encoding).bytes for i, encoding in enumerate(chosen))
    sized = f"{taken} of at most {asked.budget} bytes, with the least error of the outputs"
    best = made_of(chosen, sized)
    error = best[0].error
    assert error is not None
    if asked.limit is None or error <= asked.limit:
        return best
    smallest = _within_tolerance(layers, wanted, trial, asked.limit, made_of)
    needs = sum(layer.bytes_after for layer in smallest[0].layers)
    if needs <= asked.budget:
        return smallest
    raise Error(
        f"[compress] tolerance: got an error of {error:.2g} within {asked.budget} bytes, need at most {asked.limit:g},"
        f" for which {needs} bytes were found; give more bytes, or a larger tolerance"
    )


def _check_budget(least: int, budget: int) -> None:
    if least > budget:
        raise Error(
            f"[compress] bytes: got {budget}, need at least {least}, which the weights take in the smallest encodings"
            " that they may have here"
        )


def _within_tolerance(
    layers: list[list[Choice]],
    wanted: Sequence[str],
    trial: _Trial,
    limit: float,
    made_of: Callable[[Sequence[str], str], tuple[Compressed, Any]],
) -> tuple[Compressed, Any]:
    """Returns the first result of the search, by increasing bytes, for which the compiled program's error is within the
    limit. Raises Error if the layers with a requested mode alone exceed the limit."""
    tolerance = limit
    while True:
        _settled(layers, trial, partial(_within, layers, wanted, tolerance))
        encodings = _settled(layers, trial, partial(_searched, layers, wanted, trial, tolerance), rounds=1)
        outcome, net = made_of(encodings, f"relative error of the outputs at most {limit:g}")
        error = outcome.error
        assert error is not None
        if error <= limit:
            return outcome, net
        if all(mode != "auto" or encoding == "none" for mode, encoding in zip(wanted, encodings, strict=True)):
            raise Error(
                f"[compress] tolerance: got an error of {error:.2g} from the modes of per_layer alone, need at most"
                f" {limit:g}; give those layers more bits, or a larger tolerance"
            )
        # The compiled program rounds differently than the trial, so the layers get more bits.
        tolerance *= min(MARGIN * limit / error, 0.9)
        if tolerance < limit * LEAST_TOLERANCE:
            layers[:] = [[c for c in choices if c.encoding == "none"] or choices for choices in layers]


def _least_error(layers: Sequence[Sequence[Choice]], trial: _Trial, budget: int) -> tuple[list[Choice], float]:
    """Returns the choices within the budget with the least measured error of the outputs. Candidates are the result of
    the search by the layers' errors, and each encoding for all layers that support it, with the smallest choice for
    other layers."""
    tried = [within_bytes(layers, budget)]
    for encoding in dict.fromkeys(c.encoding for choices in layers for c in choices):
        smallest = (min(choices, key=lambda c: (c.bytes, c.error)) for choices in layers)
        alike = [
            next((c for c in choices if c.encoding == encoding), least)
            for choices, least in zip(layers, smallest, strict=True)
        ]
        if sum(c.bytes for c in alike) <= budget:
            tried.append(alike)
    errors = [(trial.error({i: c.encoding for i, c in enumerate(chosen)}), chosen) for chosen in tried]
    error, chosen = min(errors, key=lambda one: one[0])
    return chosen, error


def _layers(weights: Sequence[Weight], wanted: Sequence[str], trial: _Trial, target: Target) -> list[list[Choice]]:
    """Returns the possible encodings of each weight, with the error of each alone. If measuring takes more than
    MOST_TRIALS runs, one encoding per weight is measured, and the errors of its other encodings are predicted."""
    named = [candidates(w, target) if mode == "auto" else [mode] for w, mode in zip(weights, wanted, strict=True)]
    if sum(len(encodings) - 1 for encodings in named) <= MOST_TRIALS:
        trial.prepare([(i, encoding) for i, encodings in enumerate(named) for encoding in encodings])
        return [[trial.choice(i, encoding) for encoding in encodings] for i, encodings in enumerate(named)]
    first = [encodings[0] if len(encodings) == 1 else reference(encodings) for encodings in named]
    trial.prepare(list(enumerate(first)))
    return [
        [trial.choice(i, encodings[0])]
        if len(encodings) == 1
        else predicted(trial.choice(i, first[i]), distances(weights[i], encodings))
        for i, encodings in enumerate(named)
    ]


def _settled(
    layers: list[list[Choice]], trial: _Trial, choose: Callable[[], Sequence[str]], rounds: int = ROUNDS
) -> list[str]:
    """Returns the choice once the errors of all chosen encodings are measured, or after `rounds` measurements. Updates
    `layers`."""
    result = list(choose())
    for _ in range(rounds):
        fresh = [(i, e) for i, e in enumerate(result) if (i, e) not in trial.choices]
        trial.prepare(fresh)
        for i, encoding in fresh:
            measured = [name for layer, name in trial.choices if layer == i]
            layers[i] = corrected(layers[i], trial.choice(i, encoding), measured)
        if not fresh:
            break
        result = list(choose())
    return result


def _surveyed(weights: Sequence[Weight], wanted: Sequence[str], trial: _Trial, target: Target) -> Survey:
    """Returns the survey, with the requested modes among the candidates."""
    layers = [
        [
            trial.choice(i, encoding)
            for encoding in dict.fromkeys([*candidates(weight, target), *([mode] if mode != "auto" else [])])
        ]
        for i, (weight, mode) in enumerate(zip(weights, wanted, strict=True))
    ]

    def point(encoding: str, chosen: Sequence[Choice]) -> Point:
        error = trial.error({i: choice.encoding for i, choice in enumerate(chosen)})
        return Point(encoding, sum(choice.bytes for choice in chosen), error)

    alike = []
    for encoding in dict.fromkeys(choice.encoding for choices in layers for choice in choices):
        by_name = [{choice.encoding: choice for choice in choices} for choices in layers]
        alike.append(point(encoding, [known.get(encoding, known["none"]) for known in by_name]))
    bounded = [[choice for choice in choices if np.isfinite(choice.error)] for choices in layers]
    most = sum(max(choice.error for choice in choices) ** 2 for choices in bounded)
    mixes = [within(bounded, most * share**2) for share in SURVEYED]
    mixed = [point("", chosen) for chosen in {tuple(chosen): chosen for chosen in mixes}.values()]
    return Survey(tuple(map(tuple, layers)), tuple(alike), tuple(sorted(mixed, key=lambda one: one.bytes)))


def _within(layers: Sequence[Sequence[Choice]], wanted: Sequence[str], tolerance: float) -> list[str]:
    """Chooses encodings of the layers in "auto" mode, assuming that squared errors add up; other layers keep their
    mode."""
    free = [choices for choices, mode in zip(layers, wanted, strict=True) if mode == "auto"]
    searched = iter(within(free, tolerance**2))
    return [next(searched).encoding if mode == "auto" else mode for mode in wanted]


def _searched(layers: Sequence[Sequence[Choice]], wanted: Sequence[str], trial: _Trial, tolerance: float) -> list[str]:
    """Searches encodings of the layers in "auto" mode by measuring; other layers keep their mode, and their error
    counts."""
    free = [i for i, mode in enumerate(wanted) if mode == "auto"]
    fixed = {i: mode for i, mode in enumerate(wanted) if mode not in ("auto", "none")}

    def measure(encodings: Sequence[str]) -> float:
        return trial.error({**fixed, **dict(zip(free, encodings, strict=True))})

    choices, _ = search([layers[i] for i in free], measure, tolerance)
    at = dict(zip(free, choices, strict=True))
    return [at.get(i, mode) for i, mode in enumerate(wanted)]


def candidates(weight: Weight, target: Target) -> list[str]:
    """Returns the candidates of "auto": the encodings that the chip streams, with its palette widths, or all encodings
    if it streams none. Palettes are no candidates for convolutions with strides that Apple's rules exclude. A weight
    beyond fp16 has no encoding."""
    if not fits_fp16(weight):
        return ["none"]
    widths = (target.formats.palette_bits or ()) if isinstance(target, Chip) else ()
    strides, most = weight.node.attrs.get("strides", ()), rules()["palette_strides"].number("most")
    excluded = isinstance(target, Chip) and max(strides, default=1) > most
    known = ["int8"]
    if not excluded:
        known += [*PALETTES, *(e for e in GROUPED if not kept_whole(weight, e))]
    known += [] if without_mask(weight, "sparse") else ["sparse"]
    streamed = [e for e in known if streams(weight, e, target) and (palette_of(e) or (8, 0))[0] in (*widths, 8)]
    return [*(streamed or known), "none"]


def _stored(weights: Sequence[Weight], values: Sequence[Value]) -> tuple[tuple[Weight, Value], ...]:
    return tuple(zip(weights, values, strict=True))


def _reports(
    weights: Sequence[Weight],
    chosen: Sequence[str],
    values: Sequence[Value],
    target: Target,
    errors: Mapping[tuple[int, str], float],
) -> tuple[LayerReport, ...]:
    reports = []
    for i, (weight, encoding, value) in enumerate(zip(weights, chosen, values, strict=True)):
        after = weight.bytes if encoding == "none" else stored_bytes(weight, encoding, value)
        stored = as_stored(encoding, value)
        words = "whole" if encoding == "none" else said(weight, stored, target)
        does, error = streams(weight, stored, target), errors.get((i, encoding))
        reports.append(LayerReport(weight.node.where, encoding, weight.bytes, after, does, words, error))
    return tuple(reports)
