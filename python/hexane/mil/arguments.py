"""The arguments of MIL's ops: one table for the writers and the readers of MIL.

Each line is an op and its arguments in Core ML's order. An argument is NAME or NAME:KIND. An argument without a kind is
a tensor:

    values   several tensors             int, ints, bool, bools, float, factor, str, dtype   constants
    weight   a tensor that is constant   ?        may be left out                     =VALUE  the same, and means VALUE then

MIL text has no defaults: every argument is written. `!` marks arguments for which Core ML's tools have defaults but the
engine's compiler does not. The compiler and this reader refuse text without an argument marked `!`.
"""  # noqa: E501

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from hexane.errors import Error

TABLE = """
abs x
acos x
add x y
affine x transform_matrix output_height:int output_width:int sampling_mode:str padding_mode:str padding_value:float coordinates_mode:str align_corners:bool
argsort x axis:int=-1 ascending:bool=false
asin x
atan x
atanh x
avg_pool x kernel_sizes:ints strides:ints? pad_type:str pad:ints? exclude_padding_from_average:bool=false ceil_mode:bool=false
batch_norm x mean:weight variance:weight gamma:weight? beta:weight? epsilon:float=1e-5
cast x dtype:dtype
ceil x
clamped_relu x alpha:float beta:float
clip x alpha:float beta:float
concat values:values axis:int interleave:bool!
constexpr_affine_dequantize quantized_data:weight zero_point:weight scale:weight axis:int
constexpr_blockwise_shift_scale data:weight scale:weight offset:weight?
constexpr_cast source_val:weight output_dtype:dtype
constexpr_lut_to_dense indices:weight lut:weight vector_axis:int?
constexpr_lut_to_sparse indices_mask:weight indices_nonzero_data:weight lut:weight vector_axis:int?
constexpr_sparse_to_dense nonzero_data:weight mask:weight
conv x weight bias? strides:ints? pad_type:str=valid pad:ints? dilations:ints? groups:int=1
conv_transpose x weight bias? pad:ints? output_shape:ints? pad_type:str=valid strides:ints? dilations:ints? groups:int=1
cos x
cosh x
crop x crop_height:ints crop_width:ints
cumsum x axis:int=0 exclusive:bool=false reverse:bool=false
depth_to_space x block_size:int
dequantize input zero_point:weight? scale:weight axis:int?
einsum values:values equation:str
elu x alpha:float
equal x y
erf x
exp x
exp2 x
expand_dims x axes:ints
flatten2d x axis:int=1
floor x
floor_div x y
gather x indices axis:int=0 batch_dims:int=0 validate_indices:bool=false
gather_along_axis x indices axis:int=0 validate_indices:bool=false
gather_nd x indices batch_dims:int=0 validate_indices:bool=false
gelu x mode:str!
greater x y
greater_equal x y
identity x
instance_norm x gamma:weight? beta:weight? epsilon:float=1e-5
inverse x epsilon:float!
l2_norm x epsilon:float=1e-6
layer_norm x axes:ints? gamma:weight? beta:weight? epsilon:float=1e-5
leaky_relu x alpha:float
less x y
less_equal x y
linear x weight:weight bias:weight?
linear_activation x alpha:float beta:float
local_response_norm x size:int alpha:float=1e-4 beta:float=0.75 k:float=1.0
log x epsilon:float!
logical_and x y
logical_not x
logical_or x y
logical_xor x y
matmul x y transpose_x:bool! transpose_y:bool!
max_pool x kernel_sizes:ints strides:ints? pad_type:str pad:ints? ceil_mode:bool=false
maximum x y
minimum x y
mod x y
mul x y
not_equal x y
pad x pad:ints mode:str=constant constant_val:float=0.0
pixel_shuffle x upscale_factor:int
pixel_unshuffle x downscale_factor:int
pow x y
prelu x alpha:weight
quantize input zero_point:weight? scale:weight axis:int? output_dtype:dtype
real_div x y
reduce_argmax x axis:int=-1 keep_dims:bool=false output_dtype:dtype=int32
reduce_argmin x axis:int=-1 keep_dims:bool=false output_dtype:dtype=int32
reduce_l1_norm x axes:ints! keep_dims:bool!
reduce_l2_norm x axes:ints! keep_dims:bool!
reduce_log_sum x axes:ints! keep_dims:bool!
reduce_log_sum_exp x axes:ints! keep_dims:bool!
reduce_max x axes:ints! keep_dims:bool!
reduce_mean x axes:ints! keep_dims:bool!
reduce_min x axes:ints! keep_dims:bool!
reduce_prod x axes:ints! keep_dims:bool!
reduce_sum x axes:ints! keep_dims:bool!
reduce_sum_square x axes:ints! keep_dims:bool!
relu x
relu6 x
resample x coordinates sampling_mode:str padding_mode:str padding_value:float coordinates_mode:str align_corners:bool
reshape x shape:ints
resize_bilinear x target_size_height:int=1 target_size_width:int=1 sampling_mode:str=DEFAULT
resize_nearest_neighbor x target_size_height:int target_size_width:int
reverse x axes:ints?
round x
rsqrt x epsilon:float!
scaled_dot_product_attention query key value attn_mask?
scaled_tanh x alpha:float beta:float
select cond a b
sigmoid x
sigmoid_hard x alpha:float beta:float
sign x
silu x
sin x
sinh x
slice_by_index x begin:ints end:ints stride:ints? begin_mask:bools? end_mask:bools? squeeze_mask:bools?
slice_by_size x begin:ints size:ints
softmax x axis:int!
softplus x
softsign x
space_to_depth x block_size:int
split x num_splits:int? split_sizes:ints? axis:int
sqrt x
square x
squeeze x axes:ints?
stack values:values axis:int
sub x y
tan x
tanh x
threshold x alpha:float
thresholded_relu x alpha:float
tile x reps:ints
topk x k:int=1 axis:int=-1 ascending:bool=false sort:bool=true return_indices:bool=true output_indices_dtype:dtype=int32
transpose x perm:ints
upsample_bilinear x scale_factor_height:factor=1 scale_factor_width:factor=1 align_corners:bool=true half_pixel_centers:bool?
upsample_nearest_neighbor x scale_factor_height:factor=1 scale_factor_width:factor=1
"""  # noqa: E501

# Ops of early opsets that are written with their arguments, all constant, in square brackets: op()[axis = int32(0),
# ..]. With arguments in parentheses, the engine's compiler fails with InvalidMILProgram.
IN_BRACKETS = frozenset({"constexpr_affine_dequantize"})


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument of an op. default: None if there is none, or if it depends on other arguments."""

    name: str
    kind: str = ""  # "" and "weight" mean a tensor
    optional: bool = False
    default: Any = None
    insisted: bool = False  # Core ML's tools have a default, the engine's compiler has none

    @property
    def is_tensor(self) -> bool:
        return self.kind in ("", "weight", "values")


@cache
def parameters() -> Mapping[str, tuple[Parameter, ...]]:
    """Returns the parameters of every op."""
    rows = (line.split() for line in TABLE.strip().splitlines())
    return {op: tuple(map(_parameter, words)) for op, *words in rows}


def read_parameters(words: Sequence[str]) -> tuple[Parameter, ...]:
    """Returns the parameters of a table line without its op."""
    return tuple(map(_parameter, words))


def parameters_of(op: str) -> tuple[Parameter, ...]:
    if op not in parameters():
        raise Error(f"got the op {op}, need one that can be read (mil/arguments.py has them)")
    return parameters()[op]


def _parameter(word: str) -> Parameter:
    word, equals, default = word.partition("=")
    name, _, kind = word.rstrip("?!").partition(":")
    value = _CONVERT[kind](default) if equals else None
    return Parameter(name, kind, bool(equals) or word.endswith("?"), value, word.endswith("!"))


_CONVERT: Mapping[str, Any] = {
    "int": int,
    "bool": lambda v: v == "true",
    "float": float,
    "factor": float,
    "str": str,
    "dtype": str,
    "ints": lambda v: tuple(map(int, v.split(","))),
}
