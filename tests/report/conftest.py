"""What tests of pages share."""

from collections.abc import Iterator

import pytest

from chromium import Chromium, find_chromium


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    program = find_chromium()
    if program is None:
        pytest.skip("chromium is not installed, nor does .ci/system install it (apt-get install chromium)")
    with Chromium(program, tmp_path_factory.mktemp("profile")) as browser:
        yield browser
