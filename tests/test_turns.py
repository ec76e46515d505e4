"""Shares of slow tests."""

import pytest

import turns


@pytest.mark.parametrize("count", [0, 1, 3, 4, 10, 100])
def test_the_turns_together_run_every_case_once(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    for turn in range(turns.TURNS):
        monkeypatch.setattr(turns, "TURN", str(turn))
        own = turns.share(range(count))
        assert own == sorted(own)
        assert count // turns.TURNS <= len(own) <= count // turns.TURNS + 1
        ran += own
    assert sorted(ran) == list(range(count))
    monkeypatch.setattr(turns, "TURN", "all")
    assert turns.share(range(count)) == list(range(count))
