"""The part of `hexane emit` that writes Core AI assets and describes them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from hexane import sources
from hexane.cli.given import Given, read_graph
from hexane.cli.large_error import is_too_large, refusal
from hexane.cli.output import named_option, type_text
from hexane.compression import Compression
from hexane.compression.compress import STAGE, compress
from hexane.compression.request import ALIASES, FIXED_TEXT
from hexane.errors import Error
from hexane.graph import Graph
from hexane.graph.decisions import counted
from hexane.graph.printer import size_text
from hexane.runtime.compile_graphs import host_error
from hexane.targets import Chip, load_target


@dataclass(frozen=True, slots=True)
class Compressor:
    """The option --compress of a command that writes to `output`. feeds: inputs on which the error is
    measured; empty: random ones. force: write the result even if its error is large."""

    mode: str | None
    chip: Chip | None
    output: Path
    feeds: Sequence[Mapping[str, Any]] = ()
    force: bool = False

    def __call__(self, graph: Graph) -> Graph:
        """Returns the graph with encoded weights, and a decision per weight. Raises Error for a mode that needs a
        search, and without `force` if an output's relative error exceeds `large_error.MOST`."""
        if self.mode is None:
            return graph
        asked = Compression(self.mode)
        if asked.searches:
            raise Error(f"[emit] --compress: got {self.mode}, which hexane compress finds, need {FIXED_TEXT}")
        compressed = compress(graph, asked, self.chip or load_target("host"))
        if self.force or not any(d.stage == STAGE and d.verdict != "none" for d in compressed.decisions):
            return compressed
        error, on = host_error(graph, compressed, self.feeds)
        if is_too_large(error, None):
            raise refusal("emit", self.output, error, None, on, self._change())
        return compressed

    def _change(self) -> str:
        own = "" if self.feeds else "give --input with numbers of the model's own, "
        return f"{own}use a mode of more bits, or hexane compress, which says what each layer costs"


def functions_of(source: sources.Module, function: str | None, also: Iterable[str], given: Given) -> dict[str, Graph]:
    """Returns the functions to write: all of an asset or package by name, or the selected one, or a model of another
    format as `main`. also: further functions, as NAME=MODEL."""
    if function is None and source.form in ("aimodel", "coreml"):
        graphs = _all_functions(source, given.read(source, every=True).shapes)
    else:
        graphs = {"main": read_graph(source, given)[0]}
    for text in also:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise typer.BadParameter(f"--also: got {text!r}, need NAME=MODEL, for example decode=decode.onnx")
        if name in graphs:
            raise Error(f"[emit] --also: got the function {name!r} twice, need another name than {', '.join(graphs)}")
        graphs[name] = sources.open_network(path, where="emit").graph()
    return graphs


def _all_functions(source: sources.Module, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Graph]:
    """Returns all functions of a model, each with the given shapes of its own inputs."""
    inputs = {name: {i.name for i in function.signature.inputs} for name, function in source.functions.items()}
    known = set[str]().union(*inputs.values())
    if unknown := set(shapes) - known:
        raise Error(f"[coreai] got a shape for {min(unknown)!r}, need inputs of {', '.join(sorted(known))}")
    return {
        name: function.usual_graph({k: shape for k, shape in shapes.items() if k in inputs[name]}, {})
        for name, function in source.functions.items()
    }


def write_asset(
    functions: Mapping[str, Graph], chip: Chip | None, compressed: Compressor, output: Path
) -> dict[str, Any]:
    from hexane.emit.coreai.prepare import for_engine
    from hexane.emit.coreai.write import save_graph

    if output.suffix.lower() != ".aimodel":
        raise Error(f"[emit] --output: got {output}, need a folder that ends in .aimodel")
    if output.exists() and not output.is_dir():
        raise Error(f"[emit] --output: got the file {output}, need a folder")
    stored = {name: compressed(graph) for name, graph in functions.items()}
    graphs = {name: graph if chip is None else for_engine(graph, chip) for name, graph in stored.items()}
    with named_option("--output", output):
        size = save_graph(graphs, output)
    ports = {name: ports_of(graph) for name, graph in graphs.items()}
    weights = [
        {"function": name, "layer": d.node, "encoding": d.verdict, "why": d.reason}
        for name, graph in stored.items()
        for d in graph.decisions
        if d.stage == STAGE
    ]
    record = {"output": str(output), "bytes": size, "target": chip.name if chip else ""}
    return {**record, **next(iter(ports.values())), "functions": ports, "weights": weights}


def ports_of(graph: Graph) -> dict[str, list[str]]:
    """Returns the types and the names of the inputs and outputs."""
    sides = {"inputs": [v.type for v in graph.inputs], "outputs": [p.value.type for p in graph.outputs]}
    types = {side: [type_text(str(t.dtype), list(t.shape)) for t in types] for side, types in sides.items()}
    return {
        **types,
        "input_names": [str(v.node.attrs["name"]) for v in graph.inputs],
        "output_names": [port.name for port in graph.outputs],
    }


def ports_text(ports: Mapping[str, Sequence[str]]) -> str:
    """Returns a text such as "x: fp32[1, 3, 8, 8] -> y: fp32[1, 10]"."""
    sides = (zip(ports[f"{side}_names"], ports[f"{side}s"], strict=True) for side in ("input", "output"))
    return " -> ".join(", ".join(f"{name}: {kind}" for name, kind in side) for side in sides)


def asset_text(record: dict[str, Any], mode: str | None) -> str:
    """Returns the text to print: a line, and one per function if there are several."""
    stored = f"; {counted(len(record['weights']), 'weight')} as {ALIASES.get(mode, mode)}" if mode is not None else ""
    head = f"{record['output']}: {size_text(record['bytes'])}{stored}"
    functions = {name: ports_text(ports) for name, ports in record["functions"].items()}
    if len(functions) == 1:
        return f"{head}; {next(iter(functions.values()))}"
    return "\n".join([head, *(f"  function {name}: {ports}" for name, ports in functions.items())])
