"""Row by row through rings of exact size: the bits of whole tensors."""

import numpy as np
import pytest
from tests.support.kernel_cases import ROWS, Array, KernelCase, kernel_cases, whole
from tests.support.kernels import poisoned, same_bits

from hexane import _core
from hexane.errors import Error
from hexane.program.attrs import Strings, pack

# Kernels with a window, which may span the end of a ring.
READERS = {
    "avg_pool", "conv", "conv_transpose", "encoded_conv", "interleave", "max_pool", "q31_avg_pool", "q31_conv", "quantized_conv",
    "resize_linear", "resize_nearest", "sparse_conv",
}  # fmt: skip

# Kernels whose inputs 1 and 2 are packed before they run, so that these cannot be rings.
PACKING = {
    "accumulating_matmul", "bf16_scaled_dot_product_attention", "conv", "conv_transpose", "encoded_conv", "encoded_matmul", "encoded_rows_matmul", "matmul", "widening_matmul", "q31_conv", "q31_matmul",
    "quantized_conv", "quantized_matmul", "scaled_dot_product_attention", "sparse_conv", "sparse_matmul",
}  # fmt: skip

# Kernels that no case cuts along axis 1, or only with gaps between batches where there may be none.
NEVER_BY_ROW = {
    "batch_norm", "cond", "decode", "instance_norm", "local_response_norm", "loop", "non_max_suppression", "non_zero", "q31_matmul", "quantize_by_range",
    "quantized_matmul",
    "recurrent", "reduce_argmin", "rms_norm", "scatter_along_axis", "scatter_nd", "softmax", "unique",
    "accumulate_step", "adam_step", "lion_step", "momentum_step", "sgd_step", "conv_weight_gradient",
    "max_pool_gradient",
    "cross_entropy_gradient", "log_softmax_at", "rms_norm_gradient", "squared_norm",
}  # fmt: skip


FEW = 8  # pieces at each end and in the middle


def rows_of(case: KernelCase) -> tuple[int, int] | None:
    """Rows of the output and their grain, where it can be cut by rows into several pieces."""
    found = next(((n, grain) for axis, n, grain in case.cuts() if axis == 1), None)
    return found if found and found[0] > found[1] else None


def needed_rows(case: KernelCase, input: int, begin: int, end: int) -> tuple[int, int]:
    box = whole(case.outputs[0].shape)
    box[1] = (begin, end)
    return case.needs(input, box)[1]


def ring_like(array: Array, rows: int) -> Array:
    return poisoned((array.shape[0], rows, *array.shape[2:]), array.dtype)


def keep(ring: Array, whole: Array, begin: int, end: int) -> None:
    for row in range(begin, end):
        ring[:, row % ring.shape[1]] = whole[:, row]


def ends_and_middle(pieces: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """All of a few. A piece is run and compared by itself: those between have rows and rings as these have."""
    if len(pieces) <= 3 * FEW:
        return pieces
    middle = (len(pieces) - FEW) // 2
    return pieces[:FEW] + pieces[middle : middle + FEW] + pieces[-FEW:]


def stream(case: KernelCase, step: int, spare: int, every: bool) -> set[int]:
    """Runs the case `step` rows at a time, in every piece or in those at the ends and in the middle. The output, and
    every input that can, is a ring of the rows of a step and `spare` more; the others are whole. The numbers of those
    inputs."""
    found = rows_of(case)
    assert found is not None
    extent, _ = found
    pieces = [(begin, min(begin + step, extent)) for begin in range(0, extent, step)]
    pieces = pieces if every else ends_and_middle(pieces)
    rings: dict[int, int] = {}
    arrays = list(case.inputs)
    for i, array in enumerate(case.inputs):
        if array is None or array.ndim < 2 or (case.name in PACKING and i in (1, 2)):
            continue
        needed = [needed_rows(case, i, *piece) for piece in pieces]
        reads = case.row["reads_ring"] and i == 0 and not (case.name.startswith("resize") and array.ndim == 3)
        if reads or needed == pieces:
            size = min(max(end - begin for begin, end in needed) + (0 if reads else spare), array.shape[1])
            if 0 < size < array.shape[1]:
                rings[i] = array.shape[1]
                arrays[i] = ring_like(array, size)
    outputs = []
    for o, array in enumerate(case.outputs):
        rings[len(arrays) + o] = extent
        outputs.append(ring_like(array, min(step + spare, extent)))
    for begin, end in pieces:
        for i in rings:
            if i < len(arrays):
                first, last = needed_rows(case, i, begin, end)
                ring, given = arrays[i], case.inputs[i]
                assert ring is not None
                assert given is not None
                ring[...] = poisoned(ring.shape, ring.dtype)
                keep(ring, given, first, last)
        case.run_part(arrays, outputs, (1, begin, end), rings)
        for out, want in zip(outputs, case.outputs, strict=True):
            for row in range(begin, end):
                assert same_bits(out[:, row % out.shape[1]].copy(), want[:, row].copy()), (case.row, begin, row)
    return {i for i in rings if i < len(arrays)}


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "every"])
@pytest.mark.parametrize(
    "name", sorted(ROWS.keys() - {"write_slice", "running_reduce"})
)  # which have tests of their own
def test_rows_through_rings_are_those_of_whole_tensors(name: str, every: bool) -> None:
    cases = [case for case in kernel_cases() if case.name == name and rows_of(case)]
    cases = [case for case in cases if case.row["accepts"] != "dense" or case.outputs[0].shape[0] == 1]
    assert bool(cases) == (name not in NEVER_BY_ROW)
    inputs: set[int] = set()
    for case in cases:
        _, grain = rows_of(case) or (0, 1)
        for step, spare in ((grain, 0), (grain, grain), (2 * grain, grain)):
            inputs |= stream(case, step, spare, every)
    assert (name in READERS) == ROWS[name][0]["reads_ring"]
    assert name not in READERS or 0 in inputs


def test_a_ring_keeps_what_a_step_reads() -> None:
    case = next(c for c in kernel_cases() if c.name == "max_pool" and rows_of(c) and needed_rows(c, 0, 0, 2)[1] > 2)
    x, outputs = case.inputs[0], [np.zeros_like(a) for a in case.outputs]
    assert x is not None
    need = needed_rows(case, 0, 0, 2)[1]
    with pytest.raises(Error, match=rf"operand 0: got a ring of 1 rows, need {need}"):
        case.run_part([ring_like(x, 1)], outputs, (1, 0, 2), {0: x.shape[1]})


def test_a_ring_is_refused_where_rows_are_not_those_of_the_output() -> None:
    x, out = np.zeros((2, 3, 4), "f"), np.zeros((2, 6, 4), "f")
    attrs = pack("axes:L", {"axes": (1,)}, Strings())
    with pytest.raises(Error, match="operand 0: got a ring of 3 rows, need all rows"):
        _core.run_part("reverse", [x], [out], attrs, b"\0", 1, 0, 2, {0: 6})


def test_a_ring_is_refused_where_an_operand_is_packed_whole() -> None:
    x, y, out = np.zeros((1, 4, 2, 3), "f"), np.zeros((1, 2, 3, 5), "f"), np.zeros((1, 4, 2, 5), "f")
    attrs = pack(
        "transpose_x:i transpose_y:i epilogue:E", {"transpose_x": 0, "transpose_y": 0, "epilogue": ()}, Strings()
    )
    with pytest.raises(Error, match="operand 1: got a ring of 2 rows, need all rows"):
        _core.run_part("matmul", [x, y], [out], attrs, b"\0", 1, 0, 2, {1: 4})


def test_a_ring_is_refused_where_the_output_is_not_made_by_rows() -> None:
    x, out = np.zeros((2, 3, 4), "f"), np.zeros((2, 6, 4), "f")
    with pytest.raises(Error, match="cut: got axis 1, need one along which it can be cut"):
        _core.run_part("softmax", [x], [out], pack("axis:i", {"axis": 1}, Strings()), b"\0", 1, 0, 1, {0: 6})
    with pytest.raises(Error, match="cut: got axis 0, need 1 for rings"):
        _core.run_part("relu", [x], [out], b"", b"\0", 0, 0, 1, {0: 6})
