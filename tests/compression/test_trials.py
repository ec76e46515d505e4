"""Errors of encodings do not depend on what the network held before."""

from importlib import import_module

import numpy as np
import pytest

import hexane as hx
from hexane.compression.encode import encode
from hexane.compression.weights import Weight, find_weights
from hexane.graph import Value
from hexane.runtime.compile_graphs import build_with_shared_weights
from hexane.runtime.compressed import Feeds, _Trial


class Counted:
    """A compiled network that counts the weights of its updates."""

    def __init__(self, net: hx.Model) -> None:
        self.net, self.updated = net, 0

    @property
    def inputs(self) -> object:
        return self.net.inputs

    def __call__(self, feeds: object) -> object:
        return self.net(feeds)

    def update(self, **arrays: np.ndarray) -> None:
        self.updated += len(arrays)
        self.net.update(**arrays)


def trial(threads: int = 1) -> _Trial:
    rng = np.random.default_rng(0)
    y = hx.input("x", (4, 64))
    for _ in range(3):
        y = hx.relu(hx.matmul(y, hx.const(rng.standard_normal((64, 64)).astype("f") / 8)))
    graph = hx.graph({"y": y})
    build = build_with_shared_weights()
    return _Trial(graph, find_weights(graph), Feeds(graph, ()), lambda made: Counted(build(made)), threads)


ASKED: list[dict[int, str]] = [
    {0: "palette4"},
    {0: "int8"},
    {1: "palette2", 2: "int8"},
    {1: "palette2"},
    {0: "none", 1: "none"},
    {2: "palette1", 1: "palette2"},
]


def test_an_error_is_that_of_the_weights_asked_for_in_any_order() -> None:
    alone = [trial().error(chosen) for chosen in ASKED]
    assert alone[4] == 0
    assert len(set(alone)) == len(alone)
    for order in ([0, 1, 2, 3, 4, 5], [5, 2, 0, 4, 3, 1], [3, 3, 2, 2, 1]):
        one = trial()
        for i in order:
            assert one.error(ASKED[i]) == alone[i]


def test_encodings_of_one_weight_take_one_update_each() -> None:
    one = trial()
    for encoding in ("int8", "palette4", "palette2"):
        one.error({0: encoding})
    assert one.net.updated == 3
    one.error({1: "int8"})
    assert one.net.updated == 5


def test_weights_that_are_encoded_at_once_are_those_encoded_alone() -> None:
    wanted = [(0, "palette4"), (1, "int8"), (2, "palette2"), (0, "palette4"), (1, "none")]
    alone, at_once = trial(), trial(threads=3)
    at_once.prepare(wanted)
    assert all(at_once.made[key] is alone.encoded(*key) or at_once.made[key] == alone.encoded(*key) for key in wanted)


def test_the_compiled_program_takes_the_weights_of_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each weight is encoded once in each encoding: a palette of a large weight takes a second."""
    taken: list[tuple[object, str]] = []

    def counted(weight: Weight, encoding: str, *rest: object, **options: object) -> Value:
        taken.append((weight, encoding))
        return encode(weight, encoding, *rest, **options)  # type: ignore[arg-type]

    for module in ("hexane.compression.compress", "hexane.runtime.compressed"):
        monkeypatch.setattr(import_module(module), "encode", counted)
    rng = np.random.default_rng(0)
    y = hx.input("x", (4, 64))
    for _ in range(3):
        y = hx.relu(hx.matmul(y, hx.const(rng.standard_normal((64, 64)).astype("f") / 8)))
    hx.compile(hx.graph({"y": y}), compress="auto")
    assert taken
    assert len(set(taken)) == len(taken)
