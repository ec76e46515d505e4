"""The engine's activations by their names in its compiler, with equal ops of users.

Modes of `PUBLISHED` are values of the compiler's enumeration of nonlinear modes, or tokens of its netlists. Modes
outside `PUBLISHED` are functions that MIL runs as one activation but that have no value in the enumeration. For such a
function the compiler fits a table (mode custom_lut).
"""

from collections.abc import Mapping
from typing import NamedTuple


class Neuron(NamedTuple):
    """op: of users. alpha, beta: the names of the op's attributes for the activation's two parameters, "" for an unused
    parameter."""

    op: str
    alpha: str = ""
    beta: str = ""

    def attrs(self, alpha: float, beta: float) -> dict[str, float]:
        return {name: value for name, value in ((self.alpha, alpha), (self.beta, beta)) if name}


PUBLISHED: Mapping[str, Neuron] = {
    "relu": Neuron("relu"),
    "leaky_relu": Neuron("leaky_relu", "alpha"),
    "clamped_relu": Neuron("clip", "alpha", "beta"),
    "sigmoid_high_precision": Neuron("sigmoid"),
    "sigmoid_hard": Neuron("sigmoid_hard", "alpha", "beta"),
    "tanh": Neuron("tanh"),
    "swish": Neuron("silu"),
    "swish_hard": Neuron("hard_swish"),
    "gelu": Neuron("gelu"),
    "elu": Neuron("elu", "alpha"),
    "thresholded_relu": Neuron("thresholded_relu", "alpha"),
    "sqrt": Neuron("sqrt"),
    "rsqrt": Neuron("rsqrt"),
    "inv": Neuron("inverse"),
    "sqr": Neuron("square"),
    "exp": Neuron("exp"),
    "exp2": Neuron("exp2"),
    "sin": Neuron("sin"),
    "cos": Neuron("cos"),
    "atan": Neuron("atan"),
    "erf": Neuron("erf"),
    "sign": Neuron("sign"),
    "abs": Neuron("abs"),
    "round_nearest": Neuron("round"),
    "floor": Neuron("floor"),
    "ceil": Neuron("ceil"),
}
FITTED: Mapping[str, Neuron] = {
    "gelu_tanh": Neuron("gelu_tanh"),  # The engine has one table for both forms of gelu.
    "log": Neuron("log"),
    "celu": Neuron("celu", "alpha"),
    "selu": Neuron("selu", "alpha", "beta"),
    "softplus": Neuron("softplus"),
    "softsign": Neuron("softsign"),
    "scaled_tanh": Neuron("scaled_tanh", "alpha", "beta"),
}
NEURONS: Mapping[str, Neuron] = {**PUBLISHED, **FITTED}
MODE_OF: Mapping[str, str] = {neuron.op: mode for mode, neuron in NEURONS.items()}
