"""`hexane info`: shows the interface, ops, weights and memory of a model or a plan, or the contents of a file of
Apple's compilers."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import hexane
from hexane import sources
from hexane.cli.assets import asset_record, print_asset
from hexane.cli.containers import container_record, print_container
from hexane.cli.errors import command
from hexane.cli.given import Given, Known
from hexane.cli.model import open_model
from hexane.cli.options import (
    Debug,
    Dtype,
    Function,
    Inputs,
    InputShapes,
    Json,
    Values,
)
from hexane.cli.output import print_json, print_table, type_text, working
from hexane.cli.packages import package_record, print_package
from hexane.errors import Error
from hexane.graph.decisions import counted
from hexane.graph.printer import size_text
from hexane.ops import LEAVES
from hexane.runtime import PortType
from hexane.runtime.load import functions_in
from hexane.runtime.open_model import shape_options

MEMORY = {
    "weights": "constants, as the kernels read them",
    "arena": "tensors between steps",
    "state": "tensors that are kept from call to call",
    "scratch": "what this machine's kernels need while they run",
}


@command
def info(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL|PLAN|HWX|E5", help="A model, a plan, or .hwx or .e5."),
    ],
    dtype: Dtype = None,
    input_shape: InputShapes = None,
    inputs: Inputs = None,
    values: Values = None,
    function: Function = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the interface, ops, weights and memory of a model; for .hwx and .e5 files, which Apple's compilers write,
    their parts."""
    source = sources.open(model, function=function, where="info")
    if source.form in ("hwx", "e5"):
        if dtype or input_shape or inputs or values:
            raise Error(f"[info] {model}: got an option of the compiler for a compiled program, need none")
        parts = container_record(model, source.form)
        print_json(parts) if json else print_container(parts)
        return
    record: dict[str, Any] = {"model": str(model), "format": source.form}
    if source.form == "aimodel":
        record |= asset_record(source.source)
    if source.form == "coreml":
        record |= package_record(source.source, source.asked)
        if function is None and len(source.functions) > 1 and "main" not in source.functions:
            print_json(record) if json else _print(record)
            return
    if source.form == "plans" and source.asked is None and len(names := functions_in(model)) > 1:
        record["functions"] = names
        print_json(record) if json else _print(record)
        return
    if source.form == "encoder" and source.asked is None:
        record["also"] = [f"{model}#{name}" for name in source.functions if name != "main"]
    given = Given.of(input_shape, inputs, values)
    net, known = open_model(source, dtype=dtype, given=given)
    if isinstance(net, (hexane.OpenModel, hexane.StagedModel)):
        record |= _open(net)
    else:
        record |= {} if source.form in ("plan", "plans") else _imported(source, model.name, known)
        record |= _compiled(net)
    if json:
        print_json(record)
    else:
        _print(record)


def _ports(ports: Sequence[PortType]) -> list[dict[str, Any]]:
    return [{"name": p.name, "dtype": str(p.dtype), "shape": list(p.shape)} for p in ports]


def _open(net: hexane.OpenModel | hexane.StagedModel) -> dict[str, Any]:
    """Returns the facts that do not depend on shapes; `fix` has the options that fix the shapes."""
    outputs = [{"name": name} for name in net.output_names]
    return {
        "inputs": _ports(net.inputs),
        "outputs": outputs,
        "values_needed": sorted(net.value_inputs),
        "fix": shape_options(net.inputs),
    }


def _imported(source: sources.Module, name: str, known: Known) -> dict[str, Any]:
    """Returns the counts of ops in the imported graph, before any pass."""
    with working(f"importing {name}"):
        graph = source.graph(known.shapes, known.values)
    return {"ops": dict(Counter(node.op for node in graph.nodes if node.op not in LEAVES).most_common())}


def _compiled(net: hexane.Model) -> dict[str, Any]:
    memory = dict(net.memory)
    if net.program is not None:
        memory["arena_bound"] = net.program.extents["arena"].bound
    return {
        "inputs": _ports(net.inputs),
        "outputs": _ports(net.outputs),
        "kernels": dict(Counter(step["kernel"] for step in net.steps).most_common()),
        "memory": memory,
        "threads": net.threads,
        "target": net.target,
        "device": net.device,
    }


def _print(record: dict[str, Any]) -> None:
    chip = "" if record.get("target", "host") == "host" else f", compiled for {record['target']}"
    print(f"{record['model']} ({record['format']}{chip})\n")
    if "asset" in record:
        print_asset(record)
    if "coreml" in record:
        print_package(record)
    if "functions" in record:
        print("functions  " + ", ".join(record["functions"]))
    if "inputs" not in record:
        print("Ops and memory of a function: --function NAME")
        return
    if "asset" in record or "coreml" in record:
        print("ports of the network that Hexane makes of the file:")
    for kind in ("inputs", "outputs"):
        for port in record[kind]:
            described = type_text(port["dtype"], port["shape"]) if "dtype" in port else ""
            print(f"{kind[:-1]:8}{port['name']}  {described}".rstrip())
    for name in record.get("also", ()):
        print(f"also    {name}")
    if "memory" not in record:
        print()
        for name in record["values_needed"]:
            print(f"The value of {name} decides shapes: it is given when the model is run.")
        if record["fix"]:
            print(f"Ops and memory depend on the free dims; fix them with {' '.join(record['fix'])}")
        return
    for kind in ("ops", "kernels"):
        if kind in record:
            print()
            print_table((kind, "count"), [(name, str(n)) for name, n in record[kind].items()], right=("count",))
    print()
    memory = record["memory"]
    for name in ("weights", "arena", "state", "scratch"):
        line = f"{name:8}{size_text(memory[name]):>10}"
        bound = memory.get("arena_bound") if name == "arena" else None
        on = f", on {counted(record['threads'], 'thread')}" if name == "scratch" else ""
        print(f"{line}  {MEMORY[name]}{on}" + ("" if bound is None else f"; in use at once: {size_text(bound)}"))
