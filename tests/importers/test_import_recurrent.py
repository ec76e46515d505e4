"""RNN, GRU and LSTM with any activations and attributes give onnxruntime's numbers."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import hexane as hx
from compare import assert_matches
from hexane.errors import Error
from hexane.importers.onnx import import_onnx
from hexane.ops.reference import run_reference
from hexane.passes.legalize.expand import expand
from hexane.passes.retarget import retarget
from hexane.targets import load_target
from hexane.targets.query import load_chip
from onnx_models import by_onnxruntime, model

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
# Each activation that onnxruntime has, with numbers for its alpha and beta.
ACTIVATIONS: dict[str, tuple[float, ...]] = {
    "Affine": (0.6, 0.1), "Elu": (0.7,), "HardSigmoid": (0.3, 0.4), "LeakyRelu": (0.2,), "Relu": (), "ScaledTanh": (0.8, 0.9),
    "Sigmoid": (), "Softplus": (), "Softsign": (), "Tanh": (), "ThresholdedRelu": (0.15,),
}  # fmt: skip


def chosen(*names: str) -> dict[str, Any]:
    """The attributes of these activations, with a value for every parameter."""
    values = [ACTIVATIONS[name] for name in names]
    lists = {
        "activation_alpha": [v[0] for v in values if v],
        "activation_beta": [v[1] for v in values if len(v) > 1],
    }
    return {"activations": list(names), **{name: numbers for name, numbers in lists.items() if numbers}}


def network(
    op: str, attrs: dict[str, Any], *, time: int = 5, optional: str = "", opset: int = 14
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A network whose x, lengths and initial states are inputs. optional: letters of b(ias), l(engths), h, c, p(eephole)."""
    rng = np.random.default_rng(7)
    batch, width, hidden = 3, 4, 5
    directions = 2 if attrs.get("direction") == "bidirectional" else 1
    first = attrs.get("layout", 0)

    def numbers(*shape: int, scale: float = 1.0) -> Any:
        return (rng.uniform(-1, 1, shape) * scale).astype(np.float32)

    state = (directions, batch, hidden)
    feeds = {"x": numbers(time, batch, width, scale=2)}
    constants = {
        "w": numbers(directions, GATES[op] * hidden, width),
        "r": numbers(directions, GATES[op] * hidden, hidden, scale=0.5),
    }
    if "b" in optional:
        constants["b"] = numbers(directions, 2 * GATES[op] * hidden)
    if "l" in optional:
        feeds["l"] = np.array([time, 1, time // 2], np.int32)
    feeds.update({name: numbers(*state) for name in "hc" if name in optional})
    if "p" in optional:
        constants["p"] = numbers(directions, 3 * hidden)
    if first:
        feeds = {name: v if v.ndim == 1 else np.swapaxes(v, 0, 1).copy() for name, v in feeds.items()}
    names = [name if name in "xwr" or name in optional else "" for name in ("x", "w", "r", "b", "l", "h", "c", "p")]
    outputs = ["y", "y_h", "y_c"][: 3 if op == "LSTM" else 2]
    node = helper.make_node(op, names if op == "LSTM" else names[:6], outputs, hidden_size=hidden, **attrs)
    return model([node], feeds, outputs, constants, opset), feeds


CASES = [
    *(("RNN", chosen(name), "bh") for name in ACTIVATIONS),
    *(("GRU", chosen("Sigmoid", name), "b") for name in ACTIVATIONS),
    *(("LSTM", chosen("Sigmoid", "Tanh", name), "b") for name in ACTIVATIONS),
    *(("LSTM", chosen(name, name, "Tanh"), "bp") for name in ACTIVATIONS),
    ("RNN", {"activations": ["Elu"]}, ""),
    ("RNN", {"activations": ["LeakyRelu"]}, ""),
    ("RNN", {"activations": ["HardSigmoid"], "activation_beta": [0.3]}, ""),
    ("RNN", {"activations": ["Affine"], "activation_alpha": [0.5, 9.0], "activation_beta": [0.25]}, ""),
    ("RNN", {**chosen("Elu", "ScaledTanh"), "direction": "bidirectional", "clip": 0.9}, "blh"),
    ("GRU", {**chosen("HardSigmoid", "Elu"), "direction": "reverse", "linear_before_reset": 1}, "blh"),
    ("GRU", {**chosen("HardSigmoid", "LeakyRelu", "Sigmoid", "Affine"), "direction": "bidirectional", "clip": 0.7}, "blh"),
    ("LSTM", {"input_forget": 1}, ""),
    ("LSTM", {"input_forget": 1, "clip": 0.5, "direction": "reverse"}, "blhcp"),
    ("LSTM", {"input_forget": 1, "direction": "bidirectional"}, "blhcp"),
    ("LSTM", {**chosen("HardSigmoid", "Elu", "ScaledTanh", "Sigmoid", "Affine", "LeakyRelu"),
              "direction": "bidirectional", "clip": 0.8, "input_forget": 1}, "blhcp"),
    ("LSTM", {**chosen(*["HardSigmoid", "Softsign", "Softplus"] * 2), "direction": "bidirectional"},
     "bhcp"),
]  # fmt: skip


def forms(proto: onnx.ModelProto, feeds: dict[str, Any]) -> list[dict[str, Any]]:
    """What the graph means as imported, in ops with kernels, compiled, and in the ops of a chip."""
    graph = import_onnx(proto)
    host, chip = expand(graph, load_target("host")), retarget(graph, load_chip("h13"))
    return [*(run_reference(form, feeds) for form in (graph, host, chip)), hx.compile(graph, threads=1)(**feeds)]


@pytest.mark.parametrize(("op", "attrs", "optional"), CASES, ids=str)
def test_a_recurrent_network_gives_the_numbers_of_onnxruntime(op: str, attrs: dict[str, Any], optional: str) -> None:
    proto, feeds = network(op, attrs, optional=optional)
    wanted = by_onnxruntime(proto, feeds)
    for found in forms(proto, feeds):
        for name, want in zip(found, wanted, strict=True):
            assert_matches(found[name], want)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
def test_a_long_sequence_with_other_activations_is_a_loop(op: str, direction: str) -> None:
    names = [("LeakyRelu", "Elu", "ScaledTanh")[i] for i in range(FUNCTIONS[op])] * (1 + (direction == "bidirectional"))
    attrs = {**chosen(*names), "direction": direction, "clip": 0.6}
    proto, feeds = network(op, attrs, time=100, optional="blh")
    graph = import_onnx(proto)
    assert "loop" in graph.ops
    assert len(graph.nodes) < 100
    wanted = by_onnxruntime(proto, feeds)
    for found in forms(proto, feeds):
        for name, want in zip(found, wanted, strict=True):
            assert_matches(found[name], want)


@pytest.mark.parametrize("op", GATES)
def test_a_batch_first_layout_changes_only_the_order_of_axes(op: str) -> None:
    """onnxruntime has no kernel for layout 1."""
    names = ["HardSigmoid", "Elu", "LeakyRelu"][: FUNCTIONS[op]] * 2
    attrs = {**chosen(*names), "direction": "bidirectional"}
    optional = "blhcp" if op == "LSTM" else "blh"
    wanted = by_onnxruntime(*network(op, attrs, optional=optional))
    proto, feeds = network(op, {**attrs, "layout": 1}, optional=optional)
    for found in forms(proto, feeds):
        y, *states = found.values()
        assert_matches(y, np.transpose(wanted[0], (2, 0, 1, 3)))
        for state, want in zip(states, wanted[1:], strict=True):
            assert_matches(state, np.swapaxes(want, 0, 1))


@pytest.mark.parametrize("attrs", [{}, chosen("HardSigmoid", "Tanh", "Tanh") | {"activation_alpha": [0.2],
                                                                               "activation_beta": [0.5]}])  # fmt: skip
def test_usual_activations_stay_one_op(attrs: dict[str, Any]) -> None:
    graph = import_onnx(network("LSTM", attrs)[0])
    assert [node.op for node in graph.nodes if node.op not in ("const", "input")] == ["lstm"]


@pytest.mark.parametrize(
    ("op", "attrs", "message"),
    [
        ("RNN", {"activations": ["Affine"], "activation_alpha": [1.0]}, "activation_beta: got no value for Affine"),
        ("RNN", {"activations": ["Gelu"]}, "activations: got 'Gelu', need one of affine, elu"),
        ("GRU", {"activations": ["Elu"]}, "activations: got .*, need 2 for each direction"),
    ],
)
def test_activations_without_a_meaning_are_refused(op: str, attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(Error, match=message):
        import_onnx(network(op, attrs)[0])
