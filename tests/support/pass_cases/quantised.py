"""Cases of passes on quantised tensors."""

import numpy as np

import hexane as hx
from hexane.passes.fuse.fuse_bias import fuse_bias
from hexane.passes.layout.channels_last import channels_last
from hexane.passes.legalize.to_fp16 import to_fp16
from hexane.passes.quantize.decode_in_calls import decode_in_calls, decode_in_calls_halves
from hexane.passes.quantize.fold_qdq import fold_qdq
from hexane.passes.quantize.fuse_lookup import fuse_lookup
from hexane.passes.quantize.keep_encoded import (
    keep_encoded,
    keep_encoded_fp16,
    keep_encoded_halves,
    keep_encoded_rows,
    keep_encoded_vectors,
)
from hexane.passes.quantize.keep_sparse import keep_sparse
from hexane.passes.quantize.move_qdq_past_data_movement import move_qdq_past_data_movement
from hexane.passes.quantize.multiply_in_int8 import multiply_in_int8
from hexane.passes.quantize.use_q31 import use_q31
from hexane.passes.simplify.fold_batch_norm import fold_batch_norm
from pass_cases.graphs import (
    HOST,
    Case,
    block,
    columns,
    fold_qdq_of,
    grid,
    image,
    integers,
    kernel,
    normal,
    photo,
    qdq_conv,
    random,
    real,
    steps,
    transposed_weights,
    widened,
)


def of_vectors() -> hx.Tensor:
    picks = (np.arange(32 * 64).reshape(32, 64) % 13).astype(np.uint8)
    return hx.decode_vectors(hx.const(picks), hx.const(np.arange(26, dtype=np.float32).reshape(1, 1, 13, 2)))


def in_blocks(dtype: str = "float32") -> hx.Tensor:
    scales = (np.arange(128, dtype=dtype) / 64 + 0.5).reshape(64, 2)
    return hx.decode_blocks(random().integers(-8, 8, (64, 64)).astype(np.int8), scales)


def in_int8() -> hx.Tensor:
    return hx.dequantize(
        random().integers(-128, 128, (64, 64)).astype(np.int8), np.arange(1, 65, dtype=np.float32) / 2**14, axis=0
    )


def kept_encoded(*outputs: hx.Tensor) -> list[hx.Tensor]:
    return [hx.Tensor(port.value) for port in keep_encoded(hx.graph(outputs), HOST).outputs]


def there_and_back(x: hx.Tensor, weight: hx.Tensor) -> hx.Tensor:
    return hx.matmul(hx.linear(x, weight), weight)


def int_bias(scale: float, *numbers: int) -> hx.Tensor:
    return hx.dequantize(hx.const(np.array(numbers, np.int32)), np.float32(scale))


def dynamic(scale: hx.Tensor) -> hx.Tensor:
    product = hx.quantized_matmul(
        integers("q", (2, 3, 4), "uint8"), random().integers(-128, 128, (4, 5)).astype(np.int8), None, None,
        hx.input("z", (), "uint8"), dtype="int32",
    )  # fmt: skip
    return hx.cast(product, dtype="fp32") * scale


def rounded_product(dtype: str = "int8") -> hx.Tensor:
    weight = random().integers(-128, 128, (4, 5)).astype(np.int8)
    return hx.quantized_matmul(integers("q", (2, 3, 4), "int8"), weight, np.float32(0.5), dtype=dtype)


def quantized_port() -> hx.Tensor:
    weight = random().integers(-128, 128, (4, 3, 3, 3)).astype(np.int8)
    q = hx.quantize(hx.input("x", (1, 3, 6, 5)), np.float32(0.5), np.int8(3), dtype="int8")
    return hx.quantized_conv(q, weight, np.float32(0.5), dtype="fp32")


def pruned(*shape: int, zeros: float = 0.5) -> np.ndarray:
    """The zeros come first."""
    numbers = np.ones(shape, np.float32)
    numbers.reshape(-1)[: round(zeros * numbers.size)] = 0
    return numbers


FIRES: dict[str, Case] = {
    "keep_sparse": (keep_sparse, lambda: hx.matmul(hx.input("x", (2, 64)), pruned(64, 80))),
    "keep_sparse_with_a_bias": (
        keep_sparse,
        lambda: hx.matmul(
            hx.input("x", (64, 2)), pruned(80, 64), hx.input("b", (80,)), transpose_x=True, transpose_y=True
        ),
    ),
    "keep_sparse_of_a_convolution": (
        keep_sparse,
        lambda: hx.conv(hx.input("x", (1, 5, 6, 16)), pruned(80, 16, 3, 3), hx.input("b", (80,)), pad=1, layout="nhwc"),
    ),
    "keep_sparse_of_a_convolution_over_one_axis": (
        keep_sparse,
        lambda: hx.conv(hx.input("x", (1, 64, 9)), pruned(80, 64, 2), strides=2, dilations=3),
    ),
    "keep_encoded": (keep_encoded, lambda: hx.linear(hx.input("x", (2, 64)), in_blocks())),
    "keep_encoded_rows": (
        keep_encoded_rows,
        lambda: there_and_back(hx.input("x", (2, 64)), in_blocks()),
    ),
    "keep_encoded_of_an_embedding": (
        keep_encoded,
        lambda: hx.gather(in_blocks(), hx.input("ids", (2, 3), "int32"), axis=0),
    ),
    "keep_encoded_of_a_matmul": (
        keep_encoded,
        lambda: hx.matmul(hx.input("x", (64, 2)), hx.transpose(in_blocks(), perm=(1, 0)), transpose_x=True),
    ),
    "keep_encoded_of_a_convolution_of_pixels": (
        keep_encoded,
        lambda: hx.conv(hx.input("x", (1, 64, 5, 6)), hx.reshape(in_blocks(), shape=(64, 64, 1, 1))),
    ),
    "keep_encoded_of_a_convolution_of_windows": (
        keep_encoded,
        lambda: hx.conv(hx.input("x", (1, 64, 9)), hx.reshape(in_blocks(), shape=(64, 64, 1)), strides=2, pad=(1, 0)),
    ),
    "multiply_in_int8": (
        multiply_in_int8,
        lambda: kept_encoded(
            hx.linear(hx.input("x", (2, 64)), in_int8(), normal(64)), hx.input("y", (2, 64)) @ in_int8()
        ),
    ),
    "keep_encoded_vectors": (keep_encoded_vectors, lambda: hx.linear(hx.input("x", (2, 64)), of_vectors())),
    "keep_encoded_vectors_of_a_convolution": (
        keep_encoded_vectors,
        lambda: hx.conv(hx.input("x", (1, 64, 9)), hx.reshape(of_vectors(), shape=(64, 64, 1)), pad=(1, 0)),
    ),
    "keep_encoded_halves": (keep_encoded_halves, lambda: hx.linear(hx.input("x", (2, 64)), in_blocks())),
    "keep_encoded_halves_of_an_embedding": (
        keep_encoded_halves,
        lambda: hx.gather(in_blocks(), hx.input("ids", (2, 3), "int32"), axis=0),
    ),
    "keep_encoded_fp16": (
        keep_encoded_fp16,
        lambda: hx.linear(hx.input("x", (2, 64), "fp16"), in_blocks("float16")),
    ),
    "keep_encoded_fp16_of_an_embedding": (
        keep_encoded_fp16,
        lambda: hx.gather(
            hx.dequantize(random().integers(-128, 128, (64, 64)).astype(np.int8), np.float32(0.5), dtype="fp16"),
            hx.input("ids", (2, 3), "int32"),
            axis=0,
        ),
    ),
    "keep_encoded_fp16_of_a_cast": (
        keep_encoded_fp16,
        lambda: hx.linear(hx.input("x", (2, 64), "fp16"), hx.cast(in_blocks(), dtype="fp16")),
    ),
    "decode_in_calls_halves": (
        decode_in_calls_halves,
        lambda: hx.conv(hx.input("x", (1, 128, 5, 6)), hx.reshape(in_blocks(), shape=(64, 64, 1, 1)), groups=2),
    ),
    "decode_in_calls_in_fp16": (
        decode_in_calls,
        lambda: hx.conv(
            hx.input("x", (1, 128, 5, 6), "fp16"), hx.reshape(in_blocks("float16"), shape=(64, 64, 1, 1)), groups=2
        ),
    ),
    "decode_in_calls": (
        decode_in_calls,
        lambda: hx.conv(hx.input("x", (1, 128, 5, 6)), hx.reshape(in_blocks(), shape=(64, 64, 1, 1)), groups=2),
    ),
    "decode_in_calls_of_a_transposed_convolution": (
        decode_in_calls,
        lambda: hx.conv_transpose(hx.input("x", (1, 64, 5, 6)), hx.reshape(in_blocks(), shape=(64, 64, 1, 1))),
    ),
    "keep_encoded_with_zero_points": (
        keep_encoded,
        lambda: hx.linear(
            hx.input("x", (2, 64)),
            hx.dequantize(np.full((64, 64), 130, np.uint8), np.float32(0.5), np.uint8(128)),
            hx.input("b", (64,)),
        ),
    ),
    "use_q31_product": (
        use_q31,
        lambda: hx.quantized_matmul(
            integers("q", (2, 4), "int8"),
            np.eye(4, dtype=np.int8),
            np.float32([0.31, 0.71, 0.09, 0.23]),
            None,
            np.int8(3),
            dtype="int8",
            output_scale=1.13,
            output_zero=-4,
        ),
    ),
    "use_q31_product_of_floats": (use_q31, lambda: steps(real("a") * real("b"))),
    "use_q31_sum": (
        use_q31,
        lambda: hx.quantized_add(
            integers("a"), integers("b"), x_scale=0.5, y_scale=0.25, dtype="int8", output_scale=0.7, output_zero=3
        ),
    ),
    "move_qdq_past_data_movement_down": (
        move_qdq_past_data_movement,
        lambda: hx.max_pool(hx.transpose(hx.reshape(real(), shape=(1, 6, 4, 1)), perm=(0, 3, 1, 2)), kernel_sizes=2),
    ),
    "move_qdq_past_data_movement_down_with_its_axis": (
        move_qdq_past_data_movement,
        lambda: hx.transpose(
            hx.dequantize(integers(), np.float32([1, 2, 4]), np.int8([1, 0, -1]), axis=1), perm=(2, 0, 1)
        ),
    ),
    "move_qdq_past_data_movement_down_a_choice": (
        move_qdq_past_data_movement,
        lambda: hx.select(hx.input("where", (4,), "bool"), real("a"), real("b")),
    ),
    "move_qdq_past_data_movement_up_a_broadcast": (
        move_qdq_past_data_movement,
        lambda: hx.quantize(
            hx.broadcast_to(hx.exp(hx.input("x", (2, 1, 4))), shape=(2, 3, 4)), np.float32(0.5), dtype="int8"
        ),
    ),
    "move_qdq_past_data_movement_concat": (
        move_qdq_past_data_movement,
        lambda: hx.concat(real("a"), real("b", (2, 1, 4)), axis=1),
    ),
    "move_qdq_past_data_movement_up": (
        move_qdq_past_data_movement,
        lambda: (lambda y: steps(hx.reshape(hx.concat(hx.exp(block()), y, axis=2), shape=(6, 8))))(
            hx.max_pool(hx.exp(block(name="y")), kernel_sizes=1)
        ),
    ),
    "move_qdq_past_data_movement_shared": (
        move_qdq_past_data_movement,
        lambda: (lambda y: [hx.reshape(y, shape=(24,)), hx.exp(y)])(real()),
    ),
    "fuse_lookup": (fuse_lookup, lambda: steps(hx.sigmoid(real(scale=0.05)), 1 / 256, 0, "uint8")),
    "fuse_lookup_of_a_chain": (
        fuse_lookup,
        lambda: (lambda x: steps(x * hx.dequantize(steps(hx.sigmoid(x), 0.01), *grid(0.01)) / 1.7, 0.25))(real()),
    ),
    "fuse_lookup_of_another_scale": (fuse_lookup, lambda: steps(real(), 0.25, None)),
    "fuse_lookup_that_limits": (fuse_lookup, lambda: steps(hx.relu(real()))),
    "fuse_lookup_of_nothing": (fuse_lookup, lambda: (lambda y: [steps(y), steps(y / 4.0, 0.125)])(real())),
    "fuse_lookup_shared": (fuse_lookup, lambda: (lambda y: [steps(hx.tanh(y), 0.01), hx.exp(y)])(real(scale=0.01))),
    "fold_qdq_conv": (
        fold_qdq,
        lambda: steps(hx.relu(qdq_conv(photo(), bias=int_bias(0.125, 5, -9, 0, 300))), 64.0, -5),
    ),
    "fold_qdq_real_bias": (fold_qdq, lambda: steps(hx.relu6(qdq_conv(photo(), bias=normal(4))), 0.5, 0, "uint8")),
    "fold_qdq_bias_of_another_scale": (fold_qdq, lambda: qdq_conv(photo(), bias=int_bias(0.5, 5, -9, 0, 300))),
    "fold_qdq_unsigned_weights": (
        fold_qdq,
        lambda: steps(hx.conv(photo(zero=None), kernel(4, 3, 0.5, 128, "uint8"), strides=2), 128.0),
    ),
    "fold_qdq_conv_transpose": (
        fold_qdq,
        lambda: steps(hx.relu(widened(photo(), bias=int_bias(0.5, 9, -300))), 64.0, -5),
    ),
    "fold_qdq_conv_transpose_that_overlaps": (
        fold_qdq,
        lambda: widened(
            photo(channels=4), transposed_weights(4, 3, 3, zero=True), normal(6), pad=1, output_padding=(1, 0), groups=2
        ),
    ),
    "fold_qdq_conv_transpose_channels_last": (
        fold_qdq,
        lambda: steps(
            widened(
                real(shape=(2, 3, 4, 3)), transposed_weights(dtype="uint8", zero=True), layout="nhwc", strides=(3, 1)
            ),
            64.0,
        ),
    ),
    "fold_qdq_conv_transpose_shared": (
        fold_qdq,
        lambda: (lambda x, w: [steps(widened(x, w), 64.0), hx.exp(x), hx.relu(w), steps(widened(x, w) + 1.0, 64.0)])(
            photo(), transposed_weights()
        ),
    ),
    "fold_qdq_past_what_moves": (
        fold_qdq,
        lambda: steps(hx.relu(hx.reshape(hx.relu6(real() @ columns()), shape=(6, 5))), 0.25),
    ),
    "fold_qdq_matmul": (fold_qdq, lambda: steps(real() @ columns(), 256.0)),
    "fold_qdq_matmul_transposed": (
        fold_qdq,
        lambda: hx.matmul(real(), columns(5, 3, axis=0), transpose_x=True, transpose_y=True),
    ),
    "fold_qdq_matmul_of_two_tensors": (fold_qdq, lambda: steps(real("a", (2, 3, 4)) @ real("b", (2, 4, 3)), 32.0)),
    "fold_qdq_add": (fold_qdq, lambda: steps(hx.relu(real("a") + real("b", (4,), 0.25, zero=None)), 1.0)),
    "fold_qdq_mean": (fold_qdq, lambda: steps(hx.reduce_mean(photo(), axes=(2, 3)), 0.25)),
    "channels_last_of_a_quantised_port": (channels_last, quantized_port),
    "fold_qdq_shared": (
        fold_qdq,
        lambda: (lambda x: [steps(qdq_conv(x), 64.0), steps(qdq_conv(x, 2), 64.0), steps(x + x, 1.0), hx.exp(x)])(
            photo()
        ),
    ),
    "fold_qdq_with_another_reader": (
        fold_qdq,
        lambda: (lambda y: [steps(y, 64.0), hx.exp(y / 999.0)])(qdq_conv(photo())),
    ),
    "fold_qdq_two_scales": (fold_qdq, lambda: (lambda y: [steps(y, 64.0), steps(y, 32.0)])(qdq_conv(photo()))),
    "fold_qdq_scale_at_run_time": (
        fold_qdq,
        lambda: hx.dequantize(integers(), hx.input("s", ()), hx.input("z", (), "int8")) @ columns(),
    ),
    "fold_qdq_dynamic": (fold_qdq, lambda: dynamic(hx.input("s", (1,)))),
    "fold_qdq_dynamic_columns": (fold_qdq, lambda: dynamic(hx.input("s", ()) * np.float32([1, 2, 3, 4, 5]))),
    "fuse_bias_of_a_quantised_product": (fuse_bias, lambda: fold_qdq_of(dynamic(hx.input("s", ())) + normal(5))),
    "channels_last_quantised": (
        channels_last,
        lambda: fold_qdq_of(
            (lambda y: hx.lookup(steps(y + real("r", (1, 4, 6, 5)), 99.0), np.arange(256, dtype=np.uint8)))(
                hx.dequantize(steps(qdq_conv(photo()), 64.0), np.float32([1, 2, 3, 4]), axis=1)
            )
        ),
    ),
    "to_fp16_quantised": (
        to_fp16,
        lambda: fold_qdq_of([hx.relu(qdq_conv(photo(), bias=normal(4))) / 999.0, steps(hx.exp(block()), 0.1)]),
    ),
}


LEAVES: dict[str, Case] = {
    "an_encoded_weight_beyond_fp16": (
        keep_encoded_halves,
        lambda: hx.linear(hx.input("x", (2, 64)), hx.dequantize(np.ones((64, 64), np.int8), np.float32(9000))),
    ),
    "rows_of_an_embedding_whose_scale_fp16_does_not_hold": (
        keep_encoded_halves,
        lambda: hx.gather(
            hx.dequantize(random().integers(-128, 128, (64, 64)).astype(np.int8), np.float32(0.3)),
            hx.input("ids", (2, 3), "int32"),
            axis=0,
        ),
    ),
    "an_encoded_weight_that_is_rounded_and_widened": (
        keep_encoded,
        lambda: hx.linear(hx.input("x", (2, 64)), hx.cast(in_blocks("float16"), dtype="fp32")),
    ),
    "an_encoded_weight_that_is_rounded_to_fp32_and_then_to_fp16": (
        keep_encoded_fp16,
        lambda: hx.linear(
            hx.input("x", (2, 64), "fp16"),
            hx.dequantize(random().integers(-128, 128, (64, 64)).astype(np.int8), np.float32(0.3), dtype="fp16"),
        ),
    ),
    "a_small_encoded_weight": (
        keep_encoded,
        lambda: hx.linear(hx.input("x", (2, 3)), hx.dequantize(np.ones((4, 3), np.int8), np.float32(0.5))),
    ),
    "an_encoded_weight_of_fp16": (
        keep_encoded,
        lambda: hx.linear(hx.input("x", (2, 64), "fp16"), hx.cast(in_blocks(), dtype="fp16")),
    ),
    "an_encoded_weight_of_each_channel_alone": (
        decode_in_calls,
        lambda: hx.conv(
            hx.input("x", (1, 4096, 5, 6)), hx.reshape(in_blocks(), shape=(4096, 1, 1, 1)), pad=1, groups=4096
        ),
    ),
    "vectors_of_numbers_for_the_c99_runtime": (
        keep_encoded,
        lambda: hx.linear(hx.input("x", (2, 64)), of_vectors()),
    ),
    "an_encoded_weight_of_groups": (
        keep_encoded,
        lambda: hx.conv(hx.input("x", (1, 128, 5, 6)), hx.reshape(in_blocks(), shape=(64, 64, 1, 1)), groups=2),
    ),
    "an_encoded_weight_that_meets_integers": (
        keep_encoded,
        lambda: hx.linear(hx.dequantize(integers("q", (2, 64), "uint8"), np.float32(0.5)), in_blocks()),
    ),
    "an_encoded_weight_whose_columns_are_scaled": (
        keep_encoded,
        lambda: hx.linear(hx.input("x", (2, 64)), in_blocks()) * hx.const(np.arange(64, dtype=np.float32)),
    ),
    "zero_points_beyond_a_byte": (
        keep_encoded,
        lambda: hx.linear(
            hx.input("x", (2, 64)), hx.dequantize(np.full((64, 64), 250, np.uint8), np.float32(0.5), np.uint8(3))
        ),
    ),
    "a_weight_of_fewer_zeros": (keep_sparse, lambda: hx.matmul(hx.input("x", (2, 64)), pruned(64, 80, zeros=0.49))),
    "a_small_weight_of_zeros": (keep_sparse, lambda: hx.matmul(hx.input("x", (2, 63)), pruned(63, 64))),
    "a_param_of_zeros": (keep_sparse, lambda: hx.matmul(hx.input("x", (2, 64)), hx.param("w", pruned(64, 80)))),
    "several_matrices_of_zeros": (keep_sparse, lambda: hx.matmul(hx.input("x", (2, 2, 64)), pruned(2, 64, 80))),
    "a_weight_of_zeros_of_groups": (
        keep_sparse,
        lambda: hx.conv(hx.input("x", (1, 128, 5, 6)), pruned(80, 64, 1, 1), groups=2),
    ),
    "a_weight_of_zeros_over_three_axes": (
        keep_sparse,
        lambda: hx.conv(hx.input("x", (1, 64, 2, 3, 4)), pruned(80, 64, 1, 1, 1)),
    ),
    "a_weight_of_zeros_that_something_else_reads": (
        keep_sparse,
        lambda: (lambda w: [hx.matmul(hx.input("x", (2, 64)), w), hx.gather(w, hx.input("i", (3,), "int32"), axis=0)])(
            hx.const(pruned(64, 80))
        ),
    ),
    "a_scale_behind_a_quantised_product": (fold_batch_norm, lambda: rounded_product("fp32") * normal(5)),
    "a_dequantize_before_a_pad": (
        move_qdq_past_data_movement,
        lambda: hx.pad(real(), begin=(1, 0, 0), end=(0, 0, 0), value=3.0),
    ),
    "a_dequantize_whose_bits_are_read": (move_qdq_past_data_movement, lambda: hx.bit_cast(real(), dtype="int32")),
    "a_bias_of_bytes": (fuse_bias, lambda: rounded_product() + np.arange(5, dtype=np.int8)),
    "a_dequantize_of_rows_before_a_reshape": (
        move_qdq_past_data_movement,
        lambda: hx.reshape(hx.dequantize(integers(), np.float32([1, 2, 4]), axis=1), shape=(6, 4)),
    ),
    "a_concat_of_two_scales": (
        move_qdq_past_data_movement,
        lambda: hx.concat(real("a"), real("b", scale=0.25), axis=1),
    ),
    "a_maximum_of_a_negative_scale": (
        move_qdq_past_data_movement,
        lambda: hx.max_pool(hx.dequantize(integers(), np.float32(-1)), kernel_sizes=2),
    ),
    "a_maximum_of_a_scale_that_is_computed": (
        move_qdq_past_data_movement,
        lambda: hx.max_pool(hx.dequantize(integers(), hx.input("s", ())), kernel_sizes=2),
    ),
    "a_quantize_of_what_is_shared": (
        move_qdq_past_data_movement,
        lambda: (lambda y: [steps(y), hx.exp(y)])(hx.transpose(block())),
    ),
    "a_function_of_two_quantised_tensors": (fuse_lookup, lambda: steps(real("a") * real("b"))),
    "a_function_of_a_byte_and_a_vector": (fuse_lookup, lambda: steps(real() * normal(4))),
    "a_function_of_a_byte_that_widens": (fuse_lookup, lambda: steps(real(shape=(4,)) * np.ones((1, 1), "f"))),
    "a_function_of_a_scale_that_is_computed": (
        fuse_lookup,
        lambda: steps(hx.relu(hx.dequantize(integers(), hx.input("s", ())))),
    ),
    "a_function_that_gives_16_bits": (fuse_lookup, lambda: steps(real(), dtype="int16")),
    "a_function_of_16_bits": (fuse_lookup, lambda: steps(hx.dequantize(integers(dtype="int16"), np.float32(0.5)))),
    "a_convolution_of_floats_by_integers": (fold_qdq, lambda: steps(qdq_conv(image()))),
    "a_convolution_of_16_bits": (
        fold_qdq,
        lambda: qdq_conv(hx.dequantize(integers(shape=(1, 3, 6, 5), dtype="int16"), np.float32(0.5))),
    ),
    "a_convolution_of_a_scale_for_each_row": (
        fold_qdq,
        lambda: qdq_conv(hx.dequantize(integers(shape=(1, 3, 6, 5)), np.float32([1, 2, 4]), axis=1)),
    ),
    "a_transposed_convolution_of_a_scale_for_each_row_of_weights": (
        fold_qdq,
        lambda: steps(widened(photo(), transposed_weights(axis=0))),
    ),
    "a_transposed_convolution_of_a_scale_for_each_row": (
        fold_qdq,
        lambda: steps(widened(hx.dequantize(integers(shape=(1, 3, 6, 5)), np.float32([1, 2, 4]), axis=1))),
    ),
    "a_transposed_convolution_of_weights_at_run_time": (
        fold_qdq,
        lambda: steps(widened(photo(), hx.dequantize(integers("w", (3, 2, 2, 2)), np.float32(0.5)))),
    ),
    "a_transposed_convolution_with_dilations": (fold_qdq, lambda: steps(widened(photo(), dilations=2))),
    "a_transposed_convolution_of_16_bits": (
        fold_qdq,
        lambda: widened(hx.dequantize(integers(shape=(1, 3, 6, 5), dtype="int16"), np.float32(0.5))),
    ),
    "a_transposed_convolution_whose_pad_is_wider_than_its_kernel": (
        fold_qdq,
        lambda: steps(widened(photo(), pad=(0, 0, 2, 1))),
    ),
    "a_transposed_convolution_of_mostly_zeros": (
        fold_qdq,
        lambda: steps(widened(photo(), transposed_weights(size=1), strides=3)),
    ),
    "a_transposed_convolution_of_floats_by_integers": (fold_qdq, lambda: steps(widened(image()))),
    "a_product_whose_weights_have_a_scale_for_each_row": (fold_qdq, lambda: real() @ columns(axis=0)),
    "a_product_whose_scale_is_computed": (
        use_q31,
        lambda: hx.quantized_matmul(
            integers("q", (2, 4)), np.eye(4, dtype=np.int8), hx.input("scale", ()), dtype="int8", output_scale=0.9
        ),
    ),
    "a_sum_that_is_quantised_to_16_bits": (fold_qdq, lambda: steps(real("a") + real("b"), dtype="int16")),
    "a_product_in_fp16": (
        fold_qdq,
        lambda: (
            hx.dequantize(integers("a", (2, 4)), np.float32(0.5), dtype="fp16")
            @ hx.dequantize(integers("b", (4, 3)), np.float32(0.5), dtype="fp16")
        ),
    ),
    "a_product_that_may_overflow": (fold_qdq, lambda: real("a", (1, 70000)) @ real("b", (70000, 1))),
    "a_sum_that_is_not_quantised": (fold_qdq, lambda: real("a") + real("b")),
    "a_sum_of_a_quantised_tensor_and_another": (fold_qdq, lambda: steps(real("a") + block())),
    "an_int32_product_with_another_reader": (
        fold_qdq,
        lambda: (lambda y: [hx.cast(y, dtype="fp32") * 0.5, y])(
            hx.quantized_matmul(integers("a", (2, 3)), integers("b", (3, 2)), dtype="int32")
        ),
    ),
}
