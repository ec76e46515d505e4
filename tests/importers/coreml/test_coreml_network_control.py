"""Branches and loops of neural networks, which write the names around them. Expected values are NumPy's."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.errors import UnsupportedError
from hexane.sources import open as open_source

Array = np.ndarray
# Its largest eigenvalue is 0.93: sums converge.
W = np.random.default_rng(4).uniform(0, 0.2, (8, 8)).astype(np.float32)
GROWTH = W * np.float32(1.5)
X = np.random.default_rng(5).uniform(0, 1, 8)
Write = Callable[[Any], object]


@pytest.fixture(scope="module")
def apple() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("coremltools", reason="coremltools is not installed")


def inner(network: Any, write: Write) -> None:
    """The layers of a network in a branch or a loop."""
    from coremltools.models.neural_network import NeuralNetworkBuilder

    write(NeuralNetworkBuilder(input_features=None, output_features=None, nn_spec=network))


def network(folder: Path, write: Write, outputs: tuple[str, ...] = ("y",), inputs: tuple[str, ...] = ()) -> Path:
    """Of x (8), and of inputs of one number each."""
    from coremltools.models import datatypes
    from coremltools.models.neural_network import NeuralNetworkBuilder

    builder = NeuralNetworkBuilder(
        [("x", datatypes.Array(8)), *((name, datatypes.Array(1)) for name in inputs)],
        [(name, None) for name in outputs], disable_rank5_shape_mapping=True,
    )  # fmt: skip
    write(builder)
    (folder / "net.mlmodel").write_bytes(builder.spec.SerializeToString())
    return folder / "net.mlmodel"


def dense(b: Any, given: str, made: str) -> None:
    b.add_inner_product(made, W, None, 8, 8, False, given, made)


def step(b: Any) -> None:
    """y = W y + x, and k = k + 1."""
    dense(b, "y", "a")
    b.add_add_broadcastable("sum", ["a", "x"], "b")
    b.add_copy("back", "b", "y")
    b.add_elementwise("next", ["k"], "c", "ADD", alpha=1.0)
    b.add_copy("count", "c", "k")


def start(b: Any) -> None:
    b.add_copy("start", "x", "y")
    b.add_load_constant_nd("zero", "k", np.zeros(1, np.float32), (1,))


def rounds(count: int, x: Array = X) -> Array:
    y = x
    for _ in range(count):
        y = W @ y + x
    return y


def graph_ops(path: Path) -> list[str]:
    return [node.op for node in open_source(path).graph().nodes]


@pytest.mark.parametrize("count", [0, 1, 7, 3000])
def test_a_loop_of_a_known_number_of_rounds(apple: Any, tmp_path: Path, count: int) -> None:
    """Many rounds are one op. Names that its network writes are read after it."""

    def write(b: Any) -> None:
        start(b)
        inner(b.add_loop("loop", max_iterations=count).loop.bodyNetwork, step)

    path = network(tmp_path, write, ("y", "k"))
    assert ("loop" in graph_ops(path)) == (count == 3000)
    got = hx.compile(path)(X)
    np.testing.assert_allclose(got["y"], rounds(count), rtol=1e-5)
    assert got["k"] == count


def test_the_number_of_rounds_may_be_an_input(apple: Any, tmp_path: Path) -> None:
    def write(b: Any) -> None:
        start(b)
        inner(b.add_loop("loop", input_name="n").loop.bodyNetwork, step)

    net = hx.compile(network(tmp_path, write, ("y", "k"), ("n",)))
    for count in (0, 1, 12):
        got = net(x=X, n=np.array([float(count)]))
        np.testing.assert_allclose(got["y"], rounds(count), rtol=1e-5)
        assert got["k"] == count


@pytest.mark.parametrize("most", [0, 3])
@pytest.mark.parametrize("limit", [0.1, 2.0, 5.0])
def test_a_condition_ends_a_loop(apple: Any, tmp_path: Path, limit: float, most: int) -> None:
    """It goes on while the sum of y is below the input, and for `most` rounds if there is such a limit."""

    def goes_on(b: Any) -> None:
        b.add_reduce_sum("total", "y", "s", axes=[0], keepdims=True)
        b.add_less_than("less", ["s", "limit"], "goes_on")

    def write(b: Any) -> None:
        start(b)
        loop = b.add_loop("loop", condition="goes_on", max_iterations=most or None).loop
        inner(loop.conditionNetwork, goes_on)
        inner(loop.bodyNetwork, step)

    x = X / 8
    path = network(tmp_path, write, ("y", "k"), ("limit",))
    assert "loop" in graph_ops(path)
    got = hx.compile(path)(x=x, limit=np.array([limit]))
    y, k = x, 0
    while y.sum() < limit and (not most or k < most):
        y, k = W @ y + x, k + 1
    np.testing.assert_allclose(got["y"], y, rtol=1e-5)
    assert got["k"] == k


@pytest.mark.parametrize("is_cheap", [True, False])
@pytest.mark.parametrize("flag", [0.0, 1e-7, -2.0])
def test_a_branch_is_chosen_by_a_number(apple: Any, tmp_path: Path, flag: float, is_cheap: bool) -> None:
    """The first network runs if the number is not near 0; a name that only one writes keeps its value in the other."""

    def first(b: Any) -> None:
        b.add_elementwise("double", ["x"], "a", "MULTIPLY", alpha=2.0) if is_cheap else dense(b, "x", "a")
        b.add_copy("out", "a", "y")

    def second(b: Any) -> None:
        b.add_elementwise("more", ["y"], "a", "ADD", alpha=1.0)
        b.add_copy("out", "a", "y")
        b.add_copy("also", "x", "z")

    def write(b: Any) -> None:
        b.add_copy("start", "x", "y")
        b.add_elementwise("zeros", ["x"], "z", "MULTIPLY", alpha=0.0)
        branch = b.add_branch("branch", "flag").branch
        inner(branch.ifBranch, first)
        inner(branch.elseBranch, second)

    path = network(tmp_path, write, ("y", "z"), ("flag",))
    assert ("cond" in graph_ops(path)) != is_cheap
    got = hx.compile(path)(x=X, flag=np.array([flag]))
    taken = abs(flag) > 1e-6
    np.testing.assert_allclose(got["y"], (2 * X if is_cheap else W @ X) if taken else X + 1, rtol=1e-5)
    np.testing.assert_allclose(got["z"], 0 * X if taken else X, rtol=1e-6)


def test_a_branch_without_an_else_keeps_the_names(apple: Any, tmp_path: Path) -> None:
    def first(b: Any) -> None:
        dense(b, "x", "a")
        b.add_copy("out", "a", "y")

    def write(b: Any) -> None:
        b.add_copy("start", "x", "y")
        inner(b.add_branch("branch", "flag").branch.ifBranch, first)

    net = hx.compile(network(tmp_path, write, inputs=("flag",)))
    np.testing.assert_allclose(net(x=X, flag=np.array([0.0])), X, rtol=1e-6)
    np.testing.assert_allclose(net(x=X, flag=np.array([1.0])), W @ X, rtol=1e-5)


def test_a_branch_in_a_loop(apple: Any, tmp_path: Path) -> None:
    """y is halved while it is above 1, and doubled from then on, in 9 rounds."""

    def body(b: Any) -> None:
        b.add_reduce_max("top", "y", "m", axes=[0], keepdims=True)
        b.add_greater_than("above", ["m"], "p", alpha=1.0)
        branch = b.add_branch("branch", "p").branch
        for part, factor in ((branch.ifBranch, 0.5), (branch.elseBranch, 3.0)):
            inner(part, lambda c, f=factor: c.add_elementwise("f", ["y"], "a", "MULTIPLY", alpha=f))
        b.add_copy("out", "a", "y")

    def write(b: Any) -> None:
        start(b)
        inner(b.add_loop("loop", input_name="n").loop.bodyNetwork, body)

    y = 40 * X
    for _ in range(9):
        y = y * (0.5 if y.max() > 1 else 3.0)
    got = hx.compile(network(tmp_path, write, inputs=("n",)))(x=40 * X, n=np.array([9.0]))
    np.testing.assert_allclose(got, y, rtol=1e-5)


def when(b: Any, name: str, above: float, write: Write) -> Any:
    """Layers for where the sum of `name` is above a number."""
    b.add_reduce_sum(f"{name} total", name, f"{name}_s", axes=[0], keepdims=True)
    b.add_greater_than(f"{name} above", [f"{name}_s"], f"{name}_p", alpha=above)
    branch = b.add_branch(f"{name} branch", f"{name}_p").branch
    inner(branch.ifBranch, write)
    return branch


@pytest.mark.parametrize("condition", [False, True])
@pytest.mark.parametrize("rounds", [0, 3, 40, 3000])
@pytest.mark.parametrize("scale", [0.1, 1.0, 50.0])
def test_a_break_ends_a_loop(apple: Any, tmp_path: Path, scale: float, rounds: int, condition: bool) -> None:
    """y grows until its sum is above 20. Neither the rest of that round nor the condition, which writes t, runs."""

    def goes_on(b: Any) -> None:
        b.add_elementwise("tick", ["t"], "u", "ADD", alpha=1.0)
        b.add_copy("ticked", "u", "t")
        b.add_less_than("less", ["k"], "goes_on", alpha=25.0)

    def body(b: Any) -> None:
        b.add_elementwise("grow", ["y"], "a", "MULTIPLY", alpha=1.25)
        b.add_copy("grown", "a", "y")
        when(b, "y", 20.0, lambda c: c.add_loop_break("stop"))
        b.add_elementwise("next", ["k"], "c", "ADD", alpha=1.0)
        b.add_copy("count", "c", "k")

    def write(b: Any) -> None:
        start(b)
        b.add_load_constant_nd("no ticks", "t", np.zeros(1, np.float32), (1,))
        loop = b.add_loop("loop", max_iterations=rounds or None, condition="goes_on" if condition else None).loop
        if condition:
            inner(loop.conditionNetwork, goes_on)
        inner(loop.bodyNetwork, body)

    x = scale * X
    got = hx.compile(network(tmp_path, write, ("y", "k", "t")))(x)
    y, k, t, number = x, 0, int(condition), 0
    most = rounds if rounds or not condition else 10**6
    while number < most and (not condition or k < 25):
        y, number = y * 1.25, number + 1
        if y.sum() > 20:
            break
        k, t = k + 1, t + condition
    np.testing.assert_allclose(got["y"], y, rtol=1e-4)
    assert (got["k"], got["t"]) == (k, t)


@pytest.mark.parametrize("count", [5, 100])
def test_a_continue_ends_a_round_and_a_break_in_a_branch_of_it_the_loop(apple: Any, tmp_path: Path, count: int) -> None:
    """Two loops: what the inner one breaks is the inner one."""

    def small(b: Any) -> None:
        b.add_elementwise("halve", ["z"], "h", "MULTIPLY", alpha=0.5)
        b.add_copy("halved", "h", "z")
        branch = when(b, "z", 0.25, lambda c: c.add_loop_continue("again"))
        inner(branch.elseBranch, lambda c: c.add_loop_break("done"))
        b.add_load_constant_nd("never", "k", np.full(1, -1e6, np.float32), (1,))

    def body(b: Any) -> None:
        b.add_elementwise("grow", ["y"], "a", "MULTIPLY", alpha=1.5)
        b.add_copy("grown", "a", "y")
        b.add_copy("first", "y", "z")
        inner(b.add_loop("loop", max_iterations=50).loop.bodyNetwork, small)
        branch = when(b, "y", 60.0, lambda c: None)

        def above(c: Any) -> None:
            c.add_elementwise("shrink", ["y"], "d", "MULTIPLY", alpha=0.125)
            c.add_copy("shrunk", "d", "y")
            when(c, "k", 12.0, lambda d: d.add_loop_break("enough"))
            c.add_loop_continue("again")

        inner(branch.ifBranch, above)
        b.add_add_broadcastable("more", ["k", "z_s"], "c")
        b.add_copy("count", "c", "k")

    def write(b: Any) -> None:
        start(b)
        b.add_load_constant_nd("no sum", "z_s", np.zeros(1, np.float32), (1,))
        inner(b.add_loop("loop", max_iterations=count).loop.bodyNetwork, body)

    got = hx.compile(network(tmp_path, write, ("y", "k")))(X)
    y, k = X, 0.0
    for _ in range(count):
        y = y * 1.5
        z = y
        for _ in range(50):
            z = z * 0.5
            if z.sum() <= 0.25:
                break
        if y.sum() > 60:
            y = y * 0.125
            if k > 12:
                break
            continue
        k += z.sum()
    np.testing.assert_allclose(got["y"], y, rtol=1e-4)
    np.testing.assert_allclose(got["k"], [k], rtol=1e-4)


@pytest.mark.parametrize("name", ["break", "continue"])
def test_a_layer_that_ends_a_round_needs_a_loop(apple: Any, tmp_path: Path, name: str) -> None:
    def write(b: Any) -> None:
        start(b)
        getattr(b, f"add_loop_{name}")("stop")

    with pytest.raises(UnsupportedError, match=r"got it outside of the bodyNetwork of a loop.*: stop"):
        hx.compile(network(tmp_path, write))


@pytest.mark.parametrize("first", [0.5, 3.0, 255.0])
def test_a_program_that_apple_converts_to_layers(apple: Any, tmp_path: Path, first: float) -> None:
    """while_loop and cond of MIL."""
    mb = apple.converters.mil.Builder

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 8))])  # type: ignore[untyped-decorator]
    def program(x: Any) -> Any:
        def goes_on(k: Any, s: Any) -> Any:
            return mb.less(x=mb.reduce_max(x=s, axes=[0, 1], keep_dims=False), y=np.float32(20_000))

        def step(k: Any, s: Any) -> Any:
            return mb.add(x=k, y=np.int32(1)), mb.add(x=mb.linear(x=s, weight=GROWTH), y=x)

        _, s = mb.while_loop(_cond=goes_on, _body=step, loop_vars=(np.int32(0), x))
        flag = mb.greater(x=mb.reduce_max(x=x, axes=[0, 1], keep_dims=False), y=np.float32(1))
        y = mb.cond(
            pred=flag, _true_fn=lambda: mb.linear(x=s, weight=W), _false_fn=lambda: mb.add(x=s, y=np.float32(1))
        )
        return mb.identity(x=y, name="y")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = apple.convert(program, convert_to="neuralnetwork", skip_model_load=True)
        made.save(str(tmp_path / "net.mlmodel"))
    x = np.full((1, 8), first, np.float32)
    s = x
    while s.max() < 20_000:
        s = s @ GROWTH.T + x
    want = s @ W.T if first > 1 else s + 1
    net = hx.compile(tmp_path / "net.mlmodel")
    np.testing.assert_allclose(net(x.astype(net.inputs[0].dtype.numpy)), want, rtol=1e-4)
