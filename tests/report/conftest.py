"""What tests of pages share."""

from collections.abc import Iterator

import pytest

from chromium import MISSING, Chromium, find_chromium


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    program = find_chromium()
    if program is None:
        pytest.skip(MISSING)
    with Chromium(program, tmp_path_factory.mktemp("profile")) as browser:
        yield browser
