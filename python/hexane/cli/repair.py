"""`hexane repair` and `hexane strip`: rewrite a Core AI asset's source locations without changing its results."""

from pathlib import Path
from typing import Annotated, Any

import typer

import hexane
from hexane import sources
from hexane.cli.assets import authors_folders
from hexane.cli.errors import command
from hexane.cli.options import Debug, Json
from hexane.cli.output import named_option, print_json, working
from hexane.errors import Error
from hexane.graph.printer import size_text
from hexane.importers.coreai import Asset, open_asset, read_asset

AssetFolder = Annotated[Path, typer.Argument(metavar="OLD.aimodel", help="A Core AI asset.")]
Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="NEW.aimodel", help="The folder to write the asset to.")
]


@command
def repair(asset: AssetFolder, output: Output, json: Json = False, debug: Debug = False) -> None:
    """Make an asset of the first converters load on current systems again, with the same results."""
    from hexane.emit.coreai.relocate import repaired

    with working(f"reading {asset.name}"):
        old = _open(asset, "repair")
        program = repaired(old)
    done = "repaired" if old.is_of_the_first_converters else "nothing to repair, written with its hash"
    _write("repair", asset, old, program, output, done, json)


@command
def strip(asset: AssetFolder, output: Output, json: Json = False, debug: Debug = False) -> None:
    """Remove the author's files, lines and modules from an asset; an asset of the first converters is repaired too."""
    from hexane.emit.coreai.relocate import stripped

    with working(f"reading {asset.name}"):
        old = _open(asset, "strip")
        program = stripped(old)
    folders = authors_folders(old)
    _write("strip", asset, old, program, output, f"without {len(folders)} folder{'s' * (len(folders) != 1)}", json)


def _open(path: Path, what: str) -> Asset:
    form = sources.form_of(path, where=what)
    if form != "aimodel":
        raise Error(f"[{what}] {path}: got the format {form}, need a Core AI asset")
    return open_asset(path)


def _write(what: str, path: Path, old: Asset, program: bytes, output: Path, done: str, json: bool) -> None:
    from hexane.emit.coreai.asset import save_asset

    if output.suffix.lower() != ".aimodel":
        raise Error(f"[{what}] --output: got {output}, need a folder that ends in .aimodel")
    if output.exists() and not output.is_dir():
        raise Error(f"[{what}] --output: got the file {output}, need a folder")
    read_asset(program, str(output))  # check the program before writing it
    metadata: dict[str, Any] = {"assetVersion": "2.0", "producer": f"hexane {hexane.__version__}", **old.metadata}
    with named_option("--output", output):
        save_asset(output, program, metadata)
    before = sum(len(section.data) for section in old.bytecode.sections.values())
    if json:
        print_json({"asset": str(path), "output": str(output), "bytes": len(program), "done": done})
        return
    print(f"{output}: {size_text(len(program))}, {done} (was {size_text(before)})")
