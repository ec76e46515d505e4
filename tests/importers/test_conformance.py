"""The cases of tests/conformance/passing.txt still pass; `make conformance` writes that list."""

from itertools import groupby

import pytest

from conformance.suite import PASSING, Case, judge, load_cases

NAMES = {op: list(names) for op, names in groupby(PASSING.read_text().splitlines(), lambda line: line.split()[0])}


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    return {str(case): case for case in load_cases()}


@pytest.mark.parametrize("op", NAMES)
def test_onnx_backend_cases_that_passed_still_pass(op: str, cases: dict[str, Case]) -> None:
    found = {name: judge(cases[name]) for name in NAMES[op]}
    assert {name: outcome for name, outcome in found.items() if outcome.verdict != "pass"} == {}
