"""Values that arithmetic treats apart: infinities, NaN, huge and tiny numbers, bools of bytes above 1."""

import numpy as np
import pytest
from onnx import TensorProto

import hexane as hx
from hexane.importers.onnx import import_onnx
from hexane.ops.reference import run_reference
from onnx_models import model, node
from pass_cases import FIRES
from pass_cases.graphs import restart

AGREED = {"fuse_attention_without_hidden_rows"}  # by its docstring, rows that are chosen away read no values
NAMES = [name for name in FIRES if name.startswith(("simplify", "fuse", "group")) and name not in AGREED]
SPECIAL = [np.inf, -np.inf, np.nan, 1e18, -1e18, 1e-42, -0.0]


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_fused_is_infinite_or_nan_where_the_model_is(name: str, special: float) -> None:
    restart()
    graph = hx.graph(FIRES[name][1]())
    rng = np.random.default_rng(3)
    feeds = {}
    for value in graph.inputs:
        array = rng.uniform(-2, 2, value.shape).astype(value.dtype.numpy)
        if value.dtype.kind == "float":
            with np.errstate(over="ignore"):
                array[rng.uniform(size=value.shape) < 0.2] = special
        feeds[str(value.node.attrs["name"])] = array
    with np.errstate(all="ignore"):
        want = run_reference(graph, feeds)
    got = hx.compile(graph)(feeds)
    for key, array in want.items():
        result = got if isinstance(got, np.ndarray) else got[key]
        if array.dtype.kind == "f":
            np.testing.assert_array_equal(np.isnan(result), np.isnan(array), key)
            np.testing.assert_array_equal(np.isinf(result), np.isinf(array), key)
            finite = np.isfinite(array)
            scale = np.abs(array[finite]).max(initial=1e-3)
            np.testing.assert_allclose(result[finite], array[finite], rtol=1e-3, atol=1e-5 * scale)
        else:
            np.testing.assert_array_equal(result, array)


@pytest.mark.parametrize("score", [np.nan, np.inf, 3e38])
@pytest.mark.parametrize(
    ("dtype", "hides"), [("fp32", -1e30), ("fp32", -1e9), ("fp32", -np.inf), ("fp16", -65504), ("fp16", -1e4)]
)
def test_a_score_that_a_number_hides_does_nothing_whatever_it_is(dtype: str, hides: float, score: float) -> None:
    """In the row where every score is hidden, all weigh the same, unless -inf hides them."""
    kind = np.float32 if dtype == "fp32" else np.float16
    rng = np.random.default_rng(4)
    query, key, value = (rng.uniform(-1, 1, (2, rows, 8)).astype(kind) for rows in (5, 7, 7))
    with np.errstate(over="ignore"):
        key[:, 2:4] = kind(score)
    keep = rng.uniform(size=(5, 7)) < 0.7
    keep[:, 2:4] = keep[1] = False
    names = {"q": query, "k": key, "v": value, "mask": keep}
    q, k, v, mask = (hx.input(name, a.shape, a.dtype) for name, a in names.items())
    scores = hx.select(mask, hx.matmul(q, k, transpose_y=True), kind(hides))
    net = hx.compile(hx.softmax(scores, axis=-1) @ v)
    assert any(step["kernel"] == "scaled_dot_product_attention" for step in net.steps)
    wide = [a.astype(np.float64) for a in (query, np.where(keep.any(0)[:, None], key, 0), value)]
    exact = np.where(keep, wide[0] @ wide[1].swapaxes(1, 2), hides)
    with np.errstate(invalid="ignore"):
        weights = np.exp(exact - exact.max(-1, keepdims=True))
        want = weights / weights.sum(-1, keepdims=True) @ wide[2]
    assert np.isnan(want).any() == np.isinf(hides)
    np.testing.assert_allclose(net(names), want, rtol=0, atol=1e-5 if dtype == "fp32" else 2e-3)


@pytest.mark.parametrize("constant", [False, True])
def test_every_byte_of_a_bool_but_0_is_true(constant: bool) -> None:
    x, ones = np.array([2, 255, 0, 1, 128], np.uint8).view(np.bool_), np.array([True, True, False, True, False])
    truth = [True, True, False, True, True]
    to = {"f": TensorProto.FLOAT, "h": TensorProto.FLOAT16, "d": TensorProto.DOUBLE, "i": TensorProto.INT32,
          "b": TensorProto.UINT8}  # fmt: skip
    nodes = [
        *(node("Cast", "x", name, to=kind) for name, kind in to.items()),
        node("Equal", "x y", "equal"), node("Xor", "x y", "xor"), node("And", "x x", "and"), node("Or", "x y", "or"),
        node("Not", "x", "not"), node("Where", "x one zero", "where"), node("NonZero", "x", "places"),
        node("ReduceMax", "x", "most", keepdims=0), node("Concat", "x y", "both", axis=0), node("Cast", "both", "all", to=6),
    ]  # fmt: skip
    constants = {"y": ones, "one": np.float32(1), "zero": np.float32(0)}
    outputs = [*to, "equal", "xor", "and", "or", "not", "where", "places", "most", "all"]
    feeds = {} if constant else {"x": x}
    proto = model(nodes, feeds, outputs, {**constants, **({"x": x} if constant else {})}, opset=20)
    graph = import_onnx(proto)
    got = hx.compile(graph)(feeds)
    for found in (got, run_reference(graph, feeds)):
        for name in (*to, "where"):
            np.testing.assert_array_equal(found[name], truth)
        for name, wanted in {"equal": [1, 1, 1, 1, 0], "xor": [0, 0, 0, 0, 1], "and": truth, "or": truth,
                             "not": np.logical_not(truth), "most": 1, "all": [*truth, *ones]}.items():  # fmt: skip
            np.testing.assert_array_equal(
                found[name].view(np.uint8) if found[name].dtype == bool else found[name], wanted
            )
    np.testing.assert_array_equal(got["places"], [np.flatnonzero(truth)])
