"""`hexane codegen`: a plan as C99 sources, for microcontrollers and other places without Python."""

import os
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from hexane.cli.errors import command
from hexane.cli.model import is_plan
from hexane.cli.options import Debug, Json
from hexane.cli.output import print_json, working
from hexane.emit.c99 import PlanView, c_name, generate
from hexane.errors import Error
from hexane.importers.files import open_regular
from hexane.printer import size_text


class Format(str, Enum):
    APP = "app"
    CORE = "core"


@command
def codegen(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan, as `hexane compile` writes it.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The folder that gets the sources.")],
    format: Annotated[
        Format,
        typer.Option(help="app: with a main program and a Makefile; core: the runtime and the network alone."),
    ] = Format.APP,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="What files and symbols begin with. [default: the plan's name]")
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write C99 sources that run a plan: the runtime, the plan's bytes and its memory, with the kernels it uses."""
    if not is_plan(plan):
        raise Error(f"[codegen] {plan}: got no plan, need one: hexane compile {plan} -o {plan.stem}.hxp")
    if name is not None and c_name(name) != name:
        raise Error(f"[codegen] --name: got {name!r}, need an identifier of C, such as {c_name(name)!r}")
    with os.fdopen(open_regular(plan, f"[codegen] {plan}", "plan"), "rb") as file:
        data = file.read()
    symbol = name or c_name(plan.stem)
    with working(f"writing {output}"):
        files = generate(data, symbol, app=format is Format.APP)
        _write(output, files)
    view = PlanView(data)
    kernels, activations = view.used()
    arena = sum(space.bytes for space in view.spaces if space.kind not in ("weights", "port"))
    ports = view.port_bytes
    if json:
        sizes = {"plan_bytes": len(data), "weight_bytes": view.weight_bytes, "arena_bytes": arena, "port_bytes": ports}
        print_json({"folder": str(output), "name": symbol, **sizes, "kernels": kernels, "activations": activations})
        return
    print(
        f"{output}: {len(files)} files; flash: plan {size_text(len(data))} (weights {size_text(view.weight_bytes)}); RAM: arena {size_text(arena)}, ports {size_text(ports)}"
    )
    print(f"kernels: {', '.join([*kernels, *activations])}")


def _write(folder: Path, files: dict[str, str]) -> None:
    """Each file whole or as it was before."""
    for place, text in files.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".part")
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
