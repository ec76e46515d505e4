"""MatMulNBits of onnxruntime: the same numbers, and weights that stay in few bits."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import hexane as hx
from hexane.errors import Error

ROWS, COLUMNS = 3, 40


def model(bits: int, terms: int, block: int, zeros: str = "", bias: bool = False, **changed: Any) -> onnx.ModelProto:
    rng = np.random.default_rng(bits + terms)
    count = -(-terms // block)
    held = {
        "w": rng.integers(0, 256, (COLUMNS, count, block * bits // 8), np.uint8),
        "s": (rng.standard_normal(COLUMNS * count) * 0.1).astype(np.float32),
    }
    names = ["x", "w", "s"]
    if zeros:
        width = -(-count * bits // 8)
        held["z"] = rng.integers(0, 256, COLUMNS * width, np.uint8)
        if zeros == "floats":
            held["z"] = rng.integers(0, 1 << bits, (COLUMNS, count)).astype(np.float32)
    if bias:
        held["b"] = rng.standard_normal(COLUMNS).astype(np.float32)
    names += ["z" if zeros else "", "", "b" if bias else ""]
    while not names[-1]:
        names.pop()
    held |= {name: array for name, array in changed.items() if name in held}
    attrs = {"K": terms, "N": COLUMNS, "bits": bits, "block_size": block} | {
        name: value for name, value in changed.items() if name not in held
    }
    node = helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", **attrs)
    graph = helper.make_graph(
        [node], "few", [helper.make_tensor_value_info("x", 1, [ROWS, terms])],
        [helper.make_tensor_value_info("y", 1, [ROWS, COLUMNS])],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("zeros", ["", "packed", "floats"])
@pytest.mark.parametrize(("bits", "terms", "block"), [(4, 128, 32), (4, 160, 16), (4, 100, 32), (8, 128, 32)])
def test_the_numbers_are_those_of_onnxruntime(bits: int, terms: int, block: int, zeros: str, bias: bool) -> None:
    proto = model(bits, terms, block, zeros, bias)
    x = np.random.default_rng(1).standard_normal((ROWS, terms)).astype(np.float32)
    if (bits, zeros) == (8, "floats"):
        pytest.skip("onnxruntime has no product with 8 bits and zero points in floats")
    want = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})[0]
    net = hx.compile(proto, threads=1)
    assert isinstance(net, hx.Model)
    np.testing.assert_allclose(net(x), want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    whole = terms % block == 0 and (bits == 4 or not zeros)
    assert ([step["kernel"] for step in net.steps] == ["encoded_matmul"]) == whole


def test_blocks_may_be_named_by_term() -> None:
    proto = model(4, 64, 16)
    order = np.random.default_rng(0).permutation(np.arange(64) // 16).astype(np.int32)
    proto.graph.initializer.append(numpy_helper.from_array(order, "g"))
    proto.graph.node[0].input.extend(["", "g"])
    net = hx.compile(proto)
    codes, scales = (numpy_helper.to_array(t) for t in proto.graph.initializer[:2])
    codes = np.stack([codes & 15, codes >> 4], -1).reshape(COLUMNS, 64)
    weight = (codes - 8.0) * scales.reshape(COLUMNS, 4)[:, order]
    x = np.random.default_rng(1).standard_normal((ROWS, 64)).astype(np.float32)
    np.testing.assert_allclose(net(x), x @ weight.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"bits": 3}, "bits 3"),
        ({"K": 0}, "K 0"),
        ({"N": 41}, "weight: got uint8"),
        ({"s": np.ones(7, np.float32)}, r"scales: got float32\[7\], need 40 x 4"),
        ({"weight_prepacked": 1}, "weight_prepacked"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_what_is_wrong_is_said(changed: dict[str, Any], told: str) -> None:
    changed = dict(changed)
    with pytest.raises(Error, match=told):
        hx.compile(model(changed.pop("bits", 4), 128, 32, **changed))
