"""`help` of the classes of options describes each field."""

import pydoc
from dataclasses import fields

import pytest

import hexane as hx


@pytest.mark.parametrize("options", [hx.Options, hx.Memory, hx.Device])
def test_help_describes_each_field(options: type) -> None:
    text = pydoc.plain(pydoc.render_doc(options))
    for one in fields(options):
        described = text.partition(f"\n |  {one.name}: ")[2].partition("\n")[2].partition("\n")[0].strip(" |")
        assert len(described) > 20, f"{one.name}: {described!r}"


def test_the_words_are_those_of_the_source() -> None:
    assert 'fallback: str\n    What happens to ops that the chip cannot run. "host": they run on the host.' in (
        hx.Options.__doc__ or ""
    )
