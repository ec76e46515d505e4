"""What a system may not place on the engine though the engine's compiler takes it."""

from dataclasses import replace

import numpy as np
import pytest

import hexane as hx
from hexane.targets.placement import placement


def _network(width: int, layers: int) -> hx.Tensor:
    h = hx.input("x", (1, width))
    for _ in range(layers):
        h = hx.relu(hx.matmul(h, np.ones((width, width), np.float32)))
    return h


def test_a_network_as_small_as_one_that_was_not_placed_is_told() -> None:
    small = hx.preflight(_network(16, 60), "M1")
    assert small.ok
    assert "eligible, but the network has only 256 parameters" in str(small)  # one weight, shared
    assert small.record()["placement"] == list(small.doubts)
    assert hx.preflight(_network(16, 2), "M1").doubts == ()
    assert hx.preflight(_network(300, 60), "M1").doubts == ()


def test_a_program_above_the_limit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    limited = replace(placement(), most_program_bytes=300 * 300 * 2 - 1, most_program_bytes_before=1 << 20)
    for place in ("hexane.report.placement", "hexane.stages.segments.segment"):
        monkeypatch.setattr(f"{place}.placement", lambda: limited)
    (said,) = hx.preflight(_network(300, 12), "M4").doubts
    assert said.startswith("eligible, but segment 0 has 175.8 KiB of weights: since macOS 27.0.1 a program above")
    assert "runs on the CPU, without an error (placement reports, read)" in said
