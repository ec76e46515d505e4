"""What kernels say about regions, on every case of the op records, in every dtype: a box of the output depends on the
boxes of the inputs that it needs, and on nothing else."""

from collections import defaultdict

import numpy as np
import pytest
from tests.support.kernel_cases import ROWS, Box, KernelCase, boxes, kernel_cases, part, parts, poisoned_outside, whole
from tests.support.kernels import same_bits

from hexane import _core

# A running sum needs the rows before in the output: it is told them in order.
# Loops and branches have plans in their inputs: test_kernels_control.py is for them.
NAMES = sorted(ROWS.keys() - {"write_slice", "running_sum", "running_reduce", "loop", "cond"})

# Inputs of which every box of the output needs all: tables, and all inputs of kernels that cannot be cut.
NEVER_NARROWED = {
    "decode": {0, 1}, "encoded_rows_matmul": {1, 2}, "lookup": {1}, "non_max_suppression": {2}, "non_zero": {0},
    "q31_softmax": {1}, "quantize_by_range": {0}, "random": {0}, "recurrent": {0, 1, 2, 3, 4, 5, 6, 7}, "scatter_nd": {1}, "sparse_conv": {1, 2}, "sparse_matmul": {1, 2},
    "unique": {0},
    "adam_step": {4}, "lion_step": {3}, "momentum_step": {3}, "sgd_step": {2},
    "conv_weight_gradient": {0, 1}, "rms_norm_gradient": {2}, "squared_norm": {0},
}  # fmt: skip


def cases_of(name: str) -> list[KernelCase]:
    return [case for case in kernel_cases() if case.name == name]


def poisoned(case: KernelCase, box: Box) -> list[np.ndarray | None]:
    return [None if a is None else poisoned_outside(a, case.needs(i, box)) for i, a in enumerate(case.inputs)]


def test_the_cases_reach_every_row() -> None:
    reached = {f"{case.name} {case.row['dtypes']}" for case in kernel_cases() if case.name in NAMES}
    rows = {f"{name} {row['dtypes']}" for name in NAMES for row in ROWS[name]}
    assert rows == reached


@pytest.mark.parametrize("name", NAMES)
def test_a_box_of_the_output_depends_on_what_it_needs_alone(name: str) -> None:
    for case in cases_of(name):
        for box in boxes(case):
            for out, want in zip(case.run(poisoned(case, box)), case.outputs, strict=True):
                if out.shape == want.shape == case.outputs[0].shape:
                    assert same_bits(part(out, box).copy(), part(want, box).copy()), (case.row, box)


@pytest.mark.parametrize("name", NAMES)
def test_a_piece_of_the_output_depends_on_what_it_needs_alone(name: str) -> None:
    for case in cases_of(name):
        for axis, begin, end in parts(case):
            box = whole(case.outputs[0].shape)
            box[axis] = (begin, end)
            outputs = [np.zeros_like(a) for a in case.outputs]
            case.run_part(poisoned(case, box), outputs, (axis, begin, end), {})
            for out, want in zip(outputs, case.outputs, strict=True):
                assert same_bits(part(out, box).copy(), part(want, box).copy()), (case.row, box)


@pytest.mark.parametrize("name", NAMES)
def test_needed_boxes_lie_in_the_input_and_grow_with_the_output(name: str) -> None:
    for case in cases_of(name):
        for i, array in enumerate(case.inputs):
            if array is None:
                assert case.needs(i, whole(case.outputs[0].shape)) == []
                continue
            most = case.needs(i, whole(case.outputs[0].shape))
            for box in boxes(case):
                needed = case.needs(i, box)
                assert len(needed) == array.ndim
                for (begin, end), (first, last), n in zip(needed, most, array.shape, strict=True):
                    assert 0 <= begin <= end <= n
                    assert begin == end or (first <= begin and end <= last)


def test_few_inputs_are_needed_whole_whatever_box_is_asked_for() -> None:
    narrowed: dict[str, dict[int, bool]] = defaultdict(dict)
    for case in kernel_cases():
        for i, array in enumerate(case.inputs):
            if array is not None and array.size > 1:
                seen = narrowed[case.name]
                seen[i] = seen.get(i, False) or any(case.needs(i, box) != whole(array.shape) for box in boxes(case))
    found = {name: {i for i, narrow in seen.items() if not narrow} for name, seen in narrowed.items()}
    assert {name: inputs for name, inputs in found.items() if inputs} == NEVER_NARROWED


def test_an_empty_box_needs_nothing() -> None:
    x = ("fp32", (2, 3))
    assert _core.kernel_needs("relu", "ieee", [x], [x], b"", b"\0", 0, [(0, 2), (1, 1)]) == [(0, 0), (0, 0)]
