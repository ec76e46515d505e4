# Signatures of hexane.build. `python -m hexane.cli.stub` writes the second part; a test holds it equal to the records.
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hexane.dtypes import DType
from hexane.graph import Graph, TensorType, Value
from hexane.ops import Op

class Tensor:
    value: Value
    def __init__(self, value: Value) -> None: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def type(self) -> TensorType: ...
    def __repr__(self) -> str: ...
    def __bool__(self) -> bool: ...
    def __iter__(self) -> Any: ...
    def __add__(self, other: Any) -> Tensor: ...
    def __radd__(self, other: Any) -> Tensor: ...
    def __sub__(self, other: Any) -> Tensor: ...
    def __rsub__(self, other: Any) -> Tensor: ...
    def __mul__(self, other: Any) -> Tensor: ...
    def __rmul__(self, other: Any) -> Tensor: ...
    def __truediv__(self, other: Any) -> Tensor: ...
    def __rtruediv__(self, other: Any) -> Tensor: ...
    def __floordiv__(self, other: Any) -> Tensor: ...
    def __rfloordiv__(self, other: Any) -> Tensor: ...
    def __mod__(self, other: Any) -> Tensor: ...
    def __rmod__(self, other: Any) -> Tensor: ...
    def __pow__(self, other: Any) -> Tensor: ...
    def __rpow__(self, other: Any) -> Tensor: ...
    def __matmul__(self, other: Any) -> Tensor: ...
    def __rmatmul__(self, other: Any) -> Tensor: ...
    def __neg__(self) -> Tensor: ...
    def __abs__(self) -> Tensor: ...
    def __invert__(self) -> Tensor: ...
    def __and__(self, other: Any) -> Tensor: ...
    def __rand__(self, other: Any) -> Tensor: ...
    def __or__(self, other: Any) -> Tensor: ...
    def __ror__(self, other: Any) -> Tensor: ...
    def __xor__(self, other: Any) -> Tensor: ...
    def __rxor__(self, other: Any) -> Tensor: ...
    def __lshift__(self, other: Any) -> Tensor: ...
    def __rlshift__(self, other: Any) -> Tensor: ...
    def __rshift__(self, other: Any) -> Tensor: ...
    def __rrshift__(self, other: Any) -> Tensor: ...
    def __eq__(self, other: Any) -> Tensor: ...  # type: ignore[override]
    def __ne__(self, other: Any) -> Tensor: ...  # type: ignore[override]
    def __lt__(self, other: Any) -> Tensor: ...
    def __le__(self, other: Any) -> Tensor: ...
    def __gt__(self, other: Any) -> Tensor: ...
    def __ge__(self, other: Any) -> Tensor: ...
    def __getitem__(self, index: Any) -> Tensor: ...

def input(name: str, shape: Sequence[int], dtype: object = "fp32") -> Tensor:
    """An input of the program, called `name`. Raises Error for a bad shape or dtype."""

def const(array: Any, dtype: object = None) -> Tensor:
    """A constant: anything NumPy takes. Python floats become fp32, ints int32, unless dtype says otherwise."""

def param(
    name: str, array: Any = None, dtype: object = None, *, shape: Sequence[int] | None = None, init: Any = None
) -> Tensor:
    """A named constant that a compiled model can replace: `net.update(name=array)`."""

def state(
    name: str, array: Any = None, dtype: object = None, init: Any = None, *, shape: Sequence[int] | None = None
) -> Tensor:
    """A tensor that survives calls, zero at first unless `init` says otherwise; `write_state` updates it in place."""

def stream(seed: int | None = None, name: str | None = None) -> Tensor:
    """The numbers that one random op draws, others in every call: `hx.random_normal(hx.stream(7), shape=(2, 3))`.

    A model that is loaded or reset (`net.reset_state()`) begins anew. If seed is None, the operating system gives one, which
    then is the model's own.
    """

def graph(
    outputs: Tensor | Sequence[Tensor] | Mapping[str, Tensor], updates: Sequence[Tensor] = (), name: str = "graph"
) -> Graph:
    """The program that computes the outputs: one tensor, several, or several by name.

    An output is named after its op (softmax, then softmax_1) unless named. `updates` are results of write_state to run
    though no output depends on them. Raises Error where two ports share a name.
    """

def signature(op: Op) -> inspect.Signature:
    """Inputs by position or name, then attributes by name."""

FUNCTIONS: dict[str, Callable[..., Any]]
LEFT_OUT: set[tuple[str, str]]

Operand = Tensor | np.ndarray[Any, Any] | float

# ---- derived from the records ----

def abs(x: Operand) -> Tensor:
    """The absolute value."""

def neg(x: Operand) -> Tensor:
    """The negative."""

def ceil(x: Operand) -> Tensor:
    """The smallest integer not below x."""

def floor(x: Operand) -> Tensor:
    """The largest integer not above x."""

def round(x: Operand) -> Tensor:
    """The nearest integer, halves to even."""

def sign(x: Operand) -> Tensor:
    """-1, 0 or 1."""

def sqrt(x: Operand) -> Tensor:
    """The square root."""

def rsqrt(x: Operand) -> Tensor:
    """1 / sqrt(x)."""

def inverse(x: Operand) -> Tensor:
    """1 / x."""

def square(x: Operand) -> Tensor:
    """x * x."""

def exp(x: Operand) -> Tensor:
    """e to the x."""

def exp2(x: Operand) -> Tensor:
    """2 to the x."""

def log(x: Operand) -> Tensor:
    """The natural logarithm."""

def erf(x: Operand) -> Tensor:
    """The error function."""

def sin(x: Operand) -> Tensor:
    """The sine."""

def cos(x: Operand) -> Tensor:
    """The cosine."""

def tan(x: Operand) -> Tensor:
    """The tangent."""

def asin(x: Operand) -> Tensor:
    """The inverse sine."""

def acos(x: Operand) -> Tensor:
    """The inverse cosine."""

def atan(x: Operand) -> Tensor:
    """The inverse tangent."""

def sinh(x: Operand) -> Tensor:
    """The hyperbolic sine."""

def cosh(x: Operand) -> Tensor:
    """The hyperbolic cosine."""

def asinh(x: Operand) -> Tensor:
    """The inverse hyperbolic sine."""

def acosh(x: Operand) -> Tensor:
    """The inverse hyperbolic cosine."""

def atanh(x: Operand) -> Tensor:
    """The inverse hyperbolic tangent."""

def tanh(x: Operand) -> Tensor:
    """The hyperbolic tangent."""

def sigmoid(x: Operand) -> Tensor:
    """1 / (1 + e^-x)."""

def relu(x: Operand) -> Tensor:
    """x where positive, else 0."""

def relu6(x: Operand) -> Tensor:
    """x clipped to 0..6."""

def leaky_relu(x: Operand, *, alpha: float = ...) -> Tensor:
    """x where positive, else alpha * x."""

def elu(x: Operand, *, alpha: float = ...) -> Tensor:
    """x where positive, else alpha * (e^x - 1)."""

def celu(x: Operand, *, alpha: float = ...) -> Tensor:
    """max(0, x) + min(0, alpha * (e^(x / alpha) - 1))."""

def selu(x: Operand, *, alpha: float = ..., beta: float = ...) -> Tensor:
    """beta * x where positive, else beta * alpha * (e^x - 1)."""

def gelu(x: Operand) -> Tensor:
    """x * (1 + erf(x / sqrt 2)) / 2."""

def gelu_tanh(x: Operand) -> Tensor:
    """The tanh approximation of gelu."""

def silu(x: Operand) -> Tensor:
    """x * sigmoid(x)."""

def hard_swish(x: Operand) -> Tensor:
    """x * clip(x / 6 + 1/2, 0, 1)."""

def mish(x: Operand) -> Tensor:
    """x * tanh(softplus(x))."""

def softplus(x: Operand) -> Tensor:
    """log(1 + e^x)."""

def softsign(x: Operand) -> Tensor:
    """x / (1 + |x|)."""

def sigmoid_hard(x: Operand, *, alpha: float = ..., beta: float = ...) -> Tensor:
    """clip(alpha * x + beta, 0, 1)."""

def clip(x: Operand, *, alpha: float = ..., beta: float = ...) -> Tensor:
    """x clamped to alpha..beta; NaN stays NaN. For integers the bounds are rounded to integers between them."""

def scaled_tanh(x: Operand, *, alpha: float = ..., beta: float = ...) -> Tensor:
    """alpha * tanh(beta * x)."""

def thresholded_relu(x: Operand, *, alpha: float = ...) -> Tensor:
    """x where above alpha, else 0."""

def threshold(x: Operand, *, alpha: float = ...) -> Tensor:
    """max(x, alpha)."""

def linear_activation(x: Operand, *, alpha: float = ..., beta: float = ...) -> Tensor:
    """alpha * x + beta."""

def logical_not(x: Operand) -> Tensor:
    """True where x is False."""

def add(x: Operand, y: Operand) -> Tensor:
    """x + y, broadcast."""

def sub(x: Operand, y: Operand) -> Tensor:
    """x - y, broadcast."""

def mul(x: Operand, y: Operand) -> Tensor:
    """x * y, broadcast."""

def real_div(x: Operand, y: Operand) -> Tensor:
    """x / y, broadcast; integers truncate toward zero."""

def floor_div(x: Operand, y: Operand) -> Tensor:
    """floor(x / y), broadcast."""

def mod(x: Operand, y: Operand) -> Tensor:
    """x - y * floor(x / y), the remainder with the sign of y, broadcast."""

def fmod(x: Operand, y: Operand) -> Tensor:
    """The remainder of x / y with the sign of x, broadcast."""

def maximum(x: Operand, y: Operand) -> Tensor:
    """The larger of x and y, broadcast; NaN if either is."""

def minimum(x: Operand, y: Operand) -> Tensor:
    """The smaller of x and y, broadcast; NaN if either is."""

def pow(x: Operand, y: Operand) -> Tensor:
    """x to the power y, broadcast."""

def prelu(x: Operand, y: Operand) -> Tensor:
    """x where positive, else x * y, broadcast: slopes (C, 1, 1) for an image."""

def equal(x: Operand, y: Operand) -> Tensor:
    """x == y."""

def not_equal(x: Operand, y: Operand) -> Tensor:
    """x != y."""

def greater(x: Operand, y: Operand) -> Tensor:
    """x > y."""

def greater_equal(x: Operand, y: Operand) -> Tensor:
    """x >= y."""

def less(x: Operand, y: Operand) -> Tensor:
    """x < y."""

def less_equal(x: Operand, y: Operand) -> Tensor:
    """x <= y."""

def logical_and(x: Operand, y: Operand) -> Tensor:
    """True where x and y are both True."""

def logical_or(x: Operand, y: Operand) -> Tensor:
    """True where x or y is True."""

def logical_xor(x: Operand, y: Operand) -> Tensor:
    """True where exactly one of x and y is True."""

def bitwise_and(x: Operand, y: Operand) -> Tensor:
    """The bits set in both x and y, broadcast."""

def bitwise_or(x: Operand, y: Operand) -> Tensor:
    """The bits set in x, in y or in both, broadcast."""

def bitwise_xor(x: Operand, y: Operand) -> Tensor:
    """The bits set in exactly one of x and y, broadcast."""

def shift_left(x: Operand, y: Operand) -> Tensor:
    """The bits of x moved up by y, broadcast."""

def shift_right(x: Operand, y: Operand) -> Tensor:
    """The bits of x moved down by y and filled with copies of the sign bit, broadcast."""

def bit_cast(x: Operand, *, dtype: object) -> Tensor:
    """The bits of x as another dtype of the same size."""

def select(cond: Operand, a: Operand, b: Operand) -> Tensor:
    """a where cond (bool) is True, else b, all broadcast."""

def cast(x: Operand, *, dtype: object) -> Tensor:
    """x as another dtype; floats truncate to integers, saturating, NaN to 0."""

def bitwise_not(x: Operand) -> Tensor:
    """An integer with every bit inverted."""

def is_nan(x: Operand) -> Tensor:
    """True where x is not a number."""

def is_inf(x: Operand, *, detect_negative: bool = ..., detect_positive: bool = ...) -> Tensor:
    """True where x is infinite; detect_negative and detect_positive: which infinities count."""

def clamped_relu(x: Operand, *, alpha: float, beta: float) -> Tensor:
    """x where positive, else alpha * x; at most beta."""

def shrink(x: Operand, *, bias: float = ..., lambd: float = ...) -> Tensor:
    """x - bias above lambd, x + bias below -lambd, 0 between them."""

def reduce_sum(x: Operand, *, axes: int | Sequence[int] = ..., keep_dims: bool = ...) -> Tensor:
    """The sum over axes (none named: all of them)."""

def reduce_mean(x: Operand, *, axes: int | Sequence[int] = ..., keep_dims: bool = ...) -> Tensor:
    """The mean over axes (none named: all of them)."""

def reduce_max(x: Operand, *, axes: int | Sequence[int] = ..., keep_dims: bool = ...) -> Tensor:
    """The maximum over axes (none named: all of them)."""

def reduce_min(x: Operand, *, axes: int | Sequence[int] = ..., keep_dims: bool = ...) -> Tensor:
    """The minimum over axes (none named: all of them)."""

def reduce_prod(x: Operand, *, axes: int | Sequence[int] = ..., keep_dims: bool = ...) -> Tensor:
    """The product over axes (none named: all of them)."""

def reduce_sum_square(x: Operand, *, axes: int | Sequence[int] = ..., keep_dims: bool = ...) -> Tensor:
    """The sum of squares over axes (none named: all of them)."""

def reduce_l1_norm(x: Operand, *, axes: int | Sequence[int] = ..., keep_dims: bool = ...) -> Tensor:
    """The sum of absolute values over axes (none named: all of them)."""

def reduce_l2_norm(x: Operand, *, axes: int | Sequence[int] = ..., keep_dims: bool = ...) -> Tensor:
    """The square root of the sum of squares over axes (none named: all of them)."""

def reduce_log_sum(x: Operand, *, axes: int | Sequence[int] = ..., keep_dims: bool = ...) -> Tensor:
    """The logarithm of the sum over axes (none named: all of them)."""

def reduce_log_sum_exp(x: Operand, *, axes: int | Sequence[int] = ..., keep_dims: bool = ...) -> Tensor:
    """log(sum(e^x)) over axes (none named: all of them)."""

def reduce_argmax(x: Operand, *, axis: int = ..., keep_dims: bool = ..., dtype: object = ...) -> Tensor:
    """The index of the first maximum along an axis."""

def reduce_argmin(x: Operand, *, axis: int = ..., keep_dims: bool = ..., dtype: object = ...) -> Tensor:
    """The index of the first minimum along an axis."""

def softmax(x: Operand, *, axis: int = ...) -> Tensor:
    """e^x / sum(e^x) along an axis."""

def log_softmax(x: Operand, *, axis: int = ...) -> Tensor:
    """x - log(sum(e^x)) along an axis."""

def cumsum(x: Operand, *, axis: int = ..., exclusive: bool = ..., reverse: bool = ...) -> Tensor:
    """The running sum along an axis; exclusive: without the element itself; reverse: from the end."""

def cumprod(x: Operand, *, axis: int = ..., exclusive: bool = ..., reverse: bool = ...) -> Tensor:
    """The running product along an axis; exclusive: without the element itself; reverse: from the end."""

def hardmax(x: Operand, *, axis: int = ...) -> Tensor:
    """1 at the first maximum along an axis, else 0."""

def layer_norm(
    x: Operand,
    gamma: Operand | None = None,
    beta: Operand | None = None,
    *,
    axes: int | Sequence[int] = ...,
    epsilon: float = ...,
) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta over the last axes; gamma and beta have their shape."""

def rms_norm(
    x: Operand, gamma: Operand | None = None, *, axes: int | Sequence[int] = ..., epsilon: float = ...
) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) * gamma over the last axes; gamma has their shape."""

def batch_norm(
    x: Operand,
    mean: Operand,
    variance: Operand,
    gamma: Operand | None = None,
    beta: Operand | None = None,
    *,
    epsilon: float = ...,
    axis: int = ...,
) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta; each operand but x has one number per channel of `axis`."""

def instance_norm(
    x: Operand, gamma: Operand | None = None, beta: Operand | None = None, *, epsilon: float = ..., layout: str = ...
) -> Tensor:
    """Normalises each channel of each item of x (N, C, spatial...) over its spatial axes; gamma and beta (C,)."""

def local_response_norm(
    x: Operand, *, alpha: float = ..., beta: float = ..., k: float = ..., size: int, axis: int = ...
) -> Tensor:
    """x / (k + alpha / size * sum of squares of the `size` nearest channels of `axis`)^beta."""

def group_norm(
    x: Operand, gamma: Operand | None = None, beta: Operand | None = None, *, num_groups: int, epsilon: float = ...
) -> Tensor:
    """Normalises groups of channels of x (N, C, ...) over their channels and spatial axes: (x - mean) / sqrt(variance + epsilon) * gamma + beta, gamma and beta (C,)."""

def l2_norm(x: Operand, *, axes: int | Sequence[int] = ..., epsilon: float = ...) -> Tensor:
    """x / sqrt(sum(x^2) + epsilon) over axes."""

def lp_norm(x: Operand, *, p: int = ..., axis: int = ...) -> Tensor:
    """x / sum(|x|^p)^(1/p) along an axis; 0 where the sum is 0."""

def mean_variance_norm(x: Operand, *, axes: int | Sequence[int] = ..., epsilon: float = ...) -> Tensor:
    """(x - mean) / (sqrt(variance) + epsilon) over axes."""

def matmul(
    x: Operand, y: Operand, bias: Operand | None = None, *, transpose_x: bool = ..., transpose_y: bool = ...
) -> Tensor:
    """Matrix product over the last two axes, batched over the others with broadcasting."""

def linear(x: Operand, weight: Operand, bias: Operand | None = None) -> Tensor:
    """x @ weight.T + bias, weight (out, in)."""

def scaled_dot_product_attention(
    query: Operand,
    key: Operand,
    value: Operand,
    mask: Operand | None = None,
    *,
    scale: float = ...,
    causal: bool = ...,
    zero_hidden: bool = ...,
    hidden: float = ...,
) -> Tensor:
    """softmax(query @ key.T * scale + mask) @ value. A scale of 0 stands for 1 / sqrt(E). A bool mask keeps True; other scores become `hidden`. With zero_hidden, the NaN weights of a row whose keys are all hidden become 0."""

def rotary_embedding(x: Operand, cos: Operand, sin: Operand, *, interleaved: bool = ...) -> Tensor:
    """Rotates pairs of the last axis by angles. The pairs are neighbours if interleaved, else an element of the first half and one of the second."""

def trilu(x: Operand, *, k: int = ..., upper: bool = ...) -> Tensor:
    """The upper (or lower) triangle of matrices (..., rows, columns), with zeros elsewhere; k: the first (last) diagonal that is kept, counted upwards from the main one."""

def band_part(x: Operand, *, lower: int = ..., upper: int = ...) -> Tensor:
    """Matrices (..., rows, columns) with zeros except on the main diagonal, `lower` diagonals below it and `upper` diagonals above it (-1: all)."""

def det(x: Operand) -> Tensor:
    """The determinants of square matrices (..., n, n) of up to 4 rows."""

def einsum(*values: Operand | Sequence[Operand], equation: str) -> Tensor:
    """Products of tensors, summed over the axes that the output lacks, in the notation of `numpy.einsum`. For example, 'bij,bjk->bik' is a batched matrix product. The ellipsis '...' stands for axes that broadcast; a repeated letter in a term selects the diagonal."""

def cross_entropy(
    logits: Operand, labels: Operand, *, ignored: int = ..., label_smoothing: float = ..., reduction: str = ...
) -> Tensor:
    """-log of the label's share of softmax(logits), averaged over the labels that are not `ignored`. The logits are (.., classes), the labels (..) integers. label_smoothing: the part of a target that is divided equally among all classes. The mean of no labels is NaN."""

def mse(x: Operand, y: Operand, *, reduction: str = ...) -> Tensor:
    """The mean of (x - y)^2, its sum, or (x - y)^2 of each element."""

def batch_norm_training(
    x: Operand,
    mean: Operand,
    variance: Operand,
    gamma: Operand | None = None,
    beta: Operand | None = None,
    *,
    epsilon: float = ...,
    momentum: float = ...,
    axis: int = ...,
) -> tuple[Tensor, ...]:
    """`batch_norm` with the mean and variance of x itself over all axes but `axis`, and the new running statistics: `momentum` times the batch's mean and unbiased variance, plus 1 - `momentum` times the old ones. hx.train.batch_norm has the params for it."""

def accumulate_step(s: Operand, g: Operand, first: Operand) -> Tensor:
    """The sum of the gradients of several batches: g if `first`, a bool of shape (1,), is true, else s + g."""

def restart_sum(s: Operand, first: Operand) -> Tensor:
    """The sum of the gradients of several batches, before another gradient is added in place: 0 if `first`, a bool of shape (1,), is true, else s."""

def squared_norm(x: Operand, when: Operand | None = None) -> Tensor:
    """The sum of the squares of all elements, which the rates of an optimiser use; 0 if `when`, a bool of shape (1,), is false."""

def adam_step(
    w: Operand,
    g: Operand,
    m: Operand,
    v: Operand,
    rates: Operand,
    *,
    beta1: float = ...,
    beta2: float = ...,
    epsilon: float = ...,
    decay: float = ...,
    decoupled: bool = ...,
) -> tuple[Tensor, ...]:
    """Adam, or AdamW if the decay is decoupled: w, m and v after a step."""

def lion_step(
    w: Operand, g: Operand, m: Operand, rates: Operand, *, beta1: float = ..., beta2: float = ..., decay: float = ...
) -> tuple[Tensor, ...]:
    """Lion: w moves by the learning rate against the sign of the mixed momentum and gradient."""

def momentum_step(
    w: Operand,
    g: Operand,
    m: Operand,
    rates: Operand,
    *,
    momentum: float = ...,
    nesterov: bool = ...,
    decay: float = ...,
) -> tuple[Tensor, ...]:
    """Gradient descent with momentum, Nesterov's if asked for: w and the momentum after a step."""

def sgd_step(w: Operand, g: Operand, rates: Operand, *, decay: float = ...) -> Tensor:
    """Gradient descent: w after a step."""

def rnn(
    x: Operand,
    weight: Operand,
    recurrent: Operand,
    bias: Operand | None = None,
    lengths: Operand | None = None,
    initial_h: Operand | None = None,
    *,
    direction: str = ...,
    activations: str | Sequence[str] = ...,
    clip: float = ...,
    batch_first: bool = ...,
) -> tuple[Tensor, ...]:
    """A recurrent network: h = f(weight x + recurrent h + both biases). Shapes: x (time, batch, input), weight (directions, 1 * hidden, input), recurrent (directions, 1 * hidden, hidden), bias (directions, 2 * 1 * hidden), lengths (batch,), initial states (directions, batch, hidden). Returns y (time, directions, batch, hidden) and the last states; with batch_first, x is (batch, time, input), y (batch, time, directions, hidden) and states (batch, directions, hidden). The activations are tanh by default, for one or each direction. A clip other than 0 bounds their operands."""

def gru(
    x: Operand,
    weight: Operand,
    recurrent: Operand,
    bias: Operand | None = None,
    lengths: Operand | None = None,
    initial_h: Operand | None = None,
    *,
    direction: str = ...,
    activations: str | Sequence[str] = ...,
    clip: float = ...,
    batch_first: bool = ...,
    linear_before_reset: bool = ...,
) -> tuple[Tensor, ...]:
    """Gated recurrent units, with the gates in the order update, reset, new. With linear_before_reset the reset gate scales the product with the recurrent weight, else the product's operand h. Shapes: x (time, batch, input), weight (directions, 3 * hidden, input), recurrent (directions, 3 * hidden, hidden), bias (directions, 2 * 3 * hidden), lengths (batch,), initial states (directions, batch, hidden). Returns y (time, directions, batch, hidden) and the last states; with batch_first, x is (batch, time, input), y (batch, time, directions, hidden) and states (batch, directions, hidden). The activations are sigmoid, tanh by default, for one or each direction. A clip other than 0 bounds their operands."""

def lstm(
    x: Operand,
    weight: Operand,
    recurrent: Operand,
    bias: Operand | None = None,
    lengths: Operand | None = None,
    initial_h: Operand | None = None,
    initial_c: Operand | None = None,
    peephole: Operand | None = None,
    *,
    direction: str = ...,
    activations: str | Sequence[str] = ...,
    clip: float = ...,
    batch_first: bool = ...,
) -> tuple[Tensor, ...]:
    """Long short-term memory, with the gates in the order input, output, forget, new. With a peephole (directions, 3 * hidden), the first three gates also read the cell. Shapes: x (time, batch, input), weight (directions, 4 * hidden, input), recurrent (directions, 4 * hidden, hidden), bias (directions, 2 * 4 * hidden), lengths (batch,), initial states (directions, batch, hidden). Returns y (time, directions, batch, hidden) and the last states; with batch_first, x is (batch, time, input), y (batch, time, directions, hidden) and states (batch, directions, hidden). The activations are sigmoid, tanh, tanh by default, for one or each direction. A clip other than 0 bounds their operands."""

def conv(
    x: Operand,
    weight: Operand,
    bias: Operand | None = None,
    *,
    strides: int | Sequence[int] = ...,
    dilations: int | Sequence[int] = ...,
    pad: int | Sequence[int] = ...,
    groups: int = ...,
    layout: str = ...,
) -> Tensor:
    """Convolution (cross-correlation) of x (N, C, spatial...) with weight (out, C / groups, kernel...) and bias (out,). Strides and dilations are one number, or one for each spatial axis; pad may also be (begin, end) of every axis. With layout nhwc, x and the result have channels last."""

def conv_transpose(
    x: Operand,
    weight: Operand,
    bias: Operand | None = None,
    *,
    strides: int | Sequence[int] = ...,
    dilations: int | Sequence[int] = ...,
    pad: int | Sequence[int] = ...,
    output_padding: int | Sequence[int] = ...,
    groups: int = ...,
    layout: str = ...,
) -> Tensor:
    """Transposed convolution, the gradient of a convolution by its input: x (N, C, spatial...), weight (C, out / groups, kernel...), bias (out,). An output_padding adds to the end of every spatial axis."""

def conv_weight_gradient(
    x: Operand,
    g: Operand,
    *,
    kernel_sizes: int | Sequence[int],
    strides: int | Sequence[int] = ...,
    dilations: int | Sequence[int] = ...,
    pad: int | Sequence[int] = ...,
    groups: int = ...,
) -> Tensor:
    """The gradient of a convolution's weight (out, C / groups, kernel...), from its input x (N, H, W, C) and the gradient g (N, H', W', out) of its result."""

def max_pool(
    x: Operand,
    *,
    kernel_sizes: int | Sequence[int],
    strides: int | Sequence[int] = ...,
    dilations: int | Sequence[int] = ...,
    pad: int | Sequence[int] = ...,
    ceil_mode: bool = ...,
    layout: str = ...,
) -> Tensor:
    """The maximum of each window of x (N, C, spatial...). kernel_sizes, strides, dilations: one number, or one for each spatial axis; ceil_mode: windows may end outside."""

def max_pool_gradient(
    x: Operand,
    g: Operand,
    *,
    kernel_sizes: int | Sequence[int],
    strides: int | Sequence[int] = ...,
    dilations: int | Sequence[int] = ...,
    pad: int | Sequence[int] = ...,
    ceil_mode: bool = ...,
) -> Tensor:
    """The gradient of x (N, H, W, C) in a max_pool, from the result's gradient g (N, H', W', C): g goes to the first largest element of each window."""

def avg_pool(
    x: Operand,
    *,
    kernel_sizes: int | Sequence[int],
    strides: int | Sequence[int] = ...,
    dilations: int | Sequence[int] = ...,
    pad: int | Sequence[int] = ...,
    ceil_mode: bool = ...,
    exclude_padding: bool = ...,
    layout: str = ...,
) -> Tensor:
    """The mean of each window of x (N, C, spatial...). exclude_padding: only elements of x count. All other attributes are max_pool's."""

def lp_pool(
    x: Operand,
    *,
    p: int = ...,
    kernel_sizes: int | Sequence[int],
    strides: int | Sequence[int] = ...,
    dilations: int | Sequence[int] = ...,
    pad: int | Sequence[int] = ...,
) -> Tensor:
    """sum(|x|^p)^(1/p) of each window of x (N, C, spatial...)."""

def max_pool_with_indices(
    x: Operand,
    *,
    kernel_sizes: int | Sequence[int],
    strides: int | Sequence[int] = ...,
    dilations: int | Sequence[int] = ...,
    pad: int | Sequence[int] = ...,
    ceil_mode: bool = ...,
    column_major: bool = ...,
) -> tuple[Tensor, ...]:
    """max_pool of x (N, C, spatial...), and the index of each maximum (the first one) in the flattened x. With column_major, indices count the last two axes in exchanged order."""

def max_unpool(
    x: Operand,
    indices: Operand,
    *,
    kernel_sizes: int | Sequence[int],
    strides: int | Sequence[int] = ...,
    pad: int | Sequence[int] = ...,
    output_shape: int | Sequence[int] = ...,
) -> Tensor:
    """Zeros, except for the elements of x (N, C, spatial...) at the indices that max_pool_with_indices returned for these windows. output_shape adds zeros at the ends."""

def im2col(
    x: Operand,
    *,
    kernel_sizes: int | Sequence[int],
    strides: int | Sequence[int] = ...,
    dilations: int | Sequence[int] = ...,
    pad: int | Sequence[int] = ...,
) -> Tensor:
    """The windows of x (N, C, spatial...) as columns (N, C * taps, windows)."""

def col2im(
    x: Operand,
    *,
    image_shape: int | Sequence[int],
    kernel_sizes: int | Sequence[int],
    strides: int | Sequence[int] = ...,
    dilations: int | Sequence[int] = ...,
    pad: int | Sequence[int] = ...,
) -> Tensor:
    """Columns (N, C * taps, windows) added at their positions in an image (N, C, image_shape...): the transpose of im2col."""

def sliding_windows(x: Operand, *, axis: int, size: int, stride: int = ...) -> Tensor:
    """Windows of `size` along an axis, one every `stride`: (..., extent, ...) -> (..., windows, size, ...)."""

def identity(x: Operand) -> Tensor:
    """x."""

def stop_gradient(x: Operand) -> Tensor:
    """x, which `hx.grad` treats as a constant."""

def checkpointed(y: Operand, *starts: Operand | Sequence[Operand]) -> Tensor:
    """y, a result of a function under `hx.checkpoint`; starts: the inputs of that function."""

def reshape(x: Operand, *, shape: int | Sequence[int]) -> Tensor:
    """x's elements in another shape, in the same order; one dim may be -1 and takes all remaining elements."""

def transpose(x: Operand, *, perm: int | Sequence[int] = ...) -> Tensor:
    """x with its axes in another order: axis i of the result is axis perm[i] of x; reversed unless perm is given."""

def expand_dims(x: Operand, *, axes: int | Sequence[int]) -> Tensor:
    """x with new axes of extent 1. `axes` are their indices in the result."""

def squeeze(x: Operand, *, axes: int | Sequence[int] = ...) -> Tensor:
    """x without axes of extent 1: the given ones, or all."""

def flatten(x: Operand, *, axis: int = ...) -> Tensor:
    """x as a matrix, with the axes before `axis` as rows and the later axes as columns."""

def slice_by_index(
    x: Operand, *, begin: int | Sequence[int], end: int | Sequence[int], stride: int | Sequence[int] = ...
) -> Tensor:
    """x[begin:end:stride] on every axis, bounds as in Python, strides positive."""

def broadcast_to(x: Operand, *, shape: int | Sequence[int]) -> Tensor:
    """x broadcast to a shape: repeated along new leading axes and axes of extent 1."""

def split(
    x: Operand, *, axis: int, num_splits: int = ..., split_sizes: int | Sequence[int] = ...
) -> tuple[Tensor, ...]:
    """x split along an axis into num_splits equal pieces, or pieces of split_sizes -> a tuple."""

def concat(*values: Operand | Sequence[Operand], axis: int) -> Tensor:
    """Tensors concatenated along an axis. All other dims of the tensors are equal."""

def stack(*values: Operand | Sequence[Operand], axis: int) -> Tensor:
    """Tensors of one shape stacked along a new axis. `axis` is its index in the result."""

def pad(
    x: Operand, *, begin: int | Sequence[int], end: int | Sequence[int], mode: str = ..., value: float = ...
) -> Tensor:
    """x with begin[i] elements added before and end[i] after axis i; a negative number crops elements. By mode they are `value`, x reflected without its edge, its edge, or x wrapped around."""

def tile(x: Operand, *, reps: int | Sequence[int]) -> Tensor:
    """x repeated reps[i] times along axis i."""

def reverse(x: Operand, *, axes: int | Sequence[int]) -> Tensor:
    """x reversed along each of `axes`."""

def depth_to_space(x: Operand, *, block_size: int, mode: str = ...) -> Tensor:
    """(N, C * r * r, H, W) -> (N, C, H * r, W * r) with r = block_size: channels become blocks of height and width. The outer part of the channel axis is the position in the block (mode DCR) or the channel (mode CRD)."""

def pixel_shuffle(x: Operand, *, upscale_factor: int) -> Tensor:
    """(N, C * r * r, H, W) -> (N, C, H * r, W * r) with r = upscale_factor: depth_to_space in mode CRD."""

def space_to_depth(x: Operand, *, block_size: int) -> Tensor:
    """(N, C, H * r, W * r) -> (N, r * r * C, H, W) with r = block_size: blocks of height and width become channels. The outer part of the channel axis is the position in the block."""

def crop(x: Operand, *, crop_height: int | Sequence[int], crop_width: int | Sequence[int]) -> Tensor:
    """x (.., H, W) without crop_height = (top, bottom) rows and crop_width = (left, right) columns."""

def center_crop_pad(x: Operand, *, shape: int | Sequence[int], axes: int | Sequence[int] = ...) -> Tensor:
    """x cropped or zero-padded on both sides of the axes (all, if none is given) to a shape."""

def slice_by_size(x: Operand, *, begin: int | Sequence[int], size: int | Sequence[int]) -> Tensor:
    """`size` elements from `begin` on along every axis; a size of -1 extends to the end."""

def flatten2d(x: Operand, *, axis: int = ...) -> Tensor:
    """x as a matrix, with the axes before `axis` as rows, as in flatten."""

def pixel_unshuffle(x: Operand, *, downscale_factor: int) -> Tensor:
    """(N, C, H * r, W * r) -> (N, C * r * r, H, W): the inverse of pixel_shuffle."""

def interleave(
    x: Operand,
    *,
    block: int | Sequence[int],
    begin: int | Sequence[int] = ...,
    shape: int | Sequence[int],
    groups: int = ...,
) -> Tensor:
    """(N, H, W, G * R * S * C) -> (N, *shape, G * C): unpacks channels into pixels. In each group, the channels of a pixel become a block of R x S pixels. The result starts at pixel `begin` of the first block."""

def reverse_sequence(x: Operand, lengths: Operand, *, seq_axis: int = ..., batch_axis: int = ...) -> Tensor:
    """Reverses the first lengths[i] elements along seq_axis in item i of batch_axis."""

def resize_nearest_neighbor(
    x: Operand,
    *,
    height: int,
    width: int,
    scale_h: float,
    scale_w: float,
    offset_h: float = ...,
    offset_w: float = ...,
    unit_h: float = ...,
    unit_w: float = ...,
    mode: str = ...,
    layout: str = ...,
) -> Tensor:
    """An image (N, C, H, W) resized to height x width. Output i reads the element nearest to (i * scale + offset) / unit, rounded by `mode` in exact arithmetic."""

def resize_bilinear(
    x: Operand,
    *,
    height: int,
    width: int,
    scale_h: float,
    scale_w: float,
    offset_h: float = ...,
    offset_w: float = ...,
    unit_h: float = ...,
    unit_w: float = ...,
    layout: str = ...,
) -> Tensor:
    """An image (N, C, H, W) resized to height x width. Output i is interpolated at the source coordinate (i * scale + offset) / unit."""

def resize(
    x: Operand,
    *,
    sizes: int | Sequence[int],
    axes: int | Sequence[int] = ...,
    mode: str = ...,
    scales: float | Sequence[float] = ...,
    offsets: float | Sequence[float] = ...,
    units: float | Sequence[float] = ...,
    widths: float | Sequence[float] = ...,
    nearest_mode: str = ...,
    cubic_coeff_a: float = ...,
    exclude_outside: bool = ...,
) -> Tensor:
    """x with `axes` (by default all after the channels) resized to `sizes`. Output i reads the source around (i * scale + offset) / unit; without scales and offsets, pixels' centres correspond. Widths above 1 widen the kernel, against aliasing where an axis shrinks. Outside, the edge is read, or nothing with exclude_outside."""

def upsample_nearest_neighbor(
    x: Operand, *, scale_factor_height: float = ..., scale_factor_width: float = ...
) -> Tensor:
    """An image (N, C, H, W) enlarged: output i reads the source at floor(i / factor)."""

def upsample_bilinear(
    x: Operand,
    *,
    scale_factor_height: float = ...,
    scale_factor_width: float = ...,
    align_corners: bool = ...,
    half_pixel_centers: bool = ...,
) -> Tensor:
    """An image (N, C, H, W) enlarged by interpolation. align_corners aligns the outermost elements of both images, and half_pixel_centers the centres of pixels. With neither, the upper left corners of pixels are aligned."""

def grid_sample(
    x: Operand, grid: Operand, *, mode: str = ..., padding_mode: str = ..., align_corners: bool = ...
) -> Tensor:
    """x (N, C, D...) read at the points of a grid (N, points..., axes) -> (N, C, points...). A point's coordinates lie in -1..1, with x's last axis first. Coordinates run from centre to centre of the outermost elements with align_corners, else from edge to edge. The padding_mode decides the values outside."""

def affine_grid(theta: Operand, *, size: int | Sequence[int], align_corners: bool = ...) -> Tensor:
    """The grid for grid_sample: theta @ (x, y, 1) of every point. A theta of (N, 2, 3) belongs to a result of `size` (N, C, H, W), one of (N, 3, 4) to (N, C, D, H, W)."""

def affine(
    x: Operand,
    transform_matrix: Operand,
    *,
    output_height: int,
    output_width: int,
    mode: str = ...,
    padding_mode: str = ...,
    align_corners: bool = ...,
) -> Tensor:
    """An image (N, C, H, W) under the transform (N, 2, 3) -> (N, C, output_height, output_width). The transform maps coordinates of the result in -1..1 to coordinates of x: affine_grid, then grid_sample."""

def roi_align(
    x: Operand,
    rois: Operand,
    batch_indices: Operand,
    *,
    mode: str = ...,
    output_height: int = ...,
    output_width: int = ...,
    sampling_ratio: int = ...,
    spatial_scale: float = ...,
    coordinate_transformation_mode: str = ...,
) -> Tensor:
    """Regions of images (N, C, H, W), each read on a grid of bins -> (R, C, output_height, output_width). The rois (R, 4) are x1, y1, x2, y2; batch_indices (R,) name their images. A bin is the mean (or maximum) of sampling_ratio^2 points. With sampling_ratio 0, each axis of a bin has as many points as image elements, for regions up to twice the image's size; larger ones are an error. Torchvision's aligned=True is the mode half_pixel."""

def deform_conv(
    x: Operand,
    weight: Operand,
    offset: Operand,
    bias: Operand | None = None,
    mask: Operand | None = None,
    *,
    strides: int | Sequence[int] = ...,
    dilations: int | Sequence[int] = ...,
    pad: int | Sequence[int] = ...,
    groups: int = ...,
    offset_groups: int = ...,
) -> Tensor:
    """A convolution whose taps are moved by offset (N, offset_groups * taps * 2, H, W), dy and dx for each tap and output. The mask (N, offset_groups * taps, H, W) weighs the taps. Shapes: x (N, C, ...), weight (out, C / groups, height, width), bias (out,)."""

def dft(x: Operand, *, axis: int = ..., length: int = ..., inverse: bool = ..., onesided: bool = ...) -> Tensor:
    """The discrete Fourier transform along an axis of x (..., 1) or (..., 2), real or real and imaginary -> (..., 2). A length other than 0 cuts x or appends zeros first. With onesided, a real signal loses the mirrored half of its transform. The inverse divides by length, and with onesided returns a real signal (..., 1)."""

def stft(
    signal: Operand, window: Operand | None = None, *, frame_step: int, frame_length: int = ..., onesided: bool = ...
) -> Tensor:
    """The Fourier transforms of frames of a signal (batch, length, 1 or 2), frame_length long, one every frame_step, weighed by a window (frame_length,) -> (batch, frames, bins, 2)."""

def decode_palette(indices: Operand, tables: Operand) -> Tensor:
    """out[i, j] = tables[i // h, j // w, indices[i, j]]: one table for each block of h x w indices. The shape of tables gives the number of blocks along each axis. An index after the last entry reads the last entry."""

def decode_scaled_palette(indices: Operand, tables: Operand, scales: Operand) -> Tensor:
    """out[i, j] = tables[i // h, j // w, indices[i, j]] * scales[i // h, j // w, 0]: decode_palette with tables of int8, each with a scale in the dtype of the result."""

def decode_vectors(indices: Operand, tables: Operand, *, axis: int = ...) -> Tensor:
    """out[i * v + n, j] = tables[i // h, j // w, indices[i, j], n] (for axis 0): an entry has v numbers, which become neighbours along the axis. All else is as in decode_palette; the last axes of tables are entries and v."""

def gather(x: Operand, indices: Operand, *, axis: int = ...) -> Tensor:
    """Slices of x at indices along an axis. The axes of the indices replace that axis. Negative indices count from the end."""

def gather_along_axis(x: Operand, indices: Operand, *, axis: int = ...) -> Tensor:
    """out[i, j] = x[i, indices[i, j]] (for axis 1): an index for each output element, along one axis."""

def gather_nd(x: Operand, indices: Operand, *, batch_dims: int = ...) -> Tensor:
    """Slices of x at coordinates: the last axis of indices (..., k) holds k of them. The first batch_dims axes of x and indices are shared."""

def scatter_along_axis(x: Operand, indices: Operand, updates: Operand, *, axis: int = ..., mode: str = ...) -> Tensor:
    """x with out[i, indices[i, j]] = updates[i, j] (for axis 1): an index for each update, along one axis. By mode, an update replaces the old element or is combined with it."""

def scatter_nd(x: Operand, indices: Operand, updates: Operand, *, mode: str = ...) -> Tensor:
    """x with slices written at coordinates, the last axis of indices (..., k): updates (..., x.shape[k:]). By mode, an update replaces the old slice or is combined with it."""

def one_hot(
    indices: Operand, *, axis: int = ..., depth: int, on: float = ..., off: float = ..., dtype: object = ...
) -> Tensor:
    """A new axis of extent `depth`: `on` where it equals the index, else `off`; an index from -depth to -1 counts from the end."""

def topk(
    x: Operand, *, axis: int = ..., k: int, largest: bool = ..., sorted: bool = ..., dtype: object = ...
) -> tuple[Tensor, ...]:
    """The k largest (or smallest) elements along an axis, in order if `sorted`, and their indices -> (values, indices). Of equal elements, the lower index comes first."""

def argsort(x: Operand, *, axis: int = ..., descending: bool = ..., dtype: object = ...) -> Tensor:
    """The indices that sort x along an axis. Of equal elements, the lower index comes first, and NaN counts as the largest."""

def write_state(state: Operand, update: Operand, position: Operand | None = None, *, axis: int = ...) -> Tensor:
    """Writes update into the state at a position along an axis, in place, and returns the state afterwards. Without a position, update replaces the whole state."""

def non_zero(x: Operand) -> tuple[Tensor, ...]:
    """The coordinates of nonzero elements of x in row-major order, with one row for each axis, and their number."""

def unique(x: Operand, *, axis: int = ..., sorted: bool = ...) -> tuple[Tensor, ...]:
    """The distinct slices of x along an axis (NaN equals NaN), the index of the first slice equal to each, for each slice of x the index of its distinct slice, the count of each, and the number of distinct slices. Unless sorted, distinct slices have the order of their first occurrence."""

def non_max_suppression(
    boxes: Operand,
    scores: Operand,
    kinds: Operand | None = None,
    *,
    max_output: int,
    iou_threshold: float = ...,
    score_threshold: float = ...,
    center_point_box: bool = ...,
) -> tuple[Tensor, ...]:
    """Rows (batch, class, box) of the selected boxes by falling score, at most max_output for each class, and their number. A box is dropped if its IoU with an earlier one exceeds iou_threshold, or if its score is no more than score_threshold. Boxes of different kinds overlap nothing. Boxes are (y, x, y, x) of two corners, or (x, y, width, height) about the center."""

def loop(
    limit: Operand | None = None,
    condition: Operand | None = None,
    *values: Operand | Sequence[Operand],
    body: object,
    carried: int,
    most: int = ...,
    whole: bool = ...,
) -> tuple[Tensor, ...]:
    """Runs `body` until its condition is False or `limit` steps are done. Each step replaces the first `carried` values; the other values are the same in every step. The body takes step (int64), condition (bool) and the values; it gives the next condition, the next carried values, and rows of stacks. Results: carried values, stacks with room for `most` steps, and the number of steps. whole: the stacks are valid to their ends, with zeros after the last step."""

def cond(
    condition: Operand, *values: Operand | Sequence[Operand], then: object, otherwise: object
) -> tuple[Tensor, ...]:
    """The results of `then` where condition is True, else those of `otherwise`: graphs whose inputs are the values. Only the chosen graph is computed."""

def random(stream: Operand, *, shape: int | Sequence[int]) -> Tensor:
    """Uniform fp32 numbers in [0, 1), multiples of 2^-24."""

def random_uniform(
    stream: Operand, *, shape: int | Sequence[int], low: float = ..., high: float = ..., dtype: object = ...
) -> Tensor:
    """Uniform random numbers from low to high."""

def random_normal(
    stream: Operand, *, shape: int | Sequence[int], mean: float = ..., scale: float = ..., dtype: object = ...
) -> Tensor:
    """Random numbers of the normal distribution; scale is its standard deviation."""

def bernoulli(p: Operand, stream: Operand, *, dtype: object = ...) -> Tensor:
    """1 with the probability p, else 0."""

def dropout(x: Operand, stream: Operand, *, p: float = ..., again: bool = ...) -> Tensor:
    """0 with the probability p, else x / (1 - p). again: keeps the same elements as another dropout of the stream. hx.train.evaluating removes the op."""

def multinomial(logits: Operand, stream: Operand, *, sample_size: int = ..., dtype: object = ...) -> Tensor:
    """Classes drawn for each row, with probabilities proportional to e^logits."""

def quantize(x: Operand, scale: Operand, zero: Operand | None = None, *, axis: int = ..., dtype: object) -> Tensor:
    """x / scale, rounded half to even, plus the zero point, saturated."""

def dequantize(
    x: Operand, scale: Operand, zero: Operand | None = None, *, axis: int = ..., dtype: object = ...
) -> Tensor:
    """(x - zero) * scale."""

def decode_blocks(x: Operand, scales: Operand) -> Tensor:
    """out[i, j] = x[i, j] * scales[i // h, j // w]: one scale for each block of h x w integers. The shape of scales gives the number of blocks along each axis."""

def lookup(x: Operand, table: Operand) -> Tensor:
    """The elements of a table of 256 at the bytes of x."""

def quantized_matmul(
    x: Operand,
    y: Operand,
    scale: Operand | None = None,
    bias: Operand | None = None,
    x_zero: Operand | None = None,
    y_zero: Operand | None = None,
    *,
    transpose_y: bool = ...,
    dtype: object,
    output_scale: float = ...,
    output_zero: int = ...,
) -> Tensor:
    """The integer product of x and y, scaled and, for 8-bit results, quantised again. Sums are int32, and wrap around on overflow (from 33,026 products of 255 * 255 on)."""

def quantized_conv(
    x: Operand,
    weight: Operand,
    scale: Operand | None = None,
    bias: Operand | None = None,
    x_zero: Operand | None = None,
    weight_zero: Operand | None = None,
    *,
    strides: int | Sequence[int] = ...,
    dilations: int | Sequence[int] = ...,
    pad: int | Sequence[int] = ...,
    groups: int = ...,
    layout: str = ...,
    dtype: object,
    output_scale: float = ...,
    output_zero: int = ...,
) -> Tensor:
    """The integer convolution, scaled and, for 8-bit results, quantised again; padding is real 0. Sums are int32, and wrap around on overflow."""

def quantized_add(
    x: Operand,
    y: Operand,
    *,
    x_scale: float,
    x_zero: int = ...,
    y_scale: float,
    y_zero: int = ...,
    dtype: object,
    output_scale: float = ...,
    output_zero: int = ...,
) -> Tensor:
    """The sum of two quantised tensors, quantised again, broadcast."""

def quantized_mean(
    x: Operand,
    *,
    axes: int | Sequence[int] = ...,
    keep_dims: bool = ...,
    x_scale: float,
    x_zero: int = ...,
    dtype: object,
    output_scale: float,
    output_zero: int = ...,
) -> Tensor:
    """The mean of a quantised tensor over `axes` (none named: all), quantised again. The sum is exact."""

def running_sum(x: Operand) -> Tensor:
    """(1, H, W, C) -> (1, H, 1, C): the sums over each row's columns and over all rows up to it, in int32."""

def quantize_by_range(x: Operand, *, axis: int = ..., symmetric: bool = ...) -> tuple[Tensor, ...]:
    """Numbers in int8, with a scale and a zero point for each index of the axes before `axis`: x is about (q - zero) * scale. symmetric: the largest magnitude becomes 127. If not symmetric, the least and the largest number, or 0, become -128 and 127. Rounded to nearest, halves away from 0, as TFLite quantises the inputs of layers with weights of 8 bits. If x has NaN or infinities, so has the scale, or (q - zero) * scale is NaN. The scale is 2^-126 or more."""

def q31_matmul(
    x: Operand,
    y: Operand,
    multiplier: Operand,
    bias: Operand | None = None,
    x_zero: Operand | None = None,
    y_zero: Operand | None = None,
    shift: Operand | None = None,
    *,
    transpose_y: bool = ...,
    dtype: object,
    output_zero: int = ...,
    low: int = ...,
    high: int = ...,
) -> Tensor:
    """The integer product of x and y, rescaled as TFLite computes it: a multiplier in Q0.31 and a shift for each channel, moved by output_zero and clamped. Sums are int32, and wrap around on overflow. An int64 multiplier is in Q0.53, the digits of a double: the sum times that double is rounded once, halves away from 0."""

def q31_conv(
    x: Operand,
    weight: Operand,
    multiplier: Operand,
    bias: Operand | None = None,
    x_zero: Operand | None = None,
    weight_zero: Operand | None = None,
    shift: Operand | None = None,
    *,
    strides: int | Sequence[int] = ...,
    dilations: int | Sequence[int] = ...,
    pad: int | Sequence[int] = ...,
    groups: int = ...,
    layout: str = ...,
    dtype: object,
    output_zero: int = ...,
    low: int = ...,
    high: int = ...,
) -> Tensor:
    """The integer convolution, rescaled as TFLite computes it: a multiplier in Q0.31 and a shift for each channel, moved by output_zero and clamped; padding is real 0. Sums are int32, and wrap around on overflow."""

def q31_add(
    x: Operand,
    y: Operand,
    *,
    x_zero: int = ...,
    x_multiplier: int,
    x_shift: int = ...,
    y_zero: int = ...,
    y_multiplier: int,
    y_shift: int = ...,
    output_multiplier: int,
    output_shift: int = ...,
    dtype: object,
    output_zero: int = ...,
    low: int = ...,
    high: int = ...,
) -> Tensor:
    """The sum of two quantised tensors, broadcast, as TFLite computes it: both are rescaled with 20 bits below the point, and their sum once more."""

def q31_mul(
    x: Operand,
    y: Operand,
    *,
    x_zero: int = ...,
    y_zero: int = ...,
    multiplier: int,
    shift: int = ...,
    dtype: object,
    output_zero: int = ...,
    low: int = ...,
    high: int = ...,
) -> Tensor:
    """The product of two quantised tensors, element by element and broadcast, rescaled as TFLite does."""

def q31_softmax(x: Operand, powers: Operand, *, axis: int = ..., dtype: object) -> Tensor:
    """Softmax along an axis, as TFLite computes it. `powers` has e^-d in Q0.31 for each difference d, 0 to 255, to the largest element of a row. The lowest number of dtype stands for 0, and one step is 1/256, or 1/65536 for int16."""

def q31_mean(
    x: Operand,
    *,
    axes: int | Sequence[int] = ...,
    keep_dims: bool = ...,
    x_zero: int = ...,
    multiplier: int,
    shift: int = ...,
    dtype: object,
    output_zero: int = ...,
) -> Tensor:
    """The mean of a quantised tensor over `axes` (none named: all), as TFLite computes it: the exact sum, rescaled by a multiplier that divides by the count."""

def q31_avg_pool(
    x: Operand,
    *,
    kernel_sizes: int | Sequence[int],
    strides: int | Sequence[int] = ...,
    dilations: int | Sequence[int] = ...,
    pad: int | Sequence[int] = ...,
    ceil_mode: bool = ...,
    layout: str = ...,
) -> Tensor:
    """The mean of each window of integers, as TFLite computes it: rounded, halves away from 0. Padding does not count, and the result keeps x's scale and zero point."""
