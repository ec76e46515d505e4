"""The first iOS version that has each op of ML programs, for ops that iOS 15 lacks. Source: the registry of coremltools
9.0, which lacks only write_state: saved programs have it in place of coreml_update_state."""

from collections.abc import Mapping

FIRST: Mapping[str, int] = {
    op: year
    for year, ops in {
        16: "constexpr_affine_dequantize constexpr_cast constexpr_lut_to_dense constexpr_sparse_to_dense fill_like"
        " pixel_unshuffle reshape_like",
        17: "dequantize quantize resize",
        18: "constexpr_blockwise_shift_scale constexpr_lut_to_sparse constexpr_sparse_blockwise_shift_scale read_state"
        " scaled_dot_product_attention slice_update write_state",
    }.items()
    for op in ops.split()
}
