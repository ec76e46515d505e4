"""Weights in few bits on each instruction set of this machine: the same tests, in a process that has that one alone."""

from pathlib import Path

import pytest

from instruction_sets import assert_passes_on, on_others

HERE = Path(__file__).parent
FILES = ["test_kernels_encoded.py", "test_kernels_encoded_fp16.py", "test_kernels_encoded_rows.py", "test_decode.py"]
CHOSEN = (
    "product_has_the_bits or product_by_rows_has or runs_of_a_row or in_fp16_the_bits or beyond_the_table or in_fp16_has_the_bits"
    " or in_fp16_have_the_bits or decoded_in_calls or smallest_products"
)
# Of the products those with sums of one block and those of several that end in an odd term; of weights decoded in calls
# those that are stored and computed with in fp16.
FEW = f"({CHOSEN}) and not (shape1 or shape2) and not (decoded_in_calls and (fp32 or -fp16))"


@pytest.mark.parametrize("chosen", [FEW, pytest.param(CHOSEN, marks=pytest.mark.slow)], ids=["few", "all"])
@on_others
def test_encoded_weights_have_the_bits_of_decoded_ones_on_an_instruction_set(name: str, chosen: str) -> None:
    assert_passes_on(name, chosen, [HERE / file for file in FILES])
