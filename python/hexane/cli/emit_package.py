"""The part of `hexane emit` that writes Core ML packages and describes them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import typer

from hexane.cli.emit_asset import Compressor, ports_of, ports_text
from hexane.cli.output import type_text
from hexane.compression.compress import STAGE
from hexane.compression.request import ALIASES
from hexane.errors import Error
from hexane.graph import Graph
from hexane.graph.decisions import counted
from hexane.graph.printer import size_text
from hexane.importers.coreml.description import COLORS
from hexane.importers.coreml.model import SYSTEMS
from hexane.ops import LEAVES
from hexane.report.preflight import examine
from hexane.targets.query import load_chip


def write_package(
    functions: Mapping[str, Graph],
    target: str | None,
    compressed: Compressor,
    compute: Literal["fp16", "fp32"],
    opset: str | None,
    images: Sequence[str],
    labels: Path | None,
    output: Path,
    listed: Sequence[Graph] = (),
) -> dict[str, Any]:
    from hexane.runtime.coreml import save_coreml

    if output.suffix.lower() != ".mlpackage":
        raise Error(f"[emit] --output: got {output}, need a folder that ends in .mlpackage")
    functions = {name: compressed(graph) for name, graph in functions.items()}
    pictures, classes = dict(map(_image, images)), () if labels is None else _lines(labels)
    try:
        saved = save_coreml(
            functions, output, compute=compute, target=target, opset=opset, compression=compressed.mode,
            images=pictures, labels=classes, listed=[compressed(graph) for graph in listed],
        )  # fmt: skip
    except OSError as error:
        need = "need a place that can be written to"
        raise Error(f"--output: {output}: {error.strerror or error}, {need}") from None
    chip = None if target is None else load_chip(target)
    outcomes = {} if chip is None else {name: examine(graph, [chip])[0].outcome for name, graph in functions.items()}
    weights = [
        {"function": name, "layer": d.node, "encoding": d.verdict, "why": d.reason}
        for name, graph in saved.functions.items()
        for d in graph.decisions
        if d.stage == STAGE
    ]
    return {
        "output": str(output), "bytes": saved.bytes, "target": target or "", "compute": compute,
        "opset": f"iOS{saved.system}", "system": SYSTEMS[saved.system], "renamed": dict(saved.renamed),
        "shapes": [ports_of(graph)["inputs"] for graph in listed],
        "functions": {
            name: _ports_of_package(graph, pictures, saved.renamed)
            | {"ops": sum(node.op not in LEAVES for node in graph.nodes)}
            | ({"outcome": outcomes[name].record()} if name in outcomes else {})
            for name, graph in saved.functions.items()
        },
        "weights": weights,
    }  # fmt: skip


def _ports_of_package(graph: Graph, pictures: Mapping[str, str], renamed: Mapping[str, str]) -> dict[str, list[str]]:
    """Returns the types and names of a function's ports, as the package has them: an image input takes pixels."""
    from hexane.emit.coreml.images import CHANNELS, parse_image

    ports = ports_of(graph)
    for i, (name, value) in enumerate(zip(ports["input_names"], graph.inputs, strict=True)):
        if name in pictures:
            image = parse_image(pictures[name])
            planes = [CHANNELS[image.color]] if CHANNELS[image.color] > 1 else []
            pixels = type_text("uint8", [*value.shape[2:], *planes])
            ports["inputs"][i] = f"image, {COLORS[image.color_space]}, {pixels}"
    for side in ("input_names", "output_names"):
        ports[side] = [renamed.get(name, name) for name in ports[side]]
    return ports


def _image(text: str) -> tuple[str, str]:
    name, equals, how = text.partition("=")
    if not (name and equals and how):
        raise typer.BadParameter(f"--image: got {text!r}, need NAME=COLOR, for example x=rgb,scale=1/255")
    return name, how


def _lines(path: Path) -> list[str]:
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise Error(f"[emit] --labels: {path}: {error}, need a text file with a label on each line") from None


def package_text(record: dict[str, Any], mode: str | None) -> str:
    """Returns the text to print: a line on the package, a line per function, and the renamed ports."""
    stored = f", {counted(len(record['weights']), 'weight')} as {ALIASES.get(mode, mode)}" if mode is not None else ""
    lines = [f"{record['output']}: {size_text(record['bytes'])}{stored}, for {record['system']} and newer"]
    for name, function in record["functions"].items():
        lines.append(f"  {name}: {counted(function['ops'], 'op')} in {record['compute']}; {ports_text(function)}")
        if "outcome" in function:
            lines.append(f"    on {load_chip(record['target']).label}: {function['outcome']['verdict']}")
    lines += [f"  also for {', '.join(inputs)}" for inputs in record["shapes"]]
    lines += [f"  {old} is called {new}: Core ML takes letters, digits and _" for old, new in record["renamed"].items()]
    return "\n".join(lines)
