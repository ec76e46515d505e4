"""Errors keep their text on the way from C++ to Python."""

import pytest

from hexane import _core
from hexane.errors import Error


def test_an_error_of_the_core_arrives_as_hexane_error():
    with pytest.raises(Error, match=r"^\[kernel\] .*no_such_kernel"):
        _core.run_kernel("no_such_kernel", [], [])
