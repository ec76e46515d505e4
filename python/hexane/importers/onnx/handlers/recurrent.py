"""RNN, GRU and LSTM as the catalogue's ops, or unrolled if these ops lack an activation or a form of gates."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.importers.onnx.node import Builder, OnnxNode, Result
from hexane.importers.onnx.registry import onnx_op
from hexane.ops import OPS, apply
from hexane.ops.records.recurrent import CELLS, FUNCTIONS, write_steps

_NUM_INPUTS = {"gru": 6, "lstm": 8, "rnn": 6}
# Each activation's op, and its parameters with ONNX's defaults; None where ONNX has no default.
_ACTIVATIONS: Mapping[str, tuple[str, Mapping[str, float | None]]] = {
    "affine": ("linear_activation", {"alpha": None, "beta": None}),
    "elu": ("elu", {"alpha": 1.0}),
    "hardsigmoid": ("sigmoid_hard", {"alpha": 0.2, "beta": 0.5}),
    "leakyrelu": ("leaky_relu", {"alpha": 0.01}),
    "relu": ("relu", {}),
    "scaledtanh": ("scaled_tanh", {"alpha": None, "beta": None}),
    "sigmoid": ("sigmoid", {}),
    "softplus": ("softplus", {}),
    "softsign": ("softsign", {}),
    "tanh": ("tanh", {}),
    "thresholdedrelu": ("thresholded_relu", {"alpha": 1.0}),
}
_Activation = tuple[str, dict[str, float]]  # op, and the attributes that differ from the op's in the catalogue


def _activations(n: OnnxNode) -> list[_Activation]:
    """Returns the node's activations. An activation that has an alpha or a beta takes the next number of the node's
    list of alphas or betas."""
    lists: dict[str, Iterator[float]] = {
        name: iter(n.attrs.get(f"activation_{name}") or ()) for name in ("alpha", "beta")
    }
    result = []
    for name in n.attrs.get("activations") or ():
        if name.lower() not in _ACTIVATIONS:
            raise Error(f"activations: got {name!r}, need one of {', '.join(sorted(_ACTIVATIONS))}")
        op, parameters = _ACTIVATIONS[name.lower()]
        attrs = {}
        for parameter, usual in parameters.items():
            value = next(lists[parameter], usual)
            if value is None:
                raise Error(f"activation_{parameter}: got no value for {name}, which has no default")
            if op not in FUNCTIONS or np.float32(value) != np.float32(usual):
                attrs[parameter] = value
        result.append((op, attrs))
    return result


@onnx_op(*(op.upper() for op in _NUM_INPUTS))
def recurrent(b: Builder, n: OnnxNode) -> Result:
    if n.version < 7:
        raise Error("got it as opset 6 has it, need opset 7 or newer")
    op = n.op.lower()
    weights = n.value(2)
    hidden = n.attrs.get("hidden_size")
    if hidden is not None and weights.shape[-1:] != (hidden,):
        raise Error(f"hidden_size: got {hidden} for R {weights.shape}, need its last dim")
    names = n.attrs.get("activations", ())
    activations = [] if op == "rnn" and names == ("Tanh", "Tanh") else _activations(n)  # RNN's default
    options: dict[str, Any] = {
        "direction": n.attrs["direction"],
        "clip": n.attrs.get("clip", 0.0),
        "batch_first": bool(n.attrs.get("layout", 0)),
    }
    if op == "gru":
        options["linear_before_reset"] = bool(n.attrs.get("linear_before_reset", 0))
    inputs = [n.optional(i) for i in range(_NUM_INPUTS[op])]
    lengths, x = inputs[4], n.value(0)
    if lengths is not None and lengths.node.data is not None:
        time = x.shape[1 if options["batch_first"] else 0] if len(x.shape) == 3 else 0
        inputs[4] = None if (lengths.node.data == time).all() else lengths  # drops full lengths
    coupled = bool(n.attrs.get("input_forget", 0))
    if not coupled and all(name in FUNCTIONS and not attrs for name, attrs in activations):
        return b.apply(op, *inputs, activations=[name for name, _ in activations], **options)
    # The catalogue's op checks the operands and the number of activations.
    stand_ins = [name if name in FUNCTIONS else "tanh" for name, _ in activations]
    checked = apply(OPS[op], inputs, {**options, "activations": stand_ins}, b.sources)[0].node
    chosen = activations or [(name, {}) for name in CELLS[op].defaults]
    chosen *= len(checked.attrs["activations"]) // len(chosen)
    functions = [partial(b.apply, name, **attrs) for name, attrs in chosen]
    return tuple(write_steps(b, op, functions, *inputs, input_forget=coupled, **options))
