"""What records say of their ops for passes to read, held to what the ops do."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hexane as hx
from cases import CASES, arrays, feeds, graph_of
from hexane.build import FUNCTIONS, Tensor
from hexane.errors import Error
from hexane.graph import Array, Value
from hexane.ops import USER_OPS, Op, length_rules, valid_lengths
from hexane.ops.length_rules import Length
from hexane.ops.predicates import channel_axis
from hexane.ops.reference import run_reference
from hexane.ops.spec import moved_inputs
from hexane.ops.valid_lengths import length_of
from hexane.passes.legalize.expand import expand
from hexane.targets import load_target
from hexane.validate import is_constant


def those(trait: Callable[[Op], Any]) -> Any:
    found = [(op, i) for op, i in CASES if trait(op)]
    return pytest.mark.parametrize(("op", "i"), found, ids=[f"{op.name}-{i}" for op, i in found])


def both_ways(op: Op, i: int, inputs: list[Array | None]) -> list[list[Array]]:
    """The outputs by the record and by the kernels."""
    graph = graph_of(op, op.cases[i], inputs)
    by_record = run_reference(graph, feeds(graph, inputs))
    by_kernel = hx.compile(graph, threads=1)._core.run(feeds(graph, inputs))
    return [[by_record[p.name] for p in graph.outputs], by_kernel]


def same(x: Array, y: Array) -> Array:
    return (x == y) | ((x != x) & (y != y))


# ---- elementwise ----


def another(value: Any) -> Any:
    return not value if isinstance(value, np.bool_) else value + type(value)(1)


@those(lambda op: op.elementwise)
def test_an_elementwise_result_depends_on_one_element_of_each_input(op: Op, i: int) -> None:
    inputs = arrays(op, op.cases[i])
    before = both_ways(op, i, inputs)
    rng = np.random.default_rng(0)
    for k, array in enumerate(inputs):
        assert array is not None
        if not array.size:
            continue
        at = tuple(int(rng.integers(d)) for d in array.shape)
        changed = np.array(array)
        changed[at] = another(array[at])
        touched = np.zeros(array.shape, np.bool_)
        touched[at] = True
        after = both_ways(op, i, [changed if j == k else x for j, x in enumerate(inputs)])
        for (old,), (new,) in zip(before, after, strict=True):
            reached = np.broadcast_to(touched, old.shape)
            assert same(old, new)[~reached].all()


@those(lambda op: op.elementwise)
def test_an_elementwise_result_has_the_shape_of_its_inputs_broadcast(op: Op, i: int) -> None:
    inputs = arrays(op, op.cases[i])
    want = np.broadcast_shapes(*(x.shape for x in inputs if x is not None))
    (output,) = graph_of(op, op.cases[i], inputs).outputs
    assert output.value.shape == want


@those(lambda op: op.commutative)
def test_the_inputs_of_a_commutative_op_may_change_places(op: Op, i: int) -> None:
    inputs = arrays(op, op.cases[i])
    for (one,), (other,) in zip(both_ways(op, i, inputs), both_ways(op, i, inputs[::-1]), strict=True):
        assert np.array_equal(one, other)


# ---- written as other ops ----


@those(lambda op: op.expand)
def test_what_is_written_of_operands_that_are_not_known_yet_is_not_known_yet(op: Op, i: int) -> None:
    """Whether ops behind it are folded, and so what a chip does with them, does not depend on how this one is
    written."""
    graph = expand(graph_of(op, op.cases[i], arrays(op, op.cases[i])), load_target("host"))
    assert not graph.inputs or not any(is_constant(port.value.node) for port in graph.outputs)


# ---- moving bits ----


def patterns(like: Array, start: int) -> Array:
    """Distinct bits: of floats all kinds of NaN, signalling ones too, which arithmetic would change."""
    numbers = np.arange(start + 1, start + 1 + like.size, dtype=np.uint64)
    if like.dtype.kind == "f":
        numbers |= {2: 0x7C00, 4: 0x7F800000, 8: 0x7FF0000000000000}[like.itemsize]
    return numbers.astype(f"u{like.itemsize}").view(like.dtype).reshape(like.shape)


def bits(x: Array) -> Array:
    return np.asarray(x).view(f"u{x.itemsize}").reshape(-1)


@those(lambda op: op.moves)
def test_an_op_that_moves_elements_keeps_odd_bits(op: Op, i: int) -> None:
    inputs = arrays(op, op.cases[i])
    moved = moved_inputs(op, len(inputs))
    assert moved
    first, second, place = list(inputs), list(inputs), 0
    for k in moved:
        x = inputs[k]
        assert x is not None
        first[k], second[k] = patterns(x, place), patterns(x, place + 128)
        place += x.size
    given = [np.concatenate([bits(x[k]) for k in moved]) for x in (first, second)]
    assert len(np.unique(given[0])) == min(place, 2 ** (8 * first[moved[0]].itemsize))  # type: ignore[union-attr]
    becomes = dict(zip(given[0].tolist(), given[1].tolist(), strict=True))
    for outputs, others in zip(both_ways(op, i, first), both_ways(op, i, second), strict=True):
        for output, other in zip(outputs, others, strict=True):
            for a, b in zip(bits(output).tolist(), bits(other).tolist(), strict=True):
                # Elements go to the same places whatever they are; what an op fills in is the same as well.
                assert becomes.get(a) == b or (op.fills and a == b and a not in becomes)


@those(lambda op: op.picks)
def test_an_op_that_picks_chooses_by_order(op: Op, i: int) -> None:
    (x,) = arrays(op, op.cases[i])
    assert x is not None
    for (before,), (after,) in zip(both_ways(op, i, [x]), both_ways(op, i, [np.exp(x) + 3]), strict=True):
        assert np.isin(before, x).all()
        assert np.array_equal(np.exp(before) + 3, after)


# ---- products ----


def small(op: Op, i: int) -> tuple[Array, Array, dict[str, Any]]:
    """A case's x and weight as small integers, and its attributes without rounding."""
    case = op.cases[i]
    rng = np.random.default_rng(0)
    x, weight = (rng.integers(0, 4, a.shape).astype(a.dtype) for a in arrays(op, case)[:2] if a is not None)
    attrs = {k: v for k, v in (case.attrs or {}).items() if not k.startswith("output_")}
    return x, weight, {**attrs, "dtype": "int32"} if "dtype" in (op.attrs or {}) else attrs


def computed(y: Tensor) -> Array:
    return next(iter(run_reference(hx.graph(y), {}).values()))


@those(lambda op: op.product)
def test_a_product_is_scaled_by_scaling_its_weight(op: Op, i: int) -> None:
    x, weight, attrs = small(op, i)
    y = FUNCTIONS[op.name](hx.const(x), hx.const(weight), **attrs)
    axis = channel_axis(y.value.node)
    along = [-1 if a == axis else 1 for a in range(len(y.shape))]
    scale = np.arange(1, y.shape[axis] + 1)
    assert op.product is not None
    scaled = (weight * op.product(scale, weight.shape, **y.value.node.attrs)).astype(weight.dtype)
    want, got = computed(y), computed(FUNCTIONS[op.name](hx.const(x), hx.const(scaled), **attrs))
    assert np.array_equal(got, want * scale.reshape(along))
    assert np.array_equal(computed(FUNCTIONS[op.name](hx.const(2 * x), hx.const(weight), **attrs)), 2 * want)


@those(lambda op: op.product)
def test_the_bias_of_a_product_is_added_to_each_channel(op: Op, i: int) -> None:
    x, weight, attrs = small(op, i)
    y = FUNCTIONS[op.name](hx.const(x), hx.const(weight), **attrs)
    axis = channel_axis(y.value.node)
    bias = np.arange(y.shape[axis]).astype(y.dtype.numpy)
    along = [-1 if a == axis else 1 for a in range(len(y.shape))]
    got = computed(FUNCTIONS[op.name](hx.const(x), hx.const(weight), bias=hx.const(bias), **attrs))
    assert np.array_equal(got, computed(y) + bias.reshape(along))


@those(lambda op: op.padding is not None)
def test_an_op_pads_with_what_its_record_says(op: Op, i: int) -> None:
    x, *rest = arrays(op, op.cases[i])
    assert x is not None
    attrs = {**(op.cases[i].attrs or {}), "ceil_mode": False, "exclude_padding": False}
    attrs = {k: v for k, v in attrs.items() if k in (op.attrs or {})} | {"pad": 1}
    own = FUNCTIONS[op.name](x, *rest, **attrs)
    sides = [(0, 0), (0, 0), *[(1, 1)] * (x.ndim - 2)]
    whole = np.pad(x, sides, constant_values=op.padding)
    assert np.array_equal(computed(own), computed(FUNCTIONS[op.name](whole, *rest, **{**attrs, "pad": 0})))


# ---- values ----

SPECIAL = np.array([-np.inf, -1e30, -1.0, -1e-40, -0.0, 0.0, 1e-40, 0.5, 7.0, 1e30, np.inf, np.nan], np.float32)


@those(lambda op: op.not_negative)
def test_an_op_that_is_never_negative_is_not(op: Op, i: int) -> None:
    y = FUNCTIONS[op.name](hx.input("x", SPECIAL.shape), **dict(op.cases[i].attrs or {}))
    assert not (hx.compile(y)(SPECIAL) < 0).any()
    assert not (run_reference(hx.graph(y), {"x": SPECIAL})[op.name] < 0).any()


@pytest.mark.parametrize(("op", "name"), [(op, name) for op in USER_OPS.values() for name in op.results])
def test_an_attribute_that_results_have_is_among_them(op: Op, name: str) -> None:
    (x,) = arrays(op, op.cases[0])
    assert x is not None
    attrs = {k: v for k, v in (op.cases[0].attrs or {}).items() if k not in op.results}
    y = hx.compile(FUNCTIONS[op.name](hx.input("x", x.shape), **{**attrs, name: 0.337}))(100 * x)
    assert np.float32(0.337) in y


# ---- valid lengths ----


def variants(inputs: list[Array | None]) -> list[dict[int, int]]:
    """Which inputs get a length, each with its axis: one of them, or all of one rank together."""
    ranks = {i: x.ndim for i, x in enumerate(inputs) if x is not None}
    found = [{i: axis} for i, rank in ranks.items() for axis in range(rank)]
    top = max(ranks.values())
    return found + [dict.fromkeys((i for i, rank in ranks.items() if rank == top), axis) for axis in range(top)]


def garbage(x: Array, axis: int, valid: int, value: Any) -> Array:
    """x with something else where it is not valid."""
    y = x.copy()
    y[(*[slice(None)] * axis, slice(valid, None))] = True if x.dtype == np.bool_ else value
    return y


def passed(op: Op, inputs: list[Array | None], attrs: dict[str, Any], axes: dict[int, int]) -> int:
    """How many lengths were tried; 0 where the rule refuses."""
    extents = {inputs[i].shape[axis] for i, axis in axes.items()}  # type: ignore[union-attr]
    if len(extents) != 1 or 0 in extents:
        return 0
    length = hx.input("n", (), "int64")
    tensors: list[Value | None] = []
    for i, x in enumerate(inputs):
        value = None if x is None else hx.input(f"x{i}", x.shape, hx.const(x).dtype).value
        if i in axes and value is not None:
            length_rules.carried[value.node] = (Length(axes[i], length.value),)
        tensors.append(value)
    try:
        values = valid_lengths.apply(op, tensors, attrs)
    except Error:
        return 0
    lengths = [length_of(v) for v in values]
    graph = hx.graph([*map(Tensor, values), *(Tensor(found.value) for found in lengths if found)])
    for valid in range(extents.pop() + 1):
        results = []
        for floats, integers in ((7.5, 1), (np.nan, 99)):
            given = {"n": np.array(valid)}
            for i, x in enumerate(inputs):
                if x is not None:
                    value = floats if x.dtype.kind == "f" else integers
                    given[f"x{i}"] = garbage(x, axes[i], valid, value) if i in axes else x
            used = {k: v for k, v in given.items() if k in graph.input_names()}
            results.append(list(run_reference(graph, used).values()))
        counts = iter(results[0][len(values) :])
        for found, first, second in zip(lengths, *(r[: len(values)] for r in results), strict=True):
            keep = () if found is None else (*[slice(None)] * found.axis, slice(int(next(counts))))
            assert same(first[keep], second[keep]).all()
    return valid


RULED = [op for op in USER_OPS.values() if op.lengths or op.elementwise]


@pytest.mark.parametrize("op", RULED, ids=lambda op: op.name)
def test_what_is_not_valid_has_no_influence_on_what_is(op: Op) -> None:
    tried = 0
    for case in op.cases:
        inputs = arrays(op, case)
        for axes in variants(inputs):
            tried += passed(op, inputs, dict(case.attrs or {}), axes)
    assert tried
