"""The rule by which the engine computes each kernel's op, and how the rule is known. docs/numerics.md has the rules."""

from collections.abc import Sequence
from dataclasses import dataclass

from hexane.graph import EpilogueSlot
from hexane.targets.activations import TABLE_OF, activations

STATUSES = {
    "exact": "replayed against results of silicon",
    "measured": "single results, or the errors of many, seen on silicon",
    "decoded": "taken from the compiler or its programs",
    "inferred": "concluded from other facts",
    "open": "not known",
}
# How sentences say a status beside a rule: "exact" would read as if the rule did not round.
IN_SENTENCES = {"exact": "equal to a chip's results to the bit"}


@dataclass(frozen=True, slots=True)
class Rule:
    text: str
    status: str

    def __str__(self) -> str:
        """Returns the rule with its status, such as "measured: one rounding to fp16, halves away from zero"."""
        return f"{self.status}: {self.text}"


PORT_CAST = Rule("the host casts what goes to the engine: to fp16, halves to even", "decoded")
AFFINE = Rule("gain and offset in fp32; one rounding to fp16, halves away from zero, follows the offset", "inferred")
OPERAND = Rule("the sum adds this result in fp32, without rounding it first", "inferred")
_FOURS = "sums of four numbers, each addition cut to 11 bits; these sums are added exactly"
WIDE_SUM = Rule(f"{_FOURS}; gain, offset, one rounding to fp16", "open")
UNKNOWN = Rule("what the chip computes here is not modelled", "open")

_PRODUCTS = Rule("products in fixed point, rounded to 2^-16 one by one", "exact")
BYTES = Rule("products of int8 summed in 32 bits, then the scale in fp16", "measured")
_ONE_ROUNDING = "one rounding to fp16, halves away from zero"
_SUM = f"{_FOURS}, one rounding to fp16"
_STEPS = "each step rounded to fp16, sums exact, a variance beyond fp16 too"
_FORMULA = "the formula itself, one rounding to fp16, halves away from zero"
_INVERSE = "times the inverse of the table, rounded to fp16"

_RULES = {
    "matmul": _PRODUCTS,
    "conv": _PRODUCTS,
    **dict.fromkeys(("relu", "relu6", "clip"), Rule("no rounding", "exact")),
    **dict.fromkeys(("add", "mul", "cast"), Rule(_ONE_ROUNDING, "measured")),
    **dict.fromkeys(("sub", "square"), Rule(_ONE_ROUNDING, "decoded")),
    **dict.fromkeys(
        ("leaky_relu", "prelu", "threshold", "thresholded_relu", "linear_activation"), Rule(_ONE_ROUNDING, "inferred")
    ),
    **dict.fromkeys(
        ("abs", "neg", "sign", "ceil", "floor", "round", "maximum", "minimum", "max_pool", "reduce_max", "reduce_min"),
        Rule("no rounding", "inferred"),
    ),
    **dict.fromkeys(
        ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
        Rule("as numbers, a NaN as infinity", "inferred"),
    ),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor", "logical_not"), Rule("no rounding", "inferred")),
    "real_div": Rule(_INVERSE, "decoded"),
    "floor_div": Rule(f"the floor of: {_INVERSE}", "decoded"),
    "hard_swish": Rule("scale and offset, clamp, scale, product: each rounded to fp16", "decoded"),
    "sigmoid_hard": Rule("scale and offset, rounded to fp16, then clamped", "decoded"),
    "elu": Rule("by the table of exp2, each step rounded to fp16", "inferred"),
    "softsign": Rule("by the table of inverse, each step rounded to fp16", "inferred"),
    **dict.fromkeys(("reduce_sum", "reduce_mean"), Rule(_SUM, "open")),
    "avg_pool": Rule("a sum, one rounding to fp16", "open"),
    "softmax": Rule(f"less the maximum, exp, times the inverse of the sum: {_STEPS}", "open"),
    "layer_norm": Rule(f"less the mean, times the rsqrt of the variance, gamma, beta: {_STEPS}", "open"),
    "rms_norm": Rule(f"times the rsqrt of the mean square, gamma: {_STEPS}", "open"),
    "scaled_dot_product_attention": Rule(
        f"products in fixed point, scale and mask rounded to fp16, softmax: {_STEPS}", "open"
    ),
    "softplus": Rule("0 above 10.394 (measured), else the function itself, rounded to fp16", "open"),
    "cos": Rule("by the table of sin, a quarter of the period ahead", "inferred"),
    "selu": Rule("elu by the table of exp2, then the gain: each step rounded to fp16", "inferred"),
    "celu": Rule("a gain, exp by the table of exp2, less 1, a gain: each step rounded to fp16", "inferred"),
    "scaled_tanh": Rule("a gain, the table of tanh, a gain: each step rounded to fp16", "inferred"),
    "dequantize": Rule(f"less the zero point, times the scale in fp32, {_ONE_ROUNDING}", "inferred"),
    # Ops of the engine whose steps are not published.
    "atan": Rule(f"{_FORMULA}; the compiler has two tables, whose knots are not published", "open"),
    "pow": Rule(f"{_FORMULA}; M5 errs by 0.00018 on unpublished inputs, about as one rounding does", "open"),
    "cumsum": Rule(f"{_FORMULA}; in which order the chip adds is not published", "open"),
    "local_response_norm": Rule(f"{_FORMULA}; the steps of the chip's unit are not published", "open"),
    "resize_linear": Rule(
        f"{_FORMULA}, in fp32 before it; the weights that the texture engine uses are not published", "open"
    ),
}
_IEEE = {  # ops without a kernel in the engine's arithmetic
    **dict.fromkeys(("argsort", "topk", "reduce_argmax", "reduce_argmin"), Rule("no rounding", "inferred")),
    "quantize": Rule("how the chip rounds to integers, halves above all, is not published", "open"),
}


def rule_of(kernel: str, epilogue: Sequence[EpilogueSlot] = ()) -> Rule:
    """Returns the rule of a kernel in the engine's arithmetic. The rules of fused activations are appended. A rule with
    an unknown part has the status "open"."""
    rule = _rule(kernel)
    for slot in epilogue:
        after = _rule(slot.op)
        text = (
            f"{rule.text}; then {slot.op}: {after.text}"
            if after is not UNKNOWN
            else f"{rule.text}; then {slot.op} in IEEE arithmetic"
        )
        weaker = max(rule.status, after.status, key=list(STATUSES).index)
        rule = Rule(text, weaker)
    return rule


def ieee_rule_of(kernel: str) -> Rule:
    """Returns why a step of the engine is computed in IEEE arithmetic."""
    return _IEEE.get(kernel, UNKNOWN)


def _rule(op: str) -> Rule:
    if op in _RULES:
        return _RULES[op]
    name = TABLE_OF.get(op, op)
    if name not in activations():
        return UNKNOWN
    known = activations()[name].status
    return Rule(f"by the table of {name}", "measured" if known == "verified" else known)
