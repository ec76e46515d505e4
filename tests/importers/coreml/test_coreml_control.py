"""while_loop and cond of Core ML whose course the data decide: packages by Apple's converter, against NumPy."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.errors import Error

W = np.random.default_rng(4).uniform(0, 0.25, (8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def apple() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("coremltools", reason="coremltools is not installed")


def package(apple: Any, folder: Path, program: Any) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = apple.convert(
            program, convert_to="mlprogram", minimum_deployment_target=apple.target.iOS18, skip_model_load=True,
            compute_precision=apple.precision.FLOAT32,
        )  # fmt: skip
        made.save(str(folder / "net.mlpackage"))
    return folder / "net.mlpackage"


def graph(path: Path) -> Any:
    (made,) = hx.module(path).functions.values()
    return made.graph()


@pytest.mark.parametrize("first", [0.5, 3.0, 255.0, 30_000.0])
def test_a_loop_ends_where_the_data_say(apple: Any, tmp_path: Path, first: float) -> None:
    """The condition is of the values that are carried; `extra` is of the graph around it."""
    mb = apple.converters.mil.Builder

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 8))])  # type: ignore[untyped-decorator]
    def program(x: Any) -> Any:
        extra = mb.mul(x=x, y=np.float32(0.1))

        def going(k: Any, s: Any) -> Any:
            largest = mb.reduce_max(x=s, axes=[0, 1], keep_dims=False)
            return mb.logical_and(x=mb.less(x=largest, y=np.float32(20_000)), y=mb.less(x=k, y=np.int32(40)))

        def step(k: Any, s: Any) -> Any:
            return mb.add(x=k, y=np.int32(1)), mb.add(x=mb.linear(x=s, weight=W), y=extra)

        k, s = mb.while_loop(_cond=going, _body=step, loop_vars=(np.int32(0), x))
        return mb.identity(x=s, name="s"), mb.identity(x=mb.cast(x=k, dtype="fp32"), name="k")

    path = package(apple, tmp_path, program)
    x = np.full((1, 8), first, np.float32)
    s, k = x, 0
    while s.max() < 20_000 and k < 40:
        s, k = s @ W.T + np.float32(0.1) * x, k + 1
    net = hx.compile(path)
    assert isinstance(net, hx.Model)
    got = net(x)
    np.testing.assert_allclose(got["s"], s, rtol=1e-5)
    assert got["k"] == k
    net.save(tmp_path / "net.hxp")
    np.testing.assert_array_equal(hx.load(tmp_path / "net.hxp")(x)["s"], got["s"])


def test_a_loop_in_a_branch_in_a_loop(apple: Any, tmp_path: Path) -> None:
    mb = apple.converters.mil.Builder

    @mb.program(input_specs=[mb.TensorSpec(shape=(4,))])  # type: ignore[untyped-decorator]
    def program(x: Any) -> Any:
        def small(s: Any) -> Any:
            return mb.less(x=mb.reduce_sum(x=s, axes=[0], keep_dims=False), y=np.float32(1000))

        def halves(s: Any) -> Any:
            return mb.greater(x=mb.reduce_sum(x=s, axes=[0], keep_dims=False), y=np.float32(400))

        def halve(s: Any) -> Any:
            return mb.sub(x=mb.mul(x=s, y=np.float32(0.5)), y=np.float32(1))

        def step(s: Any) -> Any:
            large = mb.greater(x=mb.reduce_max(x=s, axes=[0], keep_dims=False), y=np.float32(200))

            def shrunk() -> Any:
                (made,) = mb.while_loop(_cond=halves, _body=halve, loop_vars=(s,)) if False else (s,)
                first = mb.while_loop(_cond=halves, _body=halve, loop_vars=(s,))
                kept = first[0] if isinstance(first, (list, tuple)) else first
                return mb.mul(x=mb.add(x=kept, y=made), y=np.float32(1.5))

            return mb.cond(pred=large, _true_fn=shrunk, _false_fn=lambda: mb.add(x=mb.mul(x=s, y=np.float32(2)), y=x))

        found = mb.while_loop(_cond=small, _body=step, loop_vars=(x,))
        return mb.identity(x=found[0] if isinstance(found, (list, tuple)) else found, name="y")

    path = package(apple, tmp_path, program)
    for start in ([1, 2, 3, 4], [500, 500, 500, 500], [199, 0, -3, 9]):
        x = s = np.array(start, np.float32)
        while s.sum() < 1000:
            if s.max() > 200:
                kept = s
                while kept.sum() > 400:
                    kept = kept * np.float32(0.5) - 1
                s = (kept + s) * np.float32(1.5)
            else:
                s = s * 2 + x
        np.testing.assert_allclose(hx.compile(path)(x), s, rtol=1e-5)


@pytest.mark.parametrize("above", [True, False])
def test_only_the_chosen_branch_is_computed(apple: Any, tmp_path: Path, above: bool) -> None:
    """The other one would read an index out of range."""
    mb, types = apple.converters.mil.Builder, apple.converters.mil.mil.types

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 8)), mb.TensorSpec(shape=(1,), dtype=types.int32)])  # type: ignore[untyped-decorator]
    def program(x: Any, i: Any) -> Any:
        large = mb.greater(x=mb.reduce_sum(x=x, axes=[0, 1], keep_dims=False), y=np.float32(1000))
        return mb.cond(
            pred=large,
            _true_fn=lambda: mb.linear(x=x, weight=W),
            _false_fn=lambda: mb.gather(x=100 * W, indices=i, axis=0),
            name="y",
        )

    net = hx.compile(package(apple, tmp_path, program))
    x = np.full((1, 8), 255 if above else 3, np.float32)
    got = np.asarray(net(x=x, i=np.array([10**6 if above else 5], np.int32)))
    np.testing.assert_allclose(got[0], W @ x[0] if above else 100 * W[5], rtol=1e-5)


def test_a_loop_whose_shapes_grow_asks_for_what_decides_them(apple: Any, tmp_path: Path) -> None:
    mb, types = apple.converters.mil.Builder, apple.converters.mil.mil.types

    @mb.program(input_specs=[mb.TensorSpec(shape=(2,)), mb.TensorSpec(shape=(1,), dtype=types.int32)])  # type: ignore[untyped-decorator]
    def program(x: Any, n: Any) -> Any:
        rows = mb.make_list(init_length=1, dynamic_length=True, elem_shape=(2,))

        def going(k: Any, _: Any) -> Any:
            return mb.less(x=k, y=mb.squeeze(x=n))

        def step(k: Any, rows: Any) -> Any:
            return mb.add(x=k, y=np.int32(1)), mb.list_write(ls=rows, index=k, value=x)

        _, rows = mb.while_loop(_cond=going, _body=step, loop_vars=(np.int32(0), rows))
        return mb.list_gather(ls=rows, indices=np.array([0, 1], np.int32), name="y")

    path = package(apple, tmp_path, program)
    net = hx.compile(path)
    got = net(x=np.array([7, 8], np.float32), n=np.array([3], np.int32))
    np.testing.assert_array_equal(got, [[7, 8], [7, 8]])


def test_a_state_that_a_loop_writes_is_refused(apple: Any, tmp_path: Path) -> None:
    mb, types = apple.converters.mil.Builder, apple.converters.mil.mil.types

    @mb.program(
        input_specs=[mb.TensorSpec(shape=(3,), dtype=types.fp16), mb.StateTensorSpec(shape=(3,), dtype=types.fp16)],
        opset_version=apple.target.iOS18,
    )  # type: ignore[untyped-decorator]
    def program(x: Any, total: Any) -> Any:
        def going(s: Any) -> Any:
            return mb.less(x=mb.reduce_sum(x=s, axes=[0], keep_dims=False), y=np.float16(100))

        def step(s: Any) -> Any:
            made = mb.add(x=s, y=mb.read_state(input=total))
            return mb.coreml_update_state(state=total, value=mb.add(x=made, y=np.float16(1)))

        found = mb.while_loop(_cond=going, _body=step, loop_vars=(x,))
        return mb.identity(x=found[0] if isinstance(found, (list, tuple)) else found, name="y")

    with pytest.raises(Error, match="state"):
        hx.compile(package(apple, tmp_path, program))(np.ones(3, np.float16))
