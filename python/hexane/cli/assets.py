"""Prints what `hexane info` adds for a Core AI asset: its functions, states and files."""

from pathlib import Path
from typing import Any

from hexane.cli.output import print_table
from hexane.importers.coreai import Asset, AssetFunction, AssetPort, open_asset
from hexane.importers.coreai.bodies import bodies_that_disagree


def asset_record(path: Path) -> dict[str, Any]:
    asset = open_asset(path)
    return {
        "functions": {name: _function(function) for name, function in asset.public().items()},
        "asset": {
            "producer": asset.metadata.get("producer", ""),
            "author": asset.metadata.get("author", ""),
            "license": asset.metadata.get("license", ""),
            "least_version": asset.version,
            "hash_fits": asset.hash_fits,
            "loads_today": not asset.is_of_the_first_converters,
            "composites": _composites(asset),
            "bodies_that_disagree": bodies_that_disagree(asset),
            "folders_of_the_author": authors_folders(asset),
        },
    }


def authors_folders(asset: Asset) -> list[str]:
    """Returns the absolute folders that the asset's texts reveal of its author's machine."""
    folders = {
        text.replace("\\", "/").rpartition("/")[0]
        for text in asset.bytecode.strings
        if (text.startswith("/") or text[1:3] == ":\\") and text.count("/") + text.count("\\") > 1
    }
    return sorted(folders)


def _composites(asset: Asset) -> dict[str, int]:
    names = [function.composite.name for function in asset.functions.values() if function.composite is not None]
    return {name: names.count(name) for name in sorted(set(names))}


def _function(function: AssetFunction) -> dict[str, Any]:
    return {kind: [_port(port) for port in getattr(function, kind)] for kind in ("inputs", "states", "outputs")}


def _port(port: AssetPort) -> dict[str, str]:
    return {"name": port.name, "type": str(port.type)}


def print_asset(record: dict[str, Any]) -> None:
    asset = record["asset"]
    if asset["producer"]:
        print(f"written by {asset['producer']}")
    if not asset["loads_today"]:
        print("This file is from the first converters: loaders of OS 27 beta 2 and later abort on it.")
    if asset["hash_fits"] is False:
        print("main.hash is not the hash of main.mlirb: the file was changed after it was written.")
    if folders := asset["folders_of_the_author"]:
        more = f" and {len(folders) - 1} more" if len(folders) > 1 else ""
        print(f"It names a folder of its author's machine: {folders[0]}{more}")
    for line in asset["bodies_that_disagree"]:
        print(f"{line} than its name says; systems go by the name")
    rows = [
        (name, kind[:-1], port["name"], port["type"])
        for name, function in record["functions"].items()
        for kind in ("inputs", "states", "outputs")
        for port in function[kind]
    ]
    print_table(("function", "", "name", "type"), rows)
    if asset["composites"]:
        print(f"composites: {', '.join(f'{name} ({count})' for name, count in asset['composites'].items())}")
    print()
