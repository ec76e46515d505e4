"""Imported weights as params: which names fit, what they compute, and fine-tuning as docs/training.md has it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import hexane as hx
from hexane.graph import Array
from hexane.importers.patterns import matching
from onnx_models import by_onnxruntime, ints, model, node, rand

DOCS = Path(__file__).parents[2] / "docs" / "training.md"
RNG = np.random.default_rng(3)
IMAGES = RNG.standard_normal((8, 3, 8, 8)).astype(np.float32)
TOKENS = RNG.integers(0, 20, (8, 6))
CLASSES = np.arange(8, dtype=np.int32) % 4


def weights(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32) / np.sqrt(max(np.prod(shape[1:]), 1)).astype(np.float32)


def norm(rng: np.random.Generator, name: str, channels: int) -> dict[str, Array]:
    numbers = {part: rng.uniform(0.5, 1.5, channels).astype(np.float32) for part in ("weight", "running_var")}
    numbers |= {part: rng.standard_normal(channels).astype(np.float32) * 0.1 for part in ("bias", "running_mean")}
    return {f"{name}.{part}": array for part, array in numbers.items()}


def block(rng: np.random.Generator, name: str, x: str, channels: int) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    """x + bn2(conv2(relu(bn1(conv1(x)))))"""
    nodes, constants, last = [], {}, x
    for i in (1, 2):
        conv, bn = f"{name}.conv{i}", f"{name}.bn{i}"
        constants |= {f"{conv}.weight": weights(rng, channels, channels, 3, 3), **norm(rng, bn, channels)}
        stats = " ".join(f"{bn}.{part}" for part in ("weight", "bias", "running_mean", "running_var"))
        nodes += [
            node("Conv", f"{last} {conv}.weight", conv, pads=[1, 1, 1, 1]),
            node("BatchNormalization", f"{conv} {stats}", bn),
        ]
        last = bn
        if i == 1:
            nodes.append(node("Relu", bn, f"{name}.relu"))
            last = f"{name}.relu"
    return [*nodes, node("Add", f"{last} {x}", f"{name}.sum"), node("Relu", f"{name}.sum", name)], constants


def residual_network() -> onnx.ModelProto:
    rng = np.random.default_rng(1)
    first, second = block(rng, "layer1", "stem", 6), block(rng, "layer2", "layer1", 6)
    constants = {"conv1.weight": weights(rng, 6, 3, 3, 3), "conv1.bias": weights(rng, 6), **first[1], **second[1]}
    constants |= {"fc.weight": weights(rng, 4, 6), "fc.bias": weights(rng, 4)}
    nodes = [
        node("Conv", "images conv1.weight conv1.bias", "stem", pads=[1, 1, 1, 1], strides=[2, 2]),
        *first[0], *second[0],
        node("GlobalAveragePool", "layer2", "pooled"), node("Flatten", "pooled", "flat"),
        node("Gemm", "flat fc.weight fc.bias", "logits", transB=1),
    ]  # fmt: skip
    return model(nodes, {"images": IMAGES}, ["logits"], constants)


def encoder(width: int = 8, heads: int = 2) -> onnx.ModelProto:
    """One layer over 20 words, as torch's exporter writes it: weights transposed by nodes of the model."""
    rng = np.random.default_rng(2)
    constants: dict[str, Any] = {"embed.weight": weights(rng, 20, width) * 3, "half": np.float32(0.5), "one": np.float32(1),
                                 "root": np.float32(np.sqrt(2)), "scale": np.float32(np.sqrt(width // heads)),
                                 "split": ints(0, 0, heads, width // heads), "join": ints(0, 0, width), "axis": ints(1)}  # fmt: skip
    nodes = [node("Gather", "embed.weight tokens", "x0")]

    def linear(name: str, x: str, outputs: int, inputs: int) -> str:
        constants.update({f"{name}.weight": weights(rng, outputs, inputs), f"{name}.bias": weights(rng, outputs) * 0.1})
        nodes.extend([
            node("Transpose", f"{name}.weight", f"{name}.t", perm=[1, 0]),
            node("MatMul", f"{x} {name}.t", f"{name}.product"),
            node("Add", f"{name}.product {name}.bias", f"{name}.out"),
        ])  # fmt: skip
        return f"{name}.out"

    def layer_norm(name: str, x: str) -> str:
        constants.update({f"{name}.weight": np.ones(width, np.float32), f"{name}.bias": np.zeros(width, np.float32)})
        nodes.append(node("LayerNormalization", f"{x} {name}.weight {name}.bias", f"{name}.out", axis=-1))
        return f"{name}.out"

    for part, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        out = linear(f"attention.{part}", "x0", width, width)
        nodes += [node("Reshape", f"{out} split", f"{part}.split"), node("Transpose", f"{part}.split", part, perm=perm)]
    nodes += [
        node("MatMul", "q k", "products"), node("Div", "products scale", "scores"),
        node("Softmax", "scores", "shares", axis=-1), node("MatMul", "shares v", "mixed"),
        node("Transpose", "mixed", "turned", perm=[0, 2, 1, 3]), node("Reshape", "turned join", "joined"),
    ]  # fmt: skip
    nodes.append(node("Add", f"x0 {linear('attention.out', 'joined', width, width)}", "x1"))
    normal = layer_norm("norm1", "x1")
    up = linear("mlp.up", normal, 2 * width, width)
    nodes += [
        node("Div", f"{up} root", "g1"), node("Erf", "g1", "g2"), node("Add", "g2 one", "g3"),
        node("Mul", f"{up} g3", "g4"), node("Mul", "g4 half", "gelu"),
    ]  # fmt: skip
    nodes.append(node("Add", f"{normal} {linear('mlp.down', 'gelu', width, 2 * width)}", "x2"))
    nodes.append(node("ReduceMean", layer_norm("norm2", "x2"), "mean", axes=[1], keepdims=0))
    nodes.append(node("Identity", linear("head", "mean", 4, width), "logits"))
    return model(nodes, {"tokens": TOKENS}, ["logits"], constants)


def blocks_of_the_docs() -> list[str]:
    section = DOCS.read_text(encoding="utf-8").split("## Models that are imported")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def accuracy(logits: Array) -> float:
    return float((logits.argmax(-1) == CLASSES).mean())


def test_the_last_layers_of_a_residual_network_are_tuned_as_the_docs_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = residual_network()
    onnx.save(proto, tmp_path / "resnet.onnx")
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"hx": hx, "images": IMAGES, "classes": CLASSES}
    lines = blocks_of_the_docs()[0].splitlines()
    (steps,) = [i for i, line in enumerate(lines) if line == "for _ in range(3):"]
    assert lines[steps - 1].startswith("images, classes = rng.")
    lines[steps - 1 : steps + 1] = ["for _ in range(60):"]
    exec("\n".join(lines), scope)
    assert accuracy(by_onnxruntime(proto, {"images": IMAGES})[0]) < 0.7
    logits = scope["tuned"](IMAGES)
    assert accuracy(logits) == 1.0
    convs, norms = ("conv1", "conv2"), ("bn1", "bn2")
    trained = {f"layer2.{c}.weight" for c in convs} | {f"layer2.{n}.{p}" for n in norms for p in ("weight", "bias")}
    assert set(scope["model"].params) == {"fc.weight", "fc.bias", *trained}
    assert set(scope["model"].statistics) == {f"layer2.{n}.running_{p}" for n in norms for p in ("mean", "var")}
    # The tuned weights in the original model give the same: nothing else has changed.
    for tensor in proto.graph.initializer:
        if tensor.name in scope["model"].params:
            tensor.CopyFrom(onnx.numpy_helper.from_array(scope["net"].read_state(tensor.name), tensor.name))
    np.testing.assert_allclose(by_onnxruntime(proto, {"images": IMAGES})[0], logits, rtol=1e-4, atol=1e-4)


def test_all_of_an_encoder_is_tuned_as_the_docs_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = encoder()
    onnx.save(proto, tmp_path / "encoder.onnx")
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"hx": hx}
    exec(blocks_of_the_docs()[1], scope)
    net, params = scope["net"], scope["model"].params
    floats = {t.name for t in proto.graph.initializer if t.data_type == onnx.TensorProto.FLOAT and t.dims}
    assert set(params) == floats
    before = {name: net.read_state(name) for name in params}
    losses = [float(net(tokens=TOKENS, labels=CLASSES)["loss"]) for _ in range(300)]
    assert losses[-1] < 0.1 * losses[0]
    still = {name for name, array in before.items() if np.array_equal(array, net.read_state(name))}
    assert not still
    for tensor in proto.graph.initializer:
        if tensor.name in params:
            tensor.CopyFrom(onnx.numpy_helper.from_array(net.read_state(tensor.name), tensor.name))
    tuned = hx.compile(hx.train.trained(scope["model"].outputs, net))
    np.testing.assert_allclose(tuned(TOKENS), by_onnxruntime(proto, {"tokens": TOKENS})[0], rtol=1e-4, atol=1e-4)


def test_a_compiled_model_takes_other_weights() -> None:
    proto = residual_network()
    made = hx.train.with_params(proto, "fc.weight|layer1.bn1.*")
    net = hx.compile(made.graph)
    assert isinstance(net, hx.Model)
    new = {name: rand(*t.shape, low=0.5, high=1.5) for name, t in {**made.params, **made.statistics}.items()}
    assert len(new) == 5
    net.update(**new)
    for tensor in proto.graph.initializer:
        if tensor.name in new:
            tensor.CopyFrom(onnx.numpy_helper.from_array(new[tensor.name], tensor.name))
    np.testing.assert_allclose(net(IMAGES), by_onnxruntime(proto, {"images": IMAGES})[0], rtol=1e-4, atol=1e-4)


def test_gradients_of_imported_weights_are_those_of_differences() -> None:
    made = hx.train.with_params(residual_network(), "layer2.conv2.weight|fc.bias")
    labels = hx.const(CLASSES)
    loss = hx.cross_entropy(made.outputs["logits"], labels)
    w = made.params["layer2.conv2.weight"]
    net = hx.compile(hx.graph({"loss": loss, "g": hx.grad(loss, w)}))
    assert isinstance(net, hx.Model)
    start = w.value.node.data
    assert start is not None
    gradient = net(IMAGES)["g"]
    length = np.linalg.norm(gradient)
    found = []
    for sign in (1, -1):
        net.update(**{"layer2.conv2.weight": start + np.float32(sign * 0.003) * gradient / length})
        found.append(float(net(IMAGES)["loss"]))
    np.testing.assert_allclose(length, (found[0] - found[1]) / 0.006, rtol=2e-3)


def near_names() -> Iterator[tuple[str, list[str]]]:
    yield "layer9.*|fc.*", ["pattern 'layer9.*'", "'layer1"]
    yield "fc.*|fc.weigth", ["pattern 'fc.weigth'", "'fc.weight'"]
    yield "nothing at all", ["there are 24"]
    yield "", ["pattern ''"]


@pytest.mark.parametrize(("pattern", "words"), list(near_names()))
def test_a_pattern_that_nothing_fits_lists_near_names(pattern: str, words: list[str]) -> None:
    with pytest.raises(hx.Error, match="which no name fits, need such as") as told:
        hx.train.with_params(residual_network(), pattern)
    for word in words:
        assert word in str(told.value)


def test_patterns_have_two_signs_and_nothing_else() -> None:
    names = ["a.b", "axb", "a[0].b", "fc+", "a\nb"]
    assert matching("t", "a.b", names) == ["a.b"]
    assert matching("t", "fc+|a?b", names) == ["a.b", "axb", "fc+", "a\nb"]
    assert matching("t", "a[0]*", names) == ["a[0].b"]
    assert matching("t", "*", names) == names


def test_initializers_that_decide_shapes_or_are_numbers_stay_constants() -> None:
    x = rand(2, 3, 4, 4)
    nodes = [
        node("Resize", "x  scales", "y", mode="nearest"), node("Mul", "y w", "z"), node("Clip", "z low high", "c"),
    ]  # fmt: skip
    nodes[0].input[:] = ["x", "", "scales"]
    constants = {"scales": np.array([1, 1, 2, 2], np.float32), "w": rand(3, 1, 1), "low": np.float32(-1),
                 "high": np.float32(1)}  # fmt: skip
    made = hx.train.with_params(model(nodes, {"x": x}, ["c"], constants))
    assert set(made.params) == {"w"}


def test_a_param_decides_nothing_at_import() -> None:
    """The bounds of a Clip that have an axis, and the values of a OneHot, may be replaced."""
    x, i = rand(2, 3), ints(0, 2)
    nodes = [node("Clip", "x low", "y"), node("OneHot", "i depth pair", "hot")]
    constants = {"low": np.zeros(1, np.float32), "depth": np.array(3), "pair": np.array([0, 1], np.float32)}
    made = hx.train.with_params(model(nodes, {"x": x, "i": i}, ["y", "hot"], constants))
    assert set(made.params) == {"low", "pair"}
    net = hx.compile(made.graph)
    assert isinstance(net, hx.Model)
    net.update(low=np.full(1, 1.5, np.float32), pair=np.array([5, 7], np.float32))
    found = net(x, i)
    np.testing.assert_array_equal(found["y"], np.maximum(x, 1.5))
    np.testing.assert_array_equal(found["hot"], np.where(np.eye(3)[i] > 0, 7, 5))


def test_a_graph_with_params_is_chosen_from() -> None:
    x = hx.input("x", (2, 3))
    g = hx.graph({"y": hx.linear(x, hx.param("fc.w", rand(4, 3)), hx.param("fc.b", rand(4))) * hx.param("s", rand(4))})
    made = hx.train.with_params(g, "fc.*")
    assert list(made.params) == ["fc.w", "fc.b"]
    assert (list(made.inputs), list(made.outputs)) == (["x"], ["y"])
    with pytest.raises(hx.Error, match="got a graph without params, need the ONNX model"):
        hx.train.with_params(hx.graph(x * 2), "*")
    with pytest.raises(hx.Error, match="need a model to import"):
        hx.train.with_params(g, "*", shapes={"x": (1, 3)})
