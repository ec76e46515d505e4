"""Any sequence of calls, updates, state writes, resets, saves, loads and binds computes what a NumPy model of it
does."""

import gc
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

import hexane as hx

ROWS, COLUMNS = 3, 4
Array = np.ndarray[Any, Any]


def array(shape: tuple[int, ...], seed: int) -> Array:
    """Small whole numbers: every sum is exact."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


SHAPES = {"w": (COLUMNS, COLUMNS), "tall": (2 * ROWS, COLUMNS), "scale": ()}
SEEDS = st.integers(0, 10_000)


class Meaning:
    """The model in NumPy: y = (x @ w) * scale + tall[rows] + log; log[at] = x[0]; count += 1."""

    def __init__(self, params: dict[str, Array]) -> None:
        self.params = dict(params)
        self.reset()

    def reset(self) -> None:
        self.log = np.ones((ROWS, COLUMNS), np.float32)
        self.count = np.float32(0)

    def __call__(self, x: Array, at: int) -> dict[str, Array]:
        p = self.params
        y = (x @ p["w"]) * p["scale"] + p["tall"][ROWS:] + self.log
        self.log = self.log.copy()
        self.log[at] = x[0]
        self.count = np.float32(self.count + 1)
        return {"y": y, "after": self.log * 2, "count": np.full((1,), self.count)}


def build(params: dict[str, Array], threads: int) -> hx.Model:
    x, at = hx.input("x", (ROWS, COLUMNS)), hx.input("at", (), "int32")
    w, tall, scale = (hx.param(name, params[name]) for name in SHAPES)
    log, count = hx.state("log", init=np.ones((ROWS, COLUMNS), np.float32)), hx.state("count", (1,))
    y = (x @ w) * scale + tall[ROWS:] + log
    after = hx.write_state(log, x[:1], at, axis=0)
    counted = hx.write_state(count, count + 1.0, np.int32(0))
    return hx.compile({"y": y, "after": after * 2.0, "count": counted * 1.0}, threads=threads)


class Machine(RuleBasedStateMachine):
    models = Bundle("models")
    calls = Bundle("calls")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.files: dict[Path, dict[str, Array]] = {}

    def teardown(self) -> None:
        self.folder.cleanup()

    @initialize(target=models, threads=st.integers(1, 2))
    def compile(self, threads: int) -> Any:
        params = {name: array(shape, i) for i, (name, shape) in enumerate(SHAPES.items())}
        return [build(params, threads), Meaning(params)]

    @rule(model=models, seed=SEEDS, at=st.integers(0, ROWS - 1))
    def call(self, model: Any, seed: int, at: int) -> None:
        net, meaning = model
        x = array((ROWS, COLUMNS), seed)
        equal(net(x, np.int32(at)), meaning(x, at))

    @rule(model=models, at=st.sampled_from([-1, ROWS]))
    def call_that_is_refused(self, model: Any, at: int) -> None:
        """A state that is not written stays; the steps before may have counted."""
        net, meaning = model
        try:
            net(np.zeros((ROWS, COLUMNS), np.float32), np.int32(at))
        except hx.Error:
            net.write_state("log", meaning.log)
            net.write_state("count", np.full((1,), meaning.count))
        else:
            raise AssertionError("a position outside was taken")

    @rule(model=models, name=st.sampled_from(sorted(SHAPES)), seed=SEEDS)
    def update(self, model: Any, name: str, seed: int) -> None:
        net, meaning = model
        meaning.params[name] = array(SHAPES[name], seed)
        given = np.array(meaning.params[name], order="F")
        net.update(**{name: given})
        given[...] = 99  # what was given is not looked at again

    @rule(model=models, seed=SEEDS)
    def write_state(self, model: Any, seed: int) -> None:
        net, meaning = model
        meaning.log = array((ROWS, COLUMNS), seed)
        net.write_state("log", meaning.log)

    @rule(model=models)
    def reset(self, model: Any) -> None:
        net, meaning = model
        net.reset_state()
        meaning.reset()

    @rule(model=models, name=st.sampled_from(["a", "b"]))
    def save(self, model: Any, name: str) -> None:
        net, meaning = model
        path = Path(self.folder.name) / name
        net.save(path)
        self.files[path] = dict(meaning.params)

    @rule(target=models, name=st.sampled_from(["a", "b"]), threads=st.integers(1, 2), remove=st.booleans())
    def load(self, name: str, threads: int, remove: bool) -> Any:
        path = Path(self.folder.name) / name
        if path not in self.files:
            return multiple()
        net = hx.load(path, threads=threads)
        meaning = Meaning(self.files[path])
        if remove:
            path.write_bytes(b"")
            del self.files[path]
        return [net, meaning]

    @rule(target=calls, model=models, own=st.booleans())
    def bind(self, model: Any, own: bool) -> Any:
        net, meaning = model
        outputs = {"y": np.zeros((ROWS, COLUMNS), np.float32)} if own else {}
        return [net.bind(x=np.zeros((ROWS, COLUMNS), np.float32), at=np.zeros((), np.int32), **outputs), meaning]

    @rule(call=calls, seed=SEEDS, at=st.integers(0, ROWS - 1))
    def bound_call(self, call: Any, seed: int, at: int) -> None:
        bound, meaning = call
        x = array((ROWS, COLUMNS), seed)
        bound.inputs["x"][...] = x
        bound.inputs["at"][...] = at
        bound()
        equal(bound.outputs, meaning(x, at))

    @rule(model=models, seed=SEEDS)
    def only_the_bound_call_stays(self, model: Any, seed: int) -> None:
        """The model a bound call came from is dropped before it runs."""
        net, meaning = model
        net.save(Path(self.folder.name) / "own")
        bound = hx.load(Path(self.folder.name) / "own", threads=1).bind(
            x=array((ROWS, COLUMNS), seed), at=np.zeros((), np.int32)
        )
        gc.collect(1)  # the model is younger than what other tests of this process have left
        bound()
        equal(bound.outputs, Meaning(meaning.params)(array((ROWS, COLUMNS), seed), 0))

    @invariant()
    def nothing_is_left_beside_files(self) -> None:
        assert not list(Path(self.folder.name).glob("*.part"))

    @rule(model=models)
    def states_are_what_was_written(self, model: Any) -> None:
        net, meaning = model
        np.testing.assert_array_equal(net.read_state("log"), meaning.log)
        np.testing.assert_array_equal(net.read_state("count"), np.full((1,), meaning.count))


def equal(got: Any, want: dict[str, Array]) -> None:
    assert set(got) == set(want)
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value)


Machine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestMachine = Machine.TestCase
