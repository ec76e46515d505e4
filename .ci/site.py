"""Hooks of mkdocs: they add the generated pages to the site."""

from typing import Any

from mkdocs.structure.files import File

from hexane.cli.pages import WHOLE, with_its_part


def on_files(files: Any, config: Any) -> Any:
    for name, page in WHOLE.items():
        files.append(File.generated(config, name, content=page()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return with_its_part(page.file.src_uri, markdown)
