"""lookup against NumPy."""

import numpy as np
import pytest

from hexane.errors import Error
from kernels import poisoned, run, run_every_cut

TABLE = np.random.default_rng(0).permutation(256).astype(np.uint8)


@pytest.mark.parametrize("table", [TABLE, TABLE.view(np.int8)], ids=["uint8", "int8"])
@pytest.mark.parametrize("source", ["uint8", "int8"])
@pytest.mark.parametrize("shape", [(), (1,), (1000,), (3, 65), (2, 5, 7, 3), (2, 0, 3)])
def test_each_byte_names_an_element(shape: tuple[int, ...], source: str, table: np.ndarray) -> None:
    x = np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)
    out = poisoned(shape, table.dtype)
    run_every_cut("lookup", [x.view(source), table], [out])
    np.testing.assert_array_equal(out, table[x])


def test_rows_may_have_gaps() -> None:
    x = np.arange(240, dtype=np.uint8).reshape(4, 60)[:, ::3].T
    out = poisoned((20, 8), "uint8")[:, ::2]
    run("lookup", [x, TABLE], [out], {})
    np.testing.assert_array_equal(out, TABLE[x])


@pytest.mark.parametrize(
    "table", [TABLE[:255], TABLE.reshape(16, 16), np.resize(TABLE, 512)[::2]], ids=["short", "square", "gaps"]
)
def test_a_table_has_256_elements_without_gaps(table: np.ndarray) -> None:
    with pytest.raises(Error, match="table: got"):
        run("lookup", [TABLE, table], [poisoned((256,), "uint8")], {})
