"""Every statement of the published tables against the targets' files; where they differ, a reason is written down."""

from pathlib import Path

import pytest

from published import limits
from published.differences import COMPARED, ELSEWHERE, cells, differences, explains, explanations


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest) -> Path:
    given: Path = request.config.getoption("--facts")
    if not (given / "data").is_dir():
        pytest.skip(f"{given / 'data'} is not there; --facts DIR names its folder")
    return given


def test_every_difference_is_explained(folder: Path) -> None:
    unexplained = [str(difference) for difference in differences(folder) if not difference.because]
    assert not unexplained, "\n".join(unexplained)


def test_every_explanation_explains_a_difference(folder: Path) -> None:
    found = [difference.cell for difference in differences(folder)]
    for row in explanations():
        assert any(explains(row, cell) for cell in found), row


def test_the_tables_are_read_whole(folder: Path) -> None:
    assert sum(1 for _ in cells(folder)) > 5000
    tables = {path.stem for path in (folder / "data").glob("*.csv")}
    read = {name for names in COMPARED for name in names.split(" and ")}
    assert tables == read | set(ELSEWHERE)


# ---- without the folder ----

TABLE = "limit,A13,A14,A15,A16\n"


def table(folder: Path, line: str) -> Path:
    (folder / "data").mkdir()
    (folder / "data" / "family_limits.csv").write_text(TABLE + line + "\n")
    return folder


def test_a_wrong_number_is_found(tmp_path: Path) -> None:
    read = list(limits.family_limits(table(tmp_path, "channel_extent,65536,65536,65535,65536")))
    assert [cell.about for cell in read if not cell.agrees] == ["h15", "h15g", "h15c", "m11"]


def test_a_row_that_no_rule_reads_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\[family_limits\] new_limit: got the text 'new_limit', need a rule"):
        list(limits.family_limits(table(tmp_path, "new_limit,1,1,1,1")))


def test_a_text_that_no_rule_reads_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\[family_limits\] channel_extent: got the text 'many', need a rule"):
        list(limits.family_limits(table(tmp_path, "channel_extent,many,1,1,1")))
