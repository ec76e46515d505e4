"""The part of `hexane emit` that writes Core ML packages, and what is said of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from hexane.cli.emit_asset import FIXED, ports_of
from hexane.compression import Compression
from hexane.compression.compress import STAGE
from hexane.decisions import counted
from hexane.errors import Error
from hexane.graph import Graph
from hexane.importers.coreml.model import SYSTEMS
from hexane.ops import LEAVES
from hexane.printer import size_text


def write_package(
    functions: Mapping[str, Graph],
    target: str | None,
    mode: str | None,
    compute: Literal["fp16", "fp32"],
    opset: str | None,
    output: Path,
) -> dict[str, Any]:
    """Writes the package, and returns the record of it."""
    from hexane.runtime.coreml import save_coreml

    if output.suffix.lower() != ".mlpackage":
        raise Error(f"[emit] --output: got {output}, need a folder that ends in .mlpackage")
    if mode is not None and Compression(mode).searches:
        raise Error(f"[emit] --compress: got {mode}, which hexane compress finds, need one of {', '.join(FIXED)}")
    try:
        saved = save_coreml(functions, output, compute=compute, target=target, opset=opset, compression=mode)
    except OSError as error:
        need = "need a place that can be written to"
        raise Error(f"--output: {output}: {error.strerror or error}, {need}") from None
    weights = [
        {"function": name, "layer": d.node, "encoding": d.verdict, "why": d.reason}
        for name, graph in saved.functions.items()
        for d in graph.decisions
        if d.stage == STAGE
    ]
    return {
        "output": str(output), "bytes": saved.bytes, "target": target or "", "compute": compute,
        "opset": f"iOS{saved.system}", "system": SYSTEMS[saved.system], "renamed": dict(saved.renamed),
        "functions": {
            name: {**ports_of(graph), "ops": sum(node.op not in LEAVES for node in graph.nodes)}
            for name, graph in saved.functions.items()
        },
        "weights": weights,
    }  # fmt: skip


def package_text(record: dict[str, Any], mode: str | None) -> str:
    """What is printed of it: a line, one for each function, and ports that have other names."""
    stored = f", {counted(len(record['weights']), 'weight')} as {mode}" if mode is not None else ""
    lines = [f"{record['output']}: {size_text(record['bytes'])}{stored}, for {record['system']} and newer"]
    for name, made in record["functions"].items():
        ports = f"{', '.join(made['inputs'])} -> {', '.join(made['outputs'])}"
        lines.append(f"  {name}: {counted(made['ops'], 'op')} in {record['compute']}; {ports}")
    lines += [f"  {old} is called {new}: Core ML takes letters, digits and _" for old, new in record["renamed"].items()]
    return "\n".join(lines)
