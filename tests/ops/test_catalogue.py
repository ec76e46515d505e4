"""Every op of the catalogue: its kernel or expansion against its record, on the record's own cases."""

import ast
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from cases import CASES, IDS, arrays, feeds, graph_of
from compare import assert_close, assert_within_ulps
from engine_planar import block
from hexane import _core
from hexane.build import FUNCTIONS
from hexane.cli.ops_page import page
from hexane.cli.stub import PATH, stub
from hexane.ops import OPS, USER_OPS, Op
from hexane.ops.reference import run_reference
from hexane.passes.legalize.select_kernels import select_kernels
from hexane.program.attrs import fields
from hexane.stages.bufferize.steps import kernel_attrs
from hexane.targets import load_target
from hexane.targets.kernels import kernels

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("op", "i"), CASES, ids=IDS)
def test_an_op_computes_what_its_record_says(op: Op, i: int) -> None:
    inputs = arrays(op, op.cases[i])
    graph = graph_of(op, op.cases[i], inputs)
    want = run_reference(graph, feeds(graph, inputs))
    got = hx.compile(graph, threads=1)._core.run(feeds(graph, inputs))
    for array, port in zip(got, graph.outputs, strict=True):
        assert_close(array, want[port.name])


@pytest.mark.parametrize(("op", "i"), CASES, ids=IDS)
def test_fp16_kernels_round_once(op: Op, i: int) -> None:
    inputs = arrays(op, op.cases[i])
    try:
        graph = graph_of(op, op.cases[i], inputs, ("fp32", "fp16"))
    except hx.Error:
        pytest.skip("the op does not take fp16")
    if not op.kernel:
        pytest.skip("an expansion rounds after each of its ops")
    want = run_reference(graph, feeds(graph, inputs))
    got = hx.compile(graph, threads=1)._core.run(feeds(graph, inputs))
    for array, port in zip(got, graph.outputs, strict=True):
        assert_within_ulps(array, want[port.name], 1)


# Ops that have no kernel, wider dtype or expansion for a dtype.
OF_WINDOWS = {
    "avg_pool", "col2im", "conv", "conv_transpose", "conv_weight_gradient", "lp_pool", "max_pool", "max_pool_gradient",
    "max_pool_with_indices",
}  # fmt: skip
LACKING = {
    "fp64": {*OF_WINDOWS, "local_response_norm", "resize", "resize_bilinear", "upsample_bilinear"},
    "uint64": {"abs", "clip", "cumsum", "neg", "relu", "sign", "square"},
}  # fmt: skip
OTHERS = ["bf16", "fp64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


@pytest.mark.parametrize("dtype", OTHERS)
@pytest.mark.parametrize("op", [op for op in USER_OPS.values() if op.cases], ids=lambda op: op.name)
def test_an_op_runs_in_every_dtype_that_its_record_takes(op: Op, dtype: str) -> None:
    if not op.kernel and dtype != "fp64":
        return  # an expansion rounds after each of its ops
    inputs = arrays(op, op.cases[0])
    first = next((hx.const(a).dtype.name for a in inputs if a is not None), dtype)
    try:
        graph = graph_of(op, op.cases[0], inputs, (first, dtype))
    except hx.Error:
        return  # its record does not take it
    if op.name in LACKING.get(dtype, ()) or (op.name == "max_pool" and "int" in dtype and "8" not in dtype):
        with pytest.raises(hx.Error, match=f"(got|dtype) {dtype}.*, need"):
            hx.compile(graph, threads=1)
        return
    got = hx.compile(graph, threads=1)._core.run(feeds(graph, inputs))
    want = run_reference(graph, feeds(graph, inputs))
    for array, port in zip(got, graph.outputs, strict=True):
        assert_close(array, want[port.name])


@pytest.mark.parametrize(("op", "i"), CASES, ids=IDS)
def test_an_op_prints_and_reads_back(op: Op, i: int) -> None:
    graph = graph_of(op, op.cases[i], arrays(op, op.cases[i]))
    assert str(hx.parse(str(graph), graph.constants())) == str(graph)


@pytest.mark.parametrize("op", USER_OPS.values(), ids=lambda op: op.name)
def test_an_op_has_a_way_to_run(op: Op) -> None:
    assert op.kernel or op.expand, f"{op.name}: the record has neither a kernel nor an `expand`: add one of them"
    assert op.doc.endswith((".", "sum.")), f"{op.name}: `doc` is no sentence: end it with a full stop"
    assert op.cases or op.name in ("write_state", "loop", "cond"), (  # the last two: tests/cpu/test_kernels_control.py
        f"{op.name}: the record has no cases: add some to `cases`. The tests of kernels, expansions and random graphs"
        " run them"
    )


@pytest.mark.parametrize(("op", "i"), [(op, i) for op, i in CASES if op.kernel], ids=lambda x: getattr(x, "name", x))
def test_kernel_attributes_are_the_fields_of_the_struct(op: Op, i: int) -> None:
    rows = [row for row in _core.kernels() if row["name"] == op.kernel]
    assert rows, (
        f"{op.name}: there is no kernel {op.kernel!r}. Add a row to a table in csrc/cpu and build (make"
        " .venv/done/package), or give the record an `expand`"
    )
    if op.kernel == "copy":
        return
    graph = select_kernels(graph_of(op, op.cases[i], arrays(op, op.cases[i])), load_target("host"))
    (node,) = (n for n in graph.nodes if n.op in (op.name, f"cpu.{op.name}"))
    for row in rows:
        assert list(kernel_attrs(node, kernels("ieee"))) == [name for name, _, _ in fields(row["attrs"])]


SIZES = {"i": 8, "f": 8, "s": 8, "L": 72, "E": 136}


@pytest.mark.parametrize("row", _core.kernels(), ids=lambda row: f"{row['name']}-{row['family']}-{row['dtypes']}")
def test_a_kernel_row_is_consistent(row: dict[str, Any]) -> None:
    assert row["attrs_bytes"] == sum(SIZES[kind] * count for _, kind, count in fields(row["attrs"]))
    assert row["accepts"] in ("strided", "rows", "dense")
    assert row["family"] in ("ieee", "engine", "any")


def test_kernels_that_only_move_elements_serve_every_family() -> None:
    moves = {op.kernel for op in USER_OPS.values() if op.kernel and op.moves} | {
        "one_hot",
        "write_slice",
        "loop",
        "cond",
    }
    assert {row["name"] for row in _core.kernels() if row["family"] == "any"} == moves
    assert _core.has_kernel("copy", "engine", ["fp16"], ["fp16"])
    assert not _core.has_kernel("asinh", "engine", ["fp16"], ["fp16"])
    x, y = np.arange(3, dtype="f"), np.zeros(3, "f")
    _core.run_kernel("copy", [x], [y], family="engine", numerics=block())
    assert (x == y).all()


def test_every_kernel_serves_an_op() -> None:
    idle = {row["name"] for row in _core.kernels()} - {op.kernel for op in OPS.values()}
    assert not idle, f"{', '.join(sorted(idle))}: no record names this kernel. Add one to python/hexane/ops/records"


def test_every_kernel_has_an_accuracy_test_of_its_own() -> None:
    named = {
        leaf.value
        for path in (ROOT / "tests" / "cpu").glob("test_*.py")
        for leaf in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(leaf, ast.Constant)
    }
    missing = {row["name"] for row in _core.kernels()} - named
    assert not missing, (
        f"{', '.join(sorted(missing))}: no test in tests/cpu runs this kernel alone. Add a row to UNARY in "
        "test_kernels_elementwise.py, or a test to the file of its family, against NumPy in fp64 or exact integers"
    )


def test_dtypes_are_the_same_in_both_languages() -> None:
    from hexane.dtypes import DTYPES

    assert _core.dtypes() == {d.name: d.bits for d in DTYPES.values()}


def test_the_stub_is_derived_from_the_records() -> None:
    assert PATH.read_text(encoding="utf-8") == stub(), f"{PATH} is out of date: run python -m hexane.cli.stub"


def test_every_op_is_on_the_page_of_ops() -> None:
    assert page().count("\n| `") == len(USER_OPS)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: hx.conv(x, np.ones((2, 9, 3, 3), "f")), "need 3 at axis 1"),
        (lambda x: hx.conv(x, np.ones((2, 3, 9, 9), "f")), "need at least 9"),
        (lambda x: x @ np.ones((3, 3), "f"), "must match"),
        (lambda x: x + np.ones((7,), "f"), "need shapes that broadcast"),
        (lambda x: x + np.ones((8,), "d"), "need one dtype"),
        (lambda x: hx.reshape(x, shape=(7, -1)), "need a multiple of 7"),
        (lambda x: hx.softmax(x, axis=4), "need -4..3"),
        (lambda x: hx.leaky_relu(x, alhpa=1), "unexpected keyword argument 'alhpa'"),
        (lambda x: hx.transpose(x, perm=(0, 0, 1, 2)), "need each axis once"),
        (lambda x: hx.clip(x, alpha=2, beta=1), "need alpha <= beta"),
        (lambda x: hx.relu(hx.input("b", (2,), "bool")), "need a numeric dtype"),
        (lambda x: x[0, 0, 0, 0, 0], "need at most 4"),
        (lambda x: x[9], "need -1..0"),
        (lambda x: hx.einsum(x, equation="nchw,nc->n"), "got 'nchw,nc->n' for 1 inputs"),
        (lambda x: hx.einsum(x, equation="nch->n"), "need a letter for each axis, or ..."),
        (lambda x: hx.einsum(x, np.ones((7, 2), "f"), equation="nchw,wk->nk"), "got the extents 8 and 7 for 'w'"),
        (lambda x: hx.einsum(x, equation="...w->w"), "need an output with distinct letters"),
        (lambda x: hx.lstm(x[0], np.ones((1, 8, 8), "f"), np.ones((1, 9, 2), "f")), "recurrent: got the shape (1, 9, 2), need (1, 8, 2)"),
        (lambda x: hx.gru(x[0], *([np.ones((1, 6, 8), "f"), np.ones((1, 6, 2), "f")]), direction="bidirectional"), "for 1 sets"),
        (lambda x: hx.rnn(x[0], np.ones((1, 2, 8), "f"), np.ones((1, 2, 2), "f"), activations=("tanh", "relu")), "need 1 for each"),
        (lambda x: hx.rnn(x[0], np.ones((1, 2, 8), "f"), np.ones((1, 2, 2), "f"), activations="sin"), "need one of relu"),
        (lambda x: hx.grid_sample(x, np.ones((1, 4, 4, 3), "f")), "need (N, C, D...) and (N, points..., 2)"),
        (lambda x: hx.grid_sample(x, np.ones((1, 4, 4, 2), "f"), mode="bicubic", padding_mode="border"), "differs between"),
        (lambda x: hx.affine_grid(x, size=(1, 3, 4)), "got theta"),
        (lambda x: hx.roi_align(x, np.ones((2, 4), "f"), np.zeros(2, "i"), sampling_ratio=-1), "got sampling_ratio -1"),
        (lambda x: hx.deform_conv(x, np.ones((2, 3, 3, 3), "f"), np.ones((1, 18, 8, 8), "f")), "need (1, 18, 6, 6)"),
        (lambda x: hx.dft(x), "need a last axis of 1 or 2"),
        (lambda x: hx.stft(x[0], frame_step=2), "need (batch, length, 1 or 2)"),
        (lambda x: hx.group_norm(x, num_groups=2), "need a divisor of the channels"),
        (lambda x: hx.det(x[:, :2]), "need square matrices of 1 to 4 rows"),
        (lambda x: hx.trilu(x[0, 0, 0]), "need at least 2 axes"),
        (lambda x: hx.col2im(x[0], image_shape=(4, 4), kernel_sizes=2), "need (N, C * 4, 9)"),
        (lambda x: hx.max_unpool(x, np.zeros((1, 3, 8, 7), "l"), kernel_sizes=2), "need equal shapes"),
        (lambda x: hx.sliding_windows(x, axis=-1, size=9), "need windows within it"),
        (lambda x: hx.resize(x, sizes=(4,)), "need a positive size for each axis"),
        (lambda x: hx.resize(x, sizes=(4, 4), mode="area"), "need one of nearest, linear, cubic"),
        (lambda x: hx.upsample_bilinear(x, half_pixel_centers=True), "need one of them or neither"),
        (lambda x: hx.slice_by_size(x, begin=(0, 0, 0, 0), size=(1, 4, 8, 8)), "need a part of it"),
        (lambda x: hx.crop(x, crop_height=(5, 5), crop_width=(0, 0)), "need no more than there is"),
        (lambda x: hx.reverse_sequence(x, np.array([1, 2])), "need two axes and a length for each item"),
        (lambda x: hx.input("y", (-1, 2)), "not negative"),
        (lambda x: hx.input("y", (2**40, 2**40)), "1099511627776 bytes"),
        (lambda x: hx.broadcast_to(x, shape=(2**30, 3, 8, 8)), None),
        (lambda x: hx.input("y", (1,) * 9), "rank 9"),
        (lambda x: bool(x), "True or False"),
        (lambda x: np.asarray(x), "where NumPy needs an array"),
        (lambda x: x + np.ones((8,), "d"), "hx.cast a tensor, .astype an array"),
        (lambda x: x + None, "got None, need numbers"),
        (lambda x: x + object(), "got object, need numbers"),
        (lambda x: hx.const([[1], [1, 2]]), "several lengths"),
        (lambda x: hx.const([1.5], dtype="int32"), "values that int32 does not hold"),
        (lambda x: hx.cast(x, dtype="fp16") * 1e9, "values that fp16 does not hold"),
        (lambda x: hx.cast(x, dtype="int32") * float("nan"), "got nan with a tensor of int32"),
        (lambda x: hx.leaky_relu(x, alpha="0.5"), "got '0.5', need a number"),
        (lambda x: x[x], "got <Tensor"),
        (lambda x: x[np.arange(2)], "for arrays use gather"),
        (lambda x: x[0.5:], "between the colons"),
        (lambda x: x[::0], "a step that is not 0"),
        (lambda x: x[..., ...], "got ... twice"),
        (lambda x: hx.input("y", 4), "got 4, need a sequence"),
        (lambda x: hx.input(3, (1,)), "name: got 3, need a string"),
        (lambda x: hx.graph({3: x}), "port name 3, need a string"),
    ],
)  # fmt: skip
def test_a_bad_call_says_what_it_got_and_needs(call, message) -> None:  # type: ignore[no-untyped-def]
    x = hx.input("x", (1, 3, 8, 8))
    if message is None:
        call(x)
        return
    with pytest.raises(hx.Error, match=re.escape(message)):
        call(x)


def test_infinity_and_nan_are_constants_of_every_float_dtype() -> None:
    x = hx.cast(hx.input("x", (3,)), dtype="fp16")
    assert np.isinf(hx.compile(x * 0 + float("inf"))(np.ones(3, "f"))).all()
    assert np.isnan(hx.compile(x + float("nan"))(np.ones(3, "f"))).all()


@pytest.mark.parametrize("op", ["const", "index", "tensor"])
def test_an_error_outside_the_ops_names_the_users_line_too(op: str) -> None:
    x = hx.input("x", (1, 3))
    with pytest.raises(hx.Error, match=rf"\[{op} at test_catalogue\.py:\d+\]"):
        {"const": lambda: hx.const(None), "index": lambda: x["a"], "tensor": lambda: bool(x)}[op]()


def test_an_error_names_the_op_and_the_users_line() -> None:
    x = hx.input("x", (1, 3))
    with pytest.raises(hx.Error, match=r"\[add at test_catalogue\.py:\d+\]"):
        x + np.ones((7,), "f")


DTYPE_WORDS = ("bool", "bf16", "fp16", "fp64", "fp8e4m3", "int4", "uint32", "int64")


@pytest.mark.parametrize(("op", "i"), CASES, ids=IDS)
def test_attributes_of_another_kind_are_refused_by_name(op: Op, i: int) -> None:
    """Any dtype, and numbers that are none: an Error, no exception of NumPy's."""
    case = op.cases[i]
    inputs = [None if a is None else hx.input(f"x{j}", np.shape(a), a.dtype) for j, a in enumerate(arrays(op, case))]
    given = dict(case.attrs or {})
    for name, attr in (op.attrs or {}).items():
        others: tuple[Any, ...] = DTYPE_WORDS if attr.kind == "dtype" else ()
        if attr.kind == "float":
            others = (float("nan"), float("inf"), -1e300)
        for other in others:
            with suppress(hx.Error):
                FUNCTIONS[op.name](*inputs, **{**given, name: other})
