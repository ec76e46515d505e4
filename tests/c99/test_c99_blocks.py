"""Packed weights in the C99 runtime: unpacked before their steps, and refused where they are wrong."""

import numpy as np
import pytest

from hexane import _core
from hexane.emit.plan_view import PlanView
from hexane.errors import Error
from hexane.runtime.c99 import C99Model
from plans import packed_plan
from wrong_blocks import WRONG

UNCHECKED = {
    "over another block",
    "bytes that belong to none",
    "packed elsewhere",
}  # nothing is read or written outside


def test_weights_are_unpacked_before_the_steps_that_read_them(c99):
    model = C99Model(packed_plan().tobytes(), c99)
    for _ in range(2):
        found = model({"x": np.zeros(1, np.float32)})
        assert (found["y"] == 1).all()
        assert (found["z"] == 2).all()


@pytest.mark.parametrize("name", sorted(WRONG.keys() - UNCHECKED))
def test_a_wrong_block_is_refused(c99, monkeypatch, name: str):
    sections = packed_plan().sections()
    WRONG[name][0](sections)
    sound = PlanView(packed_plan().tobytes())
    monkeypatch.setattr("hexane.runtime.c99.prepared", lambda plan: plan)  # which verifies with the host's loader
    monkeypatch.setattr("hexane.runtime.c99.PlanView", lambda plan: sound)
    with pytest.raises(Error, match=r"\[c99\] (bad plan|not supported)"):
        C99Model(_core.plan_write(sections), c99)
