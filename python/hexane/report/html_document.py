"""The frame of every page: one file that works offline, with data and the page's script. The page may run no other
script and loads nothing."""

import json
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def html_document(title: str, words: str, data: Any, styles: Sequence[str], scripts: Sequence[str]) -> str:
    """Returns a page with this data. styles, scripts: files of this folder. words: shown without scripts.

    Content from a model is data in the page, never markup.
    """
    style, script = (
        "".join((FOLDER / name).read_text(encoding="utf-8") for name in names) for names in (styles, scripts)
    )
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    policy = f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
<noscript>{escape(words)} This page needs its script to show more.</noscript>
<script type="application/json" id="data">{text}</script>
<script>{script}</script>
</body>
</html>
"""


def _source(text: str) -> str:
    """A policy source that allows exactly this content."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


class Table:
    """Items without duplicates, in order of first use."""

    def __init__(self) -> None:
        self.places: dict[Any, int] = {}

    def place(self, item: Any) -> int:
        return self.places.setdefault(item, len(self.places))

    @property
    def items(self) -> list[Any]:
        return list(self.places)
