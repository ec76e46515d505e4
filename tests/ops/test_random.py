"""Random ops: the numbers of a seed, that calls differ, and that streams are kept apart."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import hexane as hx
from hexane.ops.records.random import philox
from kernels import poisoned, run_every_cut


# The published answers of Philox4x32-10: counter and key, then the words.
@pytest.mark.parametrize(
    ("counter", "call", "key", "words"),
    [
        (0, 0, 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (2**64 - 1, 2**64 - 1, 2**64 - 1, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (0x85A308D3243F6A88, 0x0370734413198A2E, 0x299F31D0A4093822, [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
    ],
)
def test_the_generator_is_philox(counter: int, call: int, key: int, words: list[int]) -> None:
    assert philox(np.array([counter], np.uint64), call, key)[0].tolist() == words


@pytest.mark.parametrize("shape", [(1000,), (3, 5, 7), (1, 65), (), (2, 0)])
def test_the_kernel_draws_the_same_bits_for_every_way_of_cutting(shape: tuple[int, ...]) -> None:
    stream, out = np.array([-5, 2**33]), poisoned(shape, "f4")
    run_every_cut("random", [stream], [out])
    size = int(np.prod(shape))
    words = philox(np.arange(-(-size // 4), dtype=np.uint64), 2**33, 2**64 - 5).reshape(-1)[:size].reshape(shape)
    np.testing.assert_array_equal(out, ((words >> np.uint64(8)) * 2.0**-24).astype(np.float32))


def test_calls_differ_and_a_model_loaded_or_reset_begins_anew(tmp_path: Path) -> None:
    net = hx.compile(hx.random_uniform(hx.stream(7), shape=(2, 5)))
    calls = [net() for _ in range(3)]
    assert len({c.tobytes() for c in calls}) == 3
    net.save(tmp_path / "net.hxp")
    net.reset_state()
    for again in (net, hx.load(tmp_path / "net.hxp"), hx.compile(hx.random_uniform(hx.stream(7), shape=(2, 5)))):
        np.testing.assert_array_equal([again() for _ in range(3)], calls)


def test_a_seed_is_found_where_none_is_given() -> None:
    nets = [hx.compile(hx.random(hx.stream(), shape=(8,))) for _ in range(2)]
    assert not np.array_equal(nets[0](), nets[1]())


def test_two_ops_never_merge_and_draw_apart() -> None:
    x, y = (hx.random(hx.stream(seed), shape=(100,)) for seed in (1, 2))
    assert hx.compile(x - y)().any()
    same = [hx.random(hx.stream(1), shape=(100,)) for _ in range(2)]
    net = hx.compile(same)
    assert len([s for s in net.steps if s["kernel"] == "random"]) == 2
    np.testing.assert_array_equal(*net().values())


def test_two_ops_on_one_stream_are_refused() -> None:
    stream = hx.stream(1)
    with pytest.raises(
        hx.Error, match=r"\[random_\w+ at test_random.py:\d+\] got the stream of random_.*need one of its own"
    ):
        hx.graph([hx.random_uniform(stream, shape=(2,)), hx.random_normal(stream, shape=(2,))])


def test_a_stream_may_come_from_outside() -> None:
    net = hx.compile(hx.random(hx.input("stream", (2,), "int64"), shape=(9,)))
    np.testing.assert_array_equal(net(np.array([3, 1])), net(np.array([3, 1])))
    assert not net.memory["state"]


def test_distributions_have_their_moments() -> None:
    n = 100_000
    uniform = hx.compile(hx.random_uniform(hx.stream(1), shape=(n,), low=-1, high=3))()
    assert uniform.min() >= -1
    assert uniform.max() <= 3
    assert abs(uniform.mean() - 1) < 0.02
    normal = hx.compile(hx.random_normal(hx.stream(2), shape=(n,), mean=5, scale=2))()
    assert np.isfinite(normal).all()
    assert abs(normal.mean() - 5) < 0.03
    assert abs(normal.std() - 2) < 0.03
    assert abs(((normal - 5) ** 3).mean()) < 0.3
    p = hx.compile(hx.bernoulli(hx.const(np.full(n, 0.3, "f")), hx.stream(3)))()
    assert abs(p.mean() - 0.3) < 0.01
    logits = np.log(np.array([[0.1, 0.2, 0.7], [0, 1, 0]], "f") + np.float32(1e-30))
    drawn = hx.compile(hx.multinomial(hx.const(logits), hx.stream(4), sample_size=n))()
    assert np.abs(np.bincount(drawn[0], minlength=3) / n - [0.1, 0.2, 0.7]).max() < 0.01
    assert (drawn[1] == 1).all()


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_random_ops_run_among_fp16(dtype: str) -> None:
    net = hx.compile(hx.random_normal(hx.stream(1), shape=(64,)) * 2, dtype=dtype)
    assert 1 < net().std() < 3


@pytest.mark.parametrize("seed", [True, 1.5, 2**63, "1"])
def test_a_bad_seed_is_refused(seed: Any) -> None:
    with pytest.raises(hx.Error, match="need an integer of 64 bits"):
        hx.stream(seed)


# ---- ONNX ----


def onnx_net(op: str, x: Any = None, **attrs: Any) -> hx.Model | hx.OpenModel:
    inputs = [] if x is None else ["x"]
    infos = [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)] if inputs else []
    nodes = [helper.make_node(op, inputs, ["y"], **attrs)]
    graph = helper.make_graph(nodes, "g", infos, [helper.make_empty_tensor_value_info("y")])
    return hx.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=8))


HALVES = np.full((50, 40), 0.5, np.float32)
MODELS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "uniform": ("RandomUniform", None, {"shape": [50, 40], "low": 2.0, "high": 4.0}),
    "normal": ("RandomNormal", None, {"shape": [50, 40], "mean": 3.0, "scale": 0.5}),
    "uniform_like": ("RandomUniformLike", HALVES, {"low": 2.0, "high": 4.0}),
    "normal_like": ("RandomNormalLike", HALVES, {"mean": 3.0, "dtype": onnx.TensorProto.FLOAT16}),
    "bernoulli": ("Bernoulli", HALVES, {"dtype": onnx.TensorProto.INT64}),
    "multinomial": ("Multinomial", np.zeros((3, 5), np.float32), {"sample_size": 200}),
}


@pytest.mark.parametrize("name", MODELS)
def test_an_onnx_model_repeats_its_seed(name: str) -> None:
    op, x, attrs = MODELS[name]
    args = () if x is None else (x,)
    first, again, other = (onnx_net(op, x, seed=seed, **attrs) for seed in (3.0, 3.0, 4.5))
    values = first(*args)
    np.testing.assert_array_equal(values, again(*args))
    assert not np.array_equal(values, other(*args))
    assert not np.array_equal(values, first(*args))
    mean = {"bernoulli": 0.5, "multinomial": 2.0}.get(name, 3.0)
    assert abs(values.astype(np.float64).mean() - mean) < 0.2


def test_an_onnx_model_without_a_seed_gets_one_when_it_is_compiled() -> None:
    x, y = (onnx_net("RandomNormal", shape=[10])() for _ in range(2))
    assert not np.array_equal(x, y)


@pytest.mark.filterwarnings("ignore::hexane.FallbackWarning")
def test_dropout_in_training_drops_a_part_and_scales_the_rest() -> None:
    x = np.linspace(1, 2, 20_000, dtype=np.float32)
    drop = helper.make_node("Dropout", ["x", "ratio", "training"], ["y", "mask"], seed=7)
    port = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)
    constants = {"ratio": np.float32(0.3), "training": np.array(True)}
    weights = [onnx.numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()]
    outputs = [helper.make_empty_tensor_value_info(name) for name in ("y", "mask")]
    graph = helper.make_graph([drop], "g", [port], outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=8)
    net = hx.compile(model)
    first, second = net(x), net(x)
    assert abs(first["mask"].mean() - 0.7) < 0.02
    assert not np.array_equal(first["mask"], second["mask"])
    np.testing.assert_allclose(first["y"], np.where(first["mask"], x / np.float32(0.7), 0), rtol=1e-6)
    chip = hx.compile(model, target="h13")  # which has no generator
    assert np.mean(chip(x)["mask"] != first["mask"]) < 1e-3  # numbers are rounded to fp16 on their way from the host
    assert chip.program is not None
    assert {s.device for s in chip.program.segments} == {"host", "ane"}


def body(nodes: list[onnx.NodeProto], inputs: list[str], outputs: list[str]) -> onnx.GraphProto:
    infos = [[helper.make_empty_tensor_value_info(name) for name in names] for names in (inputs, outputs)]
    return helper.make_graph(nodes, "body", *infos)


@pytest.mark.parametrize("op", ["Loop", "Scan", "Loop in Loop"])
def test_a_seeded_op_draws_anew_in_every_step(op: str) -> None:
    draw = helper.make_node("RandomUniform", [], ["r"], shape=[50], seed=3.0)
    if op == "Scan":
        step = helper.make_node("Scan", ["x"], ["y"], body=body([draw], ["v"], ["r"]), num_scan_inputs=1)
    else:
        step = helper.make_node("Loop", ["four", ""], ["y"], body=body([draw], ["i", "go"], ["go", "r"]))
        if "in" in op:
            step = helper.make_node("Loop", ["four", ""], ["y"], body=body([step], ["j", "on"], ["on", "y"]))
            step.attribute[0].g.node[0].output[0] = step.attribute[0].g.output[1].name = "inner"
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4])
    four = onnx.numpy_helper.from_array(np.array(4), "four")
    graph = helper.make_graph([step], "g", [x], [helper.make_empty_tensor_value_info("y")], [four])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=8)
    first, again = hx.compile(proto), hx.compile(proto)
    y = first(np.zeros(4, np.float32)).reshape(-1, 50)
    assert len(np.unique(y, axis=0)) == len(y) == (16 if "in" in op else 4)
    np.testing.assert_array_equal(again(np.zeros(4, np.float32)).reshape(-1, 50), y)
    assert not np.isin(first(np.zeros(4, np.float32)), y).all()


def test_nodes_of_one_name_have_streams_of_their_own() -> None:
    draws = [
        helper.make_node("RandomUniform", [], [y], name="draw", shape=[5], seed=seed)
        for y, seed in (("y", 1.0), ("z", 2.0))
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in ("y", "z")]
    proto = helper.make_model(
        helper.make_graph(draws, "g", [], outputs), opset_imports=[helper.make_opsetid("", 22)], ir_version=8
    )
    net = hx.compile(proto)
    first = net()
    names = ("draw.stream", "draw.stream_1")
    assert [net.read_state(name).tolist() for name in names] == [[1, 1], [2, 1]]
    net.write_state("draw.stream_1", np.array([2, 0]))
    second = net()
    np.testing.assert_array_equal(second["z"], first["z"])
    assert not np.array_equal(second["y"], first["y"])
