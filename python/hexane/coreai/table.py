"""The Core AI operation for each op of the catalogue, and the numbers of settings. Reader and writer share this table.

Source: assets that Apple's converter (coreai-torch 0.4) wrote, and the descriptions of operations in coreai-core
1.0.0b3.
"""

# UNARY and BINARY ops are written as `primitive.NAME`, BINARY ops also as `broadcasting_NAME`.
UNARY = ("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp", "log", "round", "rsqrt",
         "sin", "sinh", "sqrt", "tan", "tanh")  # fmt: skip
BINARY = {
    "add": "add", "sub": "sub", "mul": "mul", "real_div": "divide", "floor_div": "floor_divide", "fmod": "modulo",
    "pow": "pow", "maximum": "maximum", "minimum": "minimum", "equal": "equal", "not_equal": "not_equal",
    "greater": "greater", "logical_and": "logical_and", "logical_or": "logical_or", "logical_xor": "logical_xor",
    "bitwise_and": "bitwise_and", "bitwise_or": "bitwise_or", "bitwise_xor": "bitwise_xor",
}  # fmt: skip
ACTIVATIONS = ("relu", "sigmoid", "silu")  # operations with bodies
# Reductions are written as `reduce_NAME`.
REDUCTIONS = {"reduce_sum": "sum", "reduce_mean": "mean", "reduce_max": "max", "reduce_min": "min",
              "reduce_prod": "product"}  # fmt: skip
# The operation of BINARY that combines two elements in the body of a reduction, a scatter or a scan.
STEP_OF_REDUCTION = {"reduce_sum": "add", "reduce_prod": "mul", "reduce_max": "maximum", "reduce_min": "minimum"}
STEP_OF_SCATTER = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum", "sub": "sub"}

# The numbers of settings, by the settings' names in the catalogue.
GELU = {"gelu": 0, "gelu_tanh": 1}
PADDING = {"wrap": 0, "constant": 1, "reflect": 2, "edge": 3}
SCATTER = {"update": 0, "add": 1, "sub": 2, "mul": 3, "div": 4, "max": 5, "min": 6}
SCAN = {"cumsum": 0, "cumprod": 1}
INTERPOLATION = {"linear": 0, "nearest": 1}


def by_number(settings: dict[str, int]) -> dict[int, str]:
    return {number: name for name, number in settings.items()}
