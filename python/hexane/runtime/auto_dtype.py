"""Chooses the products that a network computes in bf16: those faster on this CPU, within a tolerance of the outputs."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import isfinite
from typing import Any, Protocol

import numpy as np

from hexane import _core
from hexane.errors import Error
from hexane.graph import Array, Graph, Node
from hexane.graph.decisions import Decision, counted
from hexane.options import MOST_FEEDS, AutoDtype
from hexane.passes.legalize.use_bf16 import ATTENTION, bf16_products
from hexane.passes.run import Watch
from hexane.program import Program
from hexane.runtime.compressed import SEED, Feeds, relative_error
from hexane.runtime.model import Model

STAGE = "use_bf16"
MOST_TRIALS = 16  # The most compiled variants whose error is measured.
GROUPS = 6  # Groups of neighbouring products; the error of each group is measured.
LEAST_GAIN = 0.05  # Gains below this share of a product's time are noise.
ROUNDS, ROUND_SECONDS = 4, 0.08  # For timing, the fp32 and the bf16 program alternate.
COLORS = 3  # Channels of an image.


class Trial(Protocol):
    """Compiles the network with these products in bf16, in whole tensors."""

    def __call__(self, numbers: Collection[int], watch: Watch | None = None, /) -> Model: ...


@dataclass(frozen=True, slots=True)
class ChosenProducts:
    """Indices into `bf16_products`, and the reasons."""

    numbers: tuple[int, ...]
    decisions: tuple[Decision, ...]


def in_fp32(reason: str) -> ChosenProducts:
    """Returns the choice of no product."""
    return ChosenProducts((), (Decision(STAGE, "network", "fp32", reason),))


def choose_products(graph: Graph, asked: AutoDtype, trial: Trial, *, is_fixed: bool) -> ChosenProducts:
    """Returns the products to compute in bf16. The network is compiled at most MOST_TRIALS + 1 times, whatever its
    size.

    A product counts as faster if its step in bf16, with the cast of a computed operand, takes at least 5 % less time
    than in fp32. If the error with all faster products exceeds the tolerance, the error of each group of neighbours is
    measured. A product's share is its part of the squared error of its group. Products are ordered by time saved per
    share, and a bisection finds how many stay within the tolerance. At last, halves of the remaining groups are tried.

    is_fixed: the model has the shapes of the graph only. If is_fixed is false, calibration inputs of other shapes are
    skipped. Raises Error for inputs that do not fit the graph.
    """
    if _core.bf16_forms()[0] == "plain":
        return in_fp32("this CPU has no instruction that multiplies in bf16 faster than fp32")
    feeds = _feeds(graph, asked, is_fixed=is_fixed)
    products: list[Node] = []

    def watch(name: str, form: Graph | Program) -> None:
        if name == STAGE and isinstance(form, Graph):
            products.extend(bf16_products(form))

    wide = trial((), watch)
    if not products:
        return in_fp32("the network has no product in fp32 that kernels of bf16 take")
    whole = feeds.run(wide)
    every = tuple(range(len(products)))
    narrow = trial(every)
    search = _Search(trial, feeds, whole, asked.tolerance, {every: relative_error(whole, feeds.run(narrow))})
    times = _times(products, wide, narrow, feeds.feeds[0])
    del wide, narrow
    saved = [before - after if after < (1 - LEAST_GAIN) * before else 0.0 for before, after in times]
    faster = tuple(i for i in every if saved[i])
    chosen = search.within(faster, saved)
    return ChosenProducts(chosen, tuple(_decisions(products, times, faster, chosen, search, feeds.said)))


class _Search:
    """Finds products for which the error stays within the tolerance."""

    def __init__(
        self,
        trial: Trial,
        feeds: Feeds,
        whole: Sequence[Array],
        tolerance: float,
        errors: dict[tuple[int, ...], float],
    ) -> None:
        self._trial, self._feeds, self._whole, self.tolerance = trial, feeds, whole, tolerance
        self.errors = errors  # set of products in bf16 -> error of the outputs

    def error(self, numbers: Sequence[int]) -> float:
        key = tuple(sorted(numbers))
        if not key:
            return 0.0
        if key not in self.errors:
            self.errors[key] = relative_error(self._whole, self._feeds.run(self._trial(key)))
        return self.errors[key]

    def within(self, numbers: tuple[int, ...], saved: Sequence[float]) -> tuple[int, ...]:
        """Returns the products to compute in bf16, chosen among these. saved: the time that each product saves."""
        if self.error(numbers) <= self.tolerance:
            return numbers
        groups = _parts(numbers, GROUPS)
        share = {i: max(self.error(group) ** 2 / len(group), 1e-30) for group in groups for i in group}
        ordered = sorted(numbers, key=lambda i: saved[i] / share[i], reverse=True)
        sums = np.cumsum([share[i] for i in ordered])
        low, high = 0, len(ordered)  # the first `low` products are within the tolerance, the first `high` are not
        middle = int(np.searchsorted(sums, self.tolerance**2))
        while high - low > 1 and len(self.errors) < MOST_TRIALS - GROUPS // 2:
            middle = min(max(middle, low + 1), high - 1)
            if self.error(ordered[:middle]) <= self.tolerance:
                low = middle
            else:
                high = middle
            middle = (low + high) // 2
        return self._more(tuple(ordered[:low]), groups)

    def _more(self, kept: tuple[int, ...], groups: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Adds halves of the remaining groups while trials remain: one bad product may have excluded its whole
        group."""
        left = [tuple(i for i in group if i not in kept) for group in groups]
        for half in (half for rest in left if rest for half in _parts(rest, 2)):
            if len(self.errors) < MOST_TRIALS and self.error((*kept, *half)) <= self.tolerance:
                kept = (*kept, *half)
        return tuple(sorted(kept))

    def least_with(self, number: int) -> tuple[int, float]:
        """Returns the size and the error of the smallest measured group with this product."""
        size, error = min((len(key), error) for key, error in self.errors.items() if number in key)
        return size, error


def _parts(numbers: tuple[int, ...], count: int) -> list[tuple[int, ...]]:
    """Splits the numbers into at most `count` runs of about equal length."""
    sizes = [len(part) for part in np.array_split(np.arange(len(numbers)), min(count, len(numbers)))]
    return [numbers[begin:end] for begin, end in pairwise(accumulate(sizes, initial=0))]


def _feeds(graph: Graph, asked: AutoDtype, *, is_fixed: bool) -> Feeds:
    """Returns the inputs to measure on; each has arrays for all inputs of the graph."""
    shapes = {str(value.node.attrs["name"]): value.shape for value in graph.inputs}
    fitting = []
    for feed in asked.feeds[:MOST_FEEDS]:
        if unknown := sorted(feed.keys() - shapes.keys()):
            need = ", ".join(shapes) or "none"
            raise Error(f"[compile] dtype: calibration: got the name {unknown[0]!r}, need one of {need}")
        wrong = [name for name, array in feed.items() if np.shape(array) != shapes[name]]
        if not wrong:
            fitting.append(feed)
        elif is_fixed:
            name = wrong[0]
            got, wanted = list(np.shape(feed[name])), list(shapes[name])
            raise Error(f"[compile] dtype: calibration input {name!r}: got the shape {got}, need {wanted}")
    random = Feeds(graph, ())
    for value in graph.inputs:
        if _is_image(value.shape) and value.dtype.kind == "float":
            pixels = np.random.default_rng(SEED).uniform(0, 255, value.shape)
            random.feeds[0][str(value.node.attrs["name"])] = pixels.astype(value.dtype.numpy)
    if not fitting:
        return random
    return Feeds(graph, [{**random.feeds[1], **feed} for feed in fitting])


def _is_image(shape: tuple[int, ...]) -> bool:
    return len(shape) == 4 and COLORS in (shape[1], shape[3])


def _times(products: Sequence[Node], wide: Model, narrow: Model, feed: Any) -> list[tuple[float, float]]:
    """Returns microseconds of each product in fp32 and in bf16; infinite if the product's step is not found. Products
    with the same op and shapes share the median of their times."""
    fastest = [dict[Any, float](), dict[Any, float]()]
    for _ in range(ROUNDS):
        for model, best in zip((wide, narrow), fastest, strict=True):
            for key, us in _step_times(model, feed).items():
                best[key] = min(best.get(key, us), us)
    keys = [_key(node) for node in products]
    unknown = (float("inf"), float("inf"))
    return [(fastest[0][key], fastest[1][key]) if key in fastest[0] and key in fastest[1] else unknown for key in keys]


def _step_times(model: Model, feed: Any) -> dict[Any, float]:
    assert model.program is not None
    dtypes = {port.name: port.dtype.numpy for port in model.inputs}
    arrays = {name: np.asarray(array, dtypes[name], order="C") for name, array in feed.items() if name in dtypes}
    if model.state_names:
        model.reset_state()
    model(arrays)
    model.profile(True)
    end = time.perf_counter() + ROUND_SECONDS
    model(arrays)
    while time.perf_counter() < end:
        model(arrays)
    nodes = [step.node for step in model.program.steps]
    steps = model.steps
    model.profile(False)
    if len(nodes) != len(steps):
        return {}
    us = {node: step["median"] / 1000 for node, step in zip(nodes, steps, strict=True)}
    groups: dict[Any, list[float]] = {}
    for node, own in us.items():
        if _op(node) not in ("matmul", "conv", ATTENTION):
            continue
        right = node.inputs[1]
        cast = 0.0 if right is None or right.node.op != "cast" else us.get(right.node, 0.0)
        groups.setdefault(_key(node), []).append(own + cast)
    return {key: float(np.median(each)) for key, each in groups.items()}


def _op(node: Node) -> str:
    """Returns the op's name without the prefix of its form for 16-bit weights or for bf16."""
    return node.op.rpartition(".")[2].removeprefix("widening_").removeprefix("bf16_")


def _key(node: Node) -> Any:
    return _op(node), node.types[0].shape, tuple(None if v is None else v.shape for v in node.inputs)


def _decisions(
    products: Sequence[Node],
    times: Sequence[tuple[float, float]],
    faster: tuple[int, ...],
    chosen: tuple[int, ...],
    search: _Search,
    said: str,
) -> list[Decision]:
    """Returns one decision about the network, and one about each product."""
    total = search.error(chosen)
    counts = f"{len(chosen)} of {counted(len(products), 'product')} in bf16"
    reason = f"outputs off by {total:.2g} in relative L2 (limit {search.tolerance:g}), on {said}"
    result = [Decision(STAGE, "network", "auto", f"{counts}: {reason}")]
    for i, (node, (before, after)) in enumerate(zip(products, times, strict=True)):
        both = f"{before:.1f} us in fp32, {after:.1f} us in bf16"
        if i in chosen:
            text = f"{both}; outputs off by {total:.2g} with all that are chosen"
        elif i not in faster:
            text = f"{both}: no faster on this CPU" if isfinite(before) else "its steps were not measured"
        else:
            size, error = search.least_with(i)
            others = "it alone" if size == 1 else f"it and {counted(size - 1, 'other')}"
            text = f"{both}; outputs off by {error:.2g} with {others}, need at most {search.tolerance:g}"
            if error <= search.tolerance:
                text = f"{both}; outputs off by {error:.2g} with {others}, too much together with the products in bf16"
        result.append(Decision(STAGE, node.where, "bf16" if i in chosen else "fp32", text))
    return result
