"""Views in another shape of arrays that only pretend to have memory, by both ways that NumPy has."""

import numpy as np
import pytest

from hexane.graph import array_bits
from hexane.graph.array_bits import reshaped_view


@pytest.mark.parametrize("with_copy", [True, False], ids=["reshape(copy=)", "shape ="])
def test_a_view_is_made_without_reading(with_copy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of strides over one byte: a copy would read beyond it."""
    newer = tuple(map(int, np.__version__.split(".")[:2]))
    if (with_copy and newer < (2, 1)) or (not with_copy and newer >= (2, 5)):
        pytest.skip("this NumPy has the other way")
    monkeypatch.setattr(array_bits, "_RESHAPES_WITHOUT_COPY", with_copy)
    pretended = np.lib.stride_tricks.as_strided(np.zeros(1, np.int8), (1024, 32, 32), (1024, 32, 1))
    view = reshaped_view(pretended, (32, 32, 1024))
    assert (view.shape, view.strides) == ((32, 32, 1024), (32768, 1024, 1))
    assert pretended.shape == (1024, 32, 32)
    with pytest.raises(ValueError, match="copy"):
        reshaped_view(pretended.transpose(2, 1, 0), (1024, 1024))
