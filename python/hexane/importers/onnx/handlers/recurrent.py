"""RNN, GRU and LSTM: the attributes of the catalogue's ops."""

from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.importers.onnx.node import Builder, OnnxNode, Result
from hexane.importers.onnx.registry import onnx_op

_NUM_INPUTS = {"gru": 6, "lstm": 8, "rnn": 6}
_NAMES = {"hardsigmoid": "sigmoid_hard"}
_DEFAULTS = {"activation_alpha": np.float32(0.2), "activation_beta": np.float32(0.5)}  # for HardSigmoid


def _check_parameters(n: OnnxNode) -> None:
    """Raises Error for other parameters of HardSigmoid than the default ones. No other activation has parameters."""
    hard = any(function.lower() == "hardsigmoid" for function in n.attrs.get("activations") or ())
    for name, usual in _DEFAULTS.items():
        given = n.attrs.get(name) or ()
        if hard and any(np.float32(v) != usual for v in given):
            raise Error(f"{name}: got {given}, need none (or those of HardSigmoid, {usual})")


@onnx_op(*(op.upper() for op in _NUM_INPUTS))
def recurrent(b: Builder, n: OnnxNode) -> Result:
    if n.version < 7:
        raise Error("got it as opset 6 has it, need opset 7 or newer")
    op = n.op.lower()
    if n.attrs.get("input_forget", 0):
        raise Error("input_forget: got 1, need 0")
    _check_parameters(n)
    weights = n.value(2)
    hidden = n.attrs.get("hidden_size")
    if hidden is not None and weights.shape[-1:] != (hidden,):
        raise Error(f"hidden_size: got {hidden} for R {weights.shape}, need its last dim")
    names = n.attrs.get("activations", ())
    if op == "rnn" and names == ("Tanh", "Tanh"):  # the default for two directions
        names = ()
    options: dict[str, Any] = {
        "direction": n.attrs["direction"],
        "activations": [_NAMES.get(name.lower(), name.lower()) for name in names],
        "clip": n.attrs.get("clip", 0.0),
        "batch_first": bool(n.attrs.get("layout", 0)),
    }
    if op == "gru":
        options["linear_before_reset"] = bool(n.attrs.get("linear_before_reset", 0))
    inputs = [n.optional(i) for i in range(_NUM_INPUTS[op])]
    lengths, x = inputs[4], n.value(0)
    if lengths is not None and lengths.node.data is not None:
        time = x.shape[1 if options["batch_first"] else 0] if len(x.shape) == 3 else 0
        inputs[4] = None if (lengths.node.data == time).all() else lengths  # full lengths are dropped
    return b.apply(op, *inputs, **options)
