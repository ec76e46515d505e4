"""The code blocks of a page of Markdown."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from markdown_it import MarkdownIt

NOT_RUN = re.compile(r"<!-- not run: (.+) -->")


class Block(NamedTuple):
    language: str  # "indented" where the page has no fence
    text: str
    begin: int  # its lines in the page, without the fences
    end: int
    not_run: str  # the reason in the comment above it; "" where there is none


def blocks_of(page: str) -> Iterator[Block]:
    not_run = ""
    for token in MarkdownIt().parse(page):
        if token.type in ("fence", "code_block"):
            assert token.map is not None
            fences = 1 if token.type == "fence" else 0
            begin, end = token.map[0] + fences, token.map[1] - fences
            yield Block(token.info if fences else "indented", token.content, begin, end, not_run)
        found = NOT_RUN.fullmatch(token.content.strip()) if token.type == "html_block" else None
        not_run = found[1] if found else ""


def with_texts(page: str, texts: dict[Block, str]) -> str:
    """The page with other texts in these blocks."""
    lines = page.splitlines(keepends=True)
    for block in sorted(texts, key=lambda block: block.begin, reverse=True):
        lines[block.begin : block.end] = [texts[block]]
    return "".join(lines)
