"""Tables leave out empty columns, and their legends the meanings of these."""

import pytest

from hexane.cli.output import print_table
from hexane.report.legend import columns_legend


def test_a_column_without_content_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    shown = print_table(("op", "overflow", "ulps 0"), [("conv", "", "3"), ("relu", "", "")], right=("ulps 0",))
    assert shown == ["op", "ulps 0"]
    assert "overflow" not in capsys.readouterr().out
    assert columns_legend({"op": "a", "overflow": "b", "ulps": "c"}, shown) == "columns:\n  op: a\n  ulps: c"


def test_an_empty_table_keeps_its_heads(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_table(("op", "why"), []) == ["op", "why"]
    assert capsys.readouterr().out.split() == ["op", "why"]
