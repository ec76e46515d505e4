"""Pages of docs/ that are generated from code and data.

`make docs` writes them into the site; `python -m hexane.cli.pages ops.md` prints one.
"""

import sys
from collections.abc import Callable

from hexane.cli import explain_page, legality_page, ops_page, passes_page, targets_page

WHOLE: dict[str, Callable[[], str]] = {
    "ops.md": ops_page.page,
    "targets.md": targets_page.page,
    "legality.md": legality_page.page,
}
# Generators of parts of pages. In the page's file, `mark` holds the place of the part.
PARTS: dict[str, Callable[[], str]] = {
    "explain.md": explain_page.what_explain_prints,
    "passes.md": passes_page.passes_in_order,
}


def mark(name: str) -> str:
    """Returns the line in docs/NAME that `make docs` replaces by the generated part."""
    return f"*`make docs` writes this part of the page. `python -m hexane.cli.pages {name}` prints it.*"


def with_its_part(name: str, text: str) -> str:
    """Returns the page with its generated part, if it has one."""
    return text.replace(mark(name), PARTS[name]()) if name in PARTS else text


if __name__ == "__main__":
    pages = WHOLE | PARTS
    asked = sys.argv[1] if len(sys.argv) == 2 else ""
    if asked not in pages:
        sys.exit(f"page: got {asked or 'nothing'!r}, need one of {', '.join(pages)}")
    sys.stdout.write(pages[asked]())
