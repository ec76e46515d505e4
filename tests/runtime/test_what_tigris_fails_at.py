"""Models that TiGrIS 0.12.1 computes wrongly or refuses, beside onnxruntime: in whole tensors, and row by row with the
same bits."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import hexane as hx

Arrays = Mapping[str, Any]


def model_of(nodes: Sequence[onnx.NodeProto], arrays: Arrays, shape: Sequence[int], outputs: Sequence[str]) -> bytes:
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(made.SerializeToString())


def conv(x: str, y: str, *operands: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node("Conv", [x, *operands], [y], **{"pads": [1, 1, 1, 1], **attributes})


def normed(x: str, y: str, *names: str) -> onnx.NodeProto:
    return helper.make_node("BatchNormalization", [x, *names], [y])


def numbers(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def norm_arrays(prefix: str, seed: int, channels: int = 8) -> dict[str, Any]:
    return {
        f"{prefix}gamma": numbers(seed, channels) + 2,
        f"{prefix}beta": numbers(seed + 1, channels),
        f"{prefix}mean": numbers(seed + 2, channels),
        f"{prefix}var": np.abs(numbers(seed + 3, channels)) + np.float32(0.5),
    }


def of(prefix: str) -> list[str]:
    return [f"{prefix}{name}" for name in ("gamma", "beta", "mean", "var")]


def bias_of_another() -> bytes:
    """The weight is called weight_1, and bias_1 is somebody else's."""
    arrays = {"weight_1": numbers(0, 8, 3, 3, 3), "bias_1": numbers(9, 1, 8, 1, 1), **norm_arrays("", 1)}
    nodes = [
        conv("x", "a", "weight_1"), normed("a", "b", *of("")), helper.make_node("Mul", ["b", "bias_1"], ["y"]),
    ]  # fmt: skip
    return model_of(nodes, arrays, (1, 3, 24, 16), ["y"])


def weight_of_two() -> bytes:
    arrays = {
        "w": numbers(0, 8, 8, 3, 3),
        "first": numbers(8, 8, 3, 1, 1),
        **norm_arrays("p", 1),
        **norm_arrays("q", 5),
    }
    nodes = [
        conv("x", "s", "first", pads=[0, 0, 0, 0]), conv("s", "a", "w"), normed("a", "b", *of("p")),
        conv("b", "c", "w"), normed("c", "y", *of("q")),
    ]  # fmt: skip
    return model_of(nodes, arrays, (1, 3, 24, 16), ["y"])


def bias_of_two() -> bytes:
    arrays = {
        "w": numbers(0, 8, 3, 3, 3), "v": numbers(7, 8, 8, 3, 3), "bias": numbers(8, 8),
        **norm_arrays("p", 1), **norm_arrays("q", 5),
    }  # fmt: skip
    nodes = [
        conv("x", "a", "w", "bias"), normed("a", "b", *of("p")), conv("b", "c", "v", "bias"), normed("c", "y", *of("q"))
    ]  # fmt: skip
    return model_of(nodes, arrays, (1, 3, 24, 16), ["y"])


def norm_of_two() -> bytes:
    arrays = {"w": numbers(0, 8, 3, 3, 3), "v": numbers(7, 8, 8, 3, 3), **norm_arrays("", 1)}
    nodes = [conv("x", "a", "w"), normed("a", "b", *of("")), conv("b", "c", "v"), normed("c", "y", *of(""))]
    return model_of(nodes, arrays, (1, 3, 24, 16), ["y"])


def deep() -> bytes:
    """1,500 nodes, one behind the other."""
    nodes = [helper.make_node("Abs" if i % 2 else "Neg", [f"t{i}" if i else "x"], [f"t{i + 1}"]) for i in range(1499)]
    nodes.append(helper.make_node("Tanh", ["t1499"], ["y"]))
    return model_of(nodes, {}, (1, 3, 24, 16), ["y"])


def chain() -> bytes:
    """24 convolutions, one behind the other."""
    arrays = {f"w{i}": numbers(i, 8, 8 if i else 3, 3, 3) / np.float32(8) for i in range(24)}
    nodes = [conv(f"t{i}" if i else "x", f"t{i + 1}" if i < 23 else "y", f"w{i}") for i in range(24)]
    return model_of(nodes, arrays, (1, 3, 96, 16), ["y"])


def long_kernel() -> bytes:
    nodes = [conv("x", "y", "w", pads=[150, 0, 149, 0])]
    return model_of(nodes, {"w": numbers(0, 4, 3, 300, 1) / np.float32(16)}, (1, 3, 320, 4), ["y"])


MODELS = (bias_of_another, weight_of_two, bias_of_two, norm_of_two, deep, chain, long_kernel)


@pytest.mark.parametrize("make", MODELS)
def test_models_compute_what_onnxruntime_does_and_the_same_by_rows(make: Any):
    model = make()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    x = numbers(3, *session.get_inputs()[0].shape)
    (want,) = session.run(None, {"x": x})
    whole, streamed = (hx.compile(model, target="host", threads=1, memory=hx.Memory(rows=rows)) for rows in (0, 1))
    got = whole(x)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
    assert streamed(x).tobytes() == got.tobytes()


def test_a_chain_of_24_convolutions_runs_in_one_loop_where_memory_is_small():
    whole, streamed = (hx.compile(chain(), target="host", threads=1, memory=hx.Memory(rows=rows)) for rows in (0, 1))
    assert max(len(loop.moves) for loop in streamed.program.loops) >= 17
    assert streamed.memory["arena"] < whole.memory["arena"]
    sram = streamed.memory["arena"] + streamed.memory["scratch"]
    assert hx.compile(chain(), target="host", threads=1, memory=hx.Memory(sram)).memory["arena"] <= sram
