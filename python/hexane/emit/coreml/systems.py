"""The oldest iOS version that has an op of MIL with its arguments and dtypes. Source: the registry of coremltools
9.0."""

from collections.abc import Mapping
from typing import Any

from hexane.dtypes import BOOL, FP16, FP32, INT32, DType
from hexane.graph import Node, Value
from hexane.mil.forms import MilCall
from hexane.ops.encodings import is_encoded

# By iOS version: the name of its opset, and the model version.
OPSETS: Mapping[int, tuple[str, int]] = {15: ("CoreML5", 6), 16: ("CoreML6", 7), 17: ("CoreML7", 8), 18: ("CoreML8", 9)}
OLDEST, NEWEST = min(OPSETS), max(OPSETS)

_FLOATS = (FP16, FP32)
_NUMBERS = (*_FLOATS, INT32)
_ALL = (*_NUMBERS, BOOL)
# Ops that support more dtypes than floats, by these dtypes. From iOS 17 on, moves and gathers support integers
# of 8 and 16 bits.
_TABLE = """
moves: cast concat expand_dims reshape reverse slice_by_index slice_by_size squeeze stack transpose
gathers: gather gather_along_axis gather_nd topk
all: flatten2d identity select split tile
numbers: abs add argsort cumsum equal exp2 floor_div greater greater_equal less less_equal linear matmul maximum minimum
numbers: mod mul not_equal pow real_div reduce_argmax reduce_argmin reduce_l1_norm reduce_l2_norm reduce_log_sum
numbers: reduce_log_sum_exp reduce_max reduce_mean reduce_min reduce_prod reduce_sum reduce_sum_square
numbers: scatter_along_axis scatter_nd sign square sub threshold
truths: logical_and logical_not logical_or logical_xor
"""
_KIND = {op: kind for kind, _, ops in (line.partition(":") for line in _TABLE.split("\n")) for op in ops.split()}
_TAKES = {"moves": _ALL, "all": _ALL, "gathers": _NUMBERS, "numbers": _NUMBERS, "truths": (BOOL,)}
_SINCE: Mapping[str, int] = {
    "pixel_unshuffle": 16, "constexpr_affine_dequantize": 16, "quantize": 17, "dequantize": 17,
    "constexpr_blockwise_shift_scale": 18, "constexpr_lut_to_dense": 18, "constexpr_lut_to_sparse": 18,
    "constexpr_sparse_to_dense": 18, "scaled_dot_product_attention": 18, "slice_update": 18,
}  # fmt: skip
# Arguments of newer iOS versions, and the behaviour of older ones.
_LATER: Mapping[tuple[str, str], tuple[int, Any]] = {
    ("gather", "batch_dims"): (16, 0),
    ("gather", "validate_indices"): (17, False),
    ("gather_along_axis", "validate_indices"): (17, False),
    ("gather_nd", "batch_dims"): (16, 0),
    ("gather_nd", "validate_indices"): (17, False),
    ("scatter_along_axis", "validate_indices"): (17, False),
    ("scatter_nd", "validate_indices"): (17, False),
    ("topk", "sort"): (16, True),
    ("topk", "return_indices"): (16, True),
    ("topk", "output_indices_dtype"): (17, INT32),
    ("reduce_argmax", "output_dtype"): (17, INT32),
    ("reduce_argmin", "output_dtype"): (17, INT32),
}
_IN_CONSTANTS = ("bias", "gamma", "beta", "mean", "variance")


def least_system(form: MilCall, node: Node) -> int | None:
    """Returns the oldest iOS version that has the op in this form, or None if there is none."""
    result = _SINCE.get(form.op, OLDEST)
    for (op, argument), (year, before) in _LATER.items():
        if op == form.op and form.arguments.get(argument, before) != before:
            result = max(result, year)
    if form.op.startswith("constexpr_"):
        return result
    for name, argument in form.arguments.items():
        for value in argument if isinstance(argument, tuple) and not isinstance(argument, Value) else (argument,):
            if not isinstance(value, Value) or name in ("scale", "zero_point"):
                continue
            of_dtype = _of_dtype(form.op, name, value.dtype)
            if of_dtype is None:
                return None
            result = max(result, of_dtype)
    if form.op == "cast":
        of_result = _of_dtype("cast", "x", node.types[0].dtype)
        return None if of_result is None else max(result, of_result)
    if form.op in ("conv", "conv_transpose") and _computed(form, "weight", "bias"):
        # coremltools' type inference fails for computed weights of conv_transpose.
        narrow = form.op == "conv_transpose" or max(node.attrs["dilations"], default=1) > 1
        return None if narrow and _computed(form, "weight") else max(result, 17)
    return None if _computed(form, *_IN_CONSTANTS) else result


def arguments_of(form: MilCall, system: int) -> dict[str, Any]:
    """Returns the arguments that the iOS version supports."""
    return {
        name: value
        for name, value in form.arguments.items()
        if _LATER.get((form.op, name), (OLDEST, None))[0] <= system
    }


def _of_dtype(op: str, argument: str, dtype: DType) -> int | None:
    kind = _KIND.get(op, "floats")
    if argument == "cond":
        return OLDEST if dtype is BOOL else None
    if argument == "indices":
        small = {"int8": 17, "uint8": 17, "int16": 16, "uint16": 16}
        return OLDEST if dtype is INT32 else small.get(dtype.name) if kind == "gathers" else None
    if argument == "attn_mask" and dtype is BOOL:
        return NEWEST
    if op == "dequantize":
        return 17 if dtype.name in ("int8", "uint8") else None
    if dtype in _TAKES.get(kind, _FLOATS):
        return OLDEST
    is_small = dtype.name in ("int8", "uint8", "int16", "uint16")
    return 17 if is_small and kind in ("moves", "gathers") else None


def _computed(form: MilCall, *names: str) -> bool:
    given = [form.arguments.get(name) for name in names]
    return any(isinstance(v, Value) and v.node.op != "const" and not is_encoded(v.node) for v in given)
