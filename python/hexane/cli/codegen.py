"""`hexane codegen`: writes a plan as C99 sources, for microcontrollers and other systems without Python."""

import os
from collections import Counter
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from hexane import sources
from hexane.cli.errors import command
from hexane.cli.inputs import SEED
from hexane.cli.options import Debug, Json
from hexane.cli.output import named_option, print_json, working
from hexane.emit.c99 import c_name, generate
from hexane.emit.cmsis_nn import Assignment, Body
from hexane.emit.plan_view import PlanView, Port, arena_bytes
from hexane.emit.prepare import prepared
from hexane.errors import Error
from hexane.graph.printer import size_text
from hexane.importers.files import open_regular
from hexane.runtime import load
from hexane.runtime.c99 import C99Model
from hexane.runtime.model import PortType
from hexane.runtime.random_arrays import random_arrays
from hexane.system.c99_library import own_library


class Format(str, Enum):
    APP = "app"
    CORE = "core"


class Backend(str, Enum):
    REFERENCE = "reference"
    CMSIS_NN = "cmsis-nn"


@command
def codegen(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan, as `hexane compile` writes it.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The folder to write the sources to.")],
    format: Annotated[
        Format,
        typer.Option(
            help="app: the runtime, the network, a main program and a Makefile; core: only the runtime and the network."
        ),
    ] = Format.APP,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The prefix of file names and symbols. [default: the plan's name]"),
    ] = None,
    backend: Annotated[
        Backend,
        typer.Option(
            help=(
                "reference: the runtime's own kernels; cmsis-nn: CMSIS-NN for all steps that it computes with the same"
                " bits, of a plan in TFLite's arithmetic (compile --numerics q31). `make CMSIS_NN=FOLDER` names the"
                " folder of CMSIS-NN."
            )
        ),
    ] = Backend.REFERENCE,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write C99 sources that run a plan: the runtime, the plan's bytes, its memory, and the kernels that it needs."""
    form = sources.form_of(plan, where="codegen")
    if form == "plans":
        raise Error(f"[codegen] {plan}: got several plans, need one: hexane compile MODEL --function NAME -o X.hxp")
    if form != "plan":
        raise Error(f"[codegen] {plan}: got no plan, need one: hexane compile {plan} -o {plan.stem}.hxp")
    if name is not None and c_name(name) != name:
        raise Error(f"[codegen] --name: got {name!r}, need an identifier of C, such as {c_name(name)!r}")
    with os.fdopen(open_regular(plan, f"[codegen] {plan}", "plan"), "rb") as file:
        data = file.read()
    symbol = name or c_name(plan.stem)
    with working(f"writing {output}"):
        files = generate(data, symbol, app=format is Format.APP, cmsis_nn=backend is Backend.CMSIS_NN)
        view = PlanView(prepared(data))
        golden = _golden(plan, view) if format is Format.APP else {}
        written: dict[str, str | bytes] = {**files, **golden}
        with named_option("--output", output):
            _write(output, written)
    kernels, activations = view.used()
    bodies = view.bodies() if backend is Backend.CMSIS_NN else {}
    arena = max(arena_bytes(view, assignment) for assignment in (*bodies.values(), None))
    ports = view.port_bytes
    if json:
        sizes = {"plan_bytes": len(data), "weight_bytes": view.weight_bytes, "arena_bytes": arena, "port_bytes": ports}
        steps = {"cmsis_nn": _rows(bodies["dsp"])} if bodies else {}
        print_json(
            {"folder": str(output), "name": symbol, **sizes, "kernels": kernels, "activations": activations, **steps}
        )
        return
    print(
        f"{output}: {len(written)} files; flash: plan {size_text(len(data))} (weights {size_text(view.weight_bytes)}),"
        f" and the code; RAM: arena {size_text(arena)}, inputs and outputs {size_text(ports)}"
        " (`hexane compile --sram` limits the arena)"
    )
    print(f"kernels: {', '.join([*kernels, *activations])}")
    if bodies:
        _print_bodies(bodies["dsp"])


def _rows(assignment: Assignment) -> list[dict[str, object]]:
    """Returns a row per step. reason: why the runtime's own kernel computes it, null if CMSIS-NN does; partly: true if
    the runtime's kernel computes those rows that wrap around in a ring buffer; scratch: bytes."""
    return [
        {
            "step": i,
            "kernel": kernel,
            "reason": None if isinstance(body, Body) else body,
            "partly": i in assignment.partly,
            "scratch": assignment.scratch[i].bytes if i in assignment.scratch else 0,
        }
        for i, kernel, body in assignment.steps
    ]


def _print_bodies(assignment: Assignment) -> None:
    theirs = Counter(kernel for _, kernel, body in assignment.steps if isinstance(body, Body))
    counts = ", ".join(f"{count} {kernel}" for kernel, count in theirs.items())
    print(f"CMSIS-NN computes {theirs.total()} of {len(assignment.steps)} steps{counts and f': {counts}'}")
    rest: dict[tuple[str, str], list[int]] = {}
    for i, kernel, body in assignment.steps:
        if isinstance(body, str):
            rest.setdefault((f"not {kernel}", body), []).append(i)
        elif i in assignment.partly:
            reason = "the arena has no room to copy rows that wrap around in a ring: the runtime's kernel computes them"
            rest.setdefault((f"only a part of {kernel}", reason), []).append(i)
    for (what, reason), rows in rest.items():
        print(f"  {what} ({'steps' if len(rows) > 1 else 'step'} {', '.join(map(str, rows))}): {reason}")
    if not theirs:
        print("  compile the model with --numerics q31, which is the arithmetic that CMSIS-NN has")


def _golden(plan: Path, view: PlanView) -> dict[str, bytes]:
    """Returns an input.bin of random numbers for the app, and the output.bin that it must write. input.bin has whole
    inputs first, then the rows of a streamed input; output.bin has the rows of a streamed output first, then whole
    outputs. Returns nothing if several ports are streamed, because the app mixes their rows, or if the plan refuses
    random inputs."""
    if any(sum(port.rows is not None for port in ports) > 1 for ports in (view.inputs, view.outputs)):
        return {}
    net = load(plan, threads=1)
    arrays = random_arrays(net.inputs, SEED)
    bytes_of_all_values = {port.name: _all_bytes(port) for port in net.inputs if port.dtype.bits == 8}
    # Tries inputs with all byte values, as in images, then small numbers, as in indices.
    for given in (arrays | bytes_of_all_values, arrays):
        try:
            net(given)  # raises Error if indices are out of range
        except Error:
            continue
        arrays = given
        break
    else:
        return {}
    # The C99 runtime computes the output, because its fp32 sums have another order than this CPU's kernels.
    results = C99Model(plan.read_bytes(), own_library())(arrays)

    def laid_out(port: Port, array: Any) -> bytes:
        whole = np.ascontiguousarray(array)
        return whole.tobytes() if port.rows is None else port.rows.view(whole).tobytes()

    ins = sorted(view.inputs, key=lambda port: port.rows is not None)
    outs = sorted(view.outputs, key=lambda port: port.rows is None)
    return {
        "golden/input.bin": b"".join(laid_out(port, arrays[port.name]) for port in ins),
        "golden/output.bin": b"".join(laid_out(port, results[port.name]) for port in outs),
    }


def _all_bytes(port: PortType) -> Any:
    """Returns random numbers drawn from all 256 values of the dtype, as quantised inputs have."""
    shape = tuple(d for d in port.shape if isinstance(d, int))
    numbers = np.random.default_rng(SEED).integers(0, 256, shape).astype(np.uint8)
    return numbers.view(port.dtype.numpy)


def _write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    for place, text in files.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".part")
        partial.write_bytes(text if isinstance(text, bytes) else text.encode())
        partial.replace(path)
