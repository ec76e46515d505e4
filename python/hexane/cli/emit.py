"""`hexane emit`: writes a model as MIL programs with their weights, as a Core AI asset, or as a Core ML package."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from hexane import sources
from hexane.cli.emit_asset import Compressor, asset_text, functions_of, write_asset
from hexane.cli.emit_package import package_text, write_package
from hexane.cli.errors import command
from hexane.cli.given import Given, read_graph
from hexane.cli.inputs import with_random
from hexane.cli.large_error import Force
from hexane.cli.on_inputs import judged
from hexane.cli.options import (
    Debug,
    Function,
    Inputs,
    Json,
    ListedShapes,
    ModelFile,
    NamedShape,
    NamedShapes,
    Repair,
    Repairs,
    Values,
)
from hexane.cli.output import named_option, print_json, type_text, working
from hexane.compression.request import FIXED_TEXT
from hexane.emit.mil import STAGE, Mil, MilPort
from hexane.emit.mil.write import WEIGHTS
from hexane.errors import Error
from hexane.graph import Graph, Value
from hexane.graph.decisions import Decision, counted
from hexane.graph.printer import size_text
from hexane.netplist import Netplist
from hexane.netplist import as_graph as as_graph_of_netplist
from hexane.netplist.plist import WEIGHTS as NETPLIST_WEIGHTS
from hexane.ops import LEAVES
from hexane.passes.repair import without_repair
from hexane.program import Segment
from hexane.report.model_ports import ports_of
from hexane.runtime.emitted import save_mil, save_netplist, save_programs
from hexane.runtime.mil import emit_netplists, emit_pieces
from hexane.targets import Chip
from hexane.targets.floors import route_of
from hexane.targets.query import load_chip


class Compute(str, Enum):
    """--compute: the float dtype of a package."""

    FP16 = "fp16"
    FP32 = "fp32"


class Form(str, Enum):
    """--format: the kind of file to write."""

    MIL = "mil"
    AIMODEL = "aimodel"
    MLPACKAGE = "mlpackage"


@command
def emit(
    model: ModelFile,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="DIR", help="The folder to write. It is created if it does not exist."),
    ],
    target: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The chip or a device that has it: A14, M1, iPhone 12, h13. MIL needs one."),
    ] = None,
    form: Annotated[
        Form | None,
        typer.Option(
            "--format",
            help="mil, aimodel (Core AI) or mlpackage (Core ML). [default: by the name of the folder]",
        ),
    ] = None,
    netplist: Annotated[
        bool,
        typer.Option("--netplist", help="Write net.plist and weights.0, the only format of chips before family A13."),
    ] = False,
    mode: Annotated[
        str | None,
        typer.Option("--compress", metavar="MODE", help=f"Store weights in fewer bits: {FIXED_TEXT}."),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=MODEL", help="Another function of an asset or package. Repeatable."),
    ] = None,
    compute: Annotated[
        Compute | None, typer.Option(help="Of a package: fp16, or the model's own floats. [default: fp16]")
    ] = None,
    opset: Annotated[
        str | None,
        typer.Option(metavar="iOSNN", help="Of a package: iOS15 to iOS18. [default: the oldest that has all ops]"),
    ] = None,
    image: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=COLOR", help="Of a package: an input that is an image: x=rgb,scale=1/255,bias=0."),
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of a package: the classes of a classifier, a line for each.")
    ] = None,
    input_shape: ListedShapes = None,
    inputs: Inputs = None,
    values: Values = None,
    function: Function = None,
    repair: Repairs = Repair.ON,
    force: Force = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write the engine's part of a model as MIL (model.mil and weights/weights.bin), or the whole model as a Core AI
    asset or a Core ML package.

    If the engine has several parts, each gets its own folder: segment_0, segment_2. The host's parts are not written.
    An asset or package has the whole model, and all functions if MODEL is an asset or package. With --target the
    model is in fp16, and ops that the chip lacks become ops that it has, where possible. Functions share equal
    weights. Weights of at least 4096 numbers are stored as --compress defines (docs/compression.md). Exit code 1, and
    no file, if --compress changes an output by more than 0.1 (relative error), on --input or else on random inputs;
    --force writes it. With a target and all inputs, the command shows how far the chip's outputs are off on them, and
    which op causes it, as `hexane check` does.
    """
    source = sources.open_network(model, function=function, where="emit")
    usual = [NamedShape(one.name, one.shapes[0]) for one in input_shape or ()]
    several = [one for one in input_shape or () if len(one.shapes) > 1]
    given = Given.of(usual, inputs, values)
    compressed = Compressor(mode, None, output, _feeds(source, given, mode), force)
    if form is Form.MLPACKAGE or (form is None and output.suffix.lower() == ".mlpackage"):
        if netplist:
            raise Error("[emit] --netplist: got it for a Core ML package, need one of the two")
        compressed = replace(compressed, chip=None if target is None else load_chip(target))
        with working(f"writing {model.name} as a Core ML package"):
            record = write_package(
                functions_of(source, function, also or (), given), target, compressed,
                compute.value if compute else "fp16", opset, image or (), labels, output,
                list(_listed(source, given, several)),
            )  # fmt: skip
        print_json({"model": str(model), **record}) if json else print(package_text(record, mode))
        _judge(source, given, compressed.chip, repair, json=json)
        return
    if several:
        raise Error(f"[emit] --input-shape: got several shapes of {several[0].name}, need -o NAME.mlpackage, or one")
    only = {"--compute": compute, "--opset": opset, "--image": image, "--labels": labels}
    if option := next((name for name, value in only.items() if value), ""):
        raise Error(f"[emit] {option}: got it for another form than a Core ML package, need -o NAME.mlpackage")
    if form is Form.AIMODEL or (form is None and output.suffix.lower() == ".aimodel"):
        if netplist:
            raise Error("[emit] --netplist: got it for a Core AI asset, need one of the two")
        chip = None if target is None else load_chip(target)
        with working(f"writing {model.name} as a Core AI asset"):
            functions = functions_of(source, function, also or (), given)
            record = write_asset(functions, chip, replace(compressed, chip=chip), output)
        print_json({"model": str(model), **record}) if json else print(asset_text(record, mode))
        _judge(source, given, chip, repair, json=json)
        return
    if also:
        raise Error("[emit] --also: got it for MIL or a netplist, which have one function, need an asset or package")
    if target is None:
        raise Error(
            "[emit] --target: got none for MIL text, need a chip or a device, such as A14, M1 or iPhone 12; a folder"
            " named *.mlpackage or *.aimodel needs none"
        )
    if output.suffix.lower() in (".mlpackage", ".mlmodelc", ".mlmodel"):
        raise Error(
            f"[emit] {output}: got the name of a Core ML model for a folder of MIL text, need another, or a package:"
            " -o NAME.mlpackage"
        )
    chip = load_chip(target)
    if not netplist and route_of(chip) != "mil":
        raise Error(f"[emit] got {chip.label}, which takes no programs in MIL, need --netplist as well")
    if netplist and mode is not None:
        raise Error("[emit] --compress: got it for a netplist, need MIL or a Core AI asset")
    with working(f"writing {model.name} as MIL"):
        read = read_graph(source, given)[0]
        graph_to_write = replace(compressed, chip=chip)(read if repair is Repair.ON else without_repair(read))
        results: Sequence[tuple[Segment, Mil | Netplist | None]]
        if netplist:
            graph, segments, nets = emit_netplists(graph_to_write, chip)
            results = list(zip(segments, nets, strict=True))
        else:
            graph, pieces = emit_pieces(graph_to_write, chip)
            results = [(piece.segment, piece.mil) for piece in pieces]
        single = sum(written is not None for _, written in results) == 1
        folders = {
            segment.index: output if single else output / f"segment_{segment.index}"
            for segment, written in results
            if written is not None
        }
        name = "net.plist" if netplist else "model.mil"
        _check_folder(output, set(folders.values()), name)
        with named_option("--output", output):
            _save({segment.index: written for segment, written in results if written is not None}, output)
        programs: list[dict[str, Any]] = []
        host: list[dict[str, Any]] = []
        for segment, written in results:
            index = segment.index
            if written is None:
                ops = [node.where for node in segment.nodes]
                host.append({"segment": index, "ops": ops, "why": segment.why or _why(graph, ops)})
                continue
            record = _record(written) if isinstance(written, Mil) else _netplist_record(written)
            if not isinstance(written, Mil):
                record["model_ops"] = _ops_of(read, segment)
            beside = folders[index] / (WEIGHTS if isinstance(written, Mil) else NETPLIST_WEIGHTS)
            record["weights_file"] = str(beside) if record["weights_bytes"] else None
            programs.append({"segment": index, "text": str(folders[index] / name), **record})
    if json:
        decisions = [str(decision) for decision in graph.decisions]
        print_json(
            {
                "model": str(model),
                "target": chip.name,
                "asked": chip.asked,
                "programs": programs,
                "host": host,
                "decisions": decisions,
            }
        )
        _judge(source, given, chip, repair, json=json)
        return
    print(f"{model.name} on {chip.title}:")
    for program in programs:
        ports = (", ".join(_port_text(port) for port in program[side]) for side in ("inputs", "outputs"))
        weights = "no weights"
        if program["weights_file"] is not None:
            weights = f"{size_text(program['weights_bytes'])} of weights in {program['weights_file']}"
        made = counted(program["ops"], "op")
        if "model_ops" in program:
            units, of = counted(program["ops"], "unit"), counted(program["model_ops"], "op")
            made = f"{units} of the netplist for {of} of the model"
        print(f"{program['text']}: {made}, {weights}; {' -> '.join(ports)}")
    for line in _advice(graph):
        print(line)
    for left in host:
        print(f"segment {left['segment']} runs on the CPU, {counted(len(left['ops']), 'op')}: {left['why']}")
    _judge(source, given, chip, repair, json=json)


def _judge(source: sources.Module, given: Given, chip: Chip | None, repaired: Repair, *, json: bool) -> None:
    """Prints how far the chip's outputs are off on the given inputs, for the function that --function names, or the
    only one. With --json it only warns. The weights are those of the model, not those of --compress."""
    if chip is None or not given.has_arrays or (len(source.functions) > 1 and not source.asked):
        return
    graph, known = read_graph(source, given)
    lines, _ = judged(graph if repaired is Repair.ON else without_repair(graph), chip, known, "emit")
    if not json:
        print("\n".join(lines), end="\n" if lines else "")


def _listed(source: sources.Module, given: Given, several: Sequence[NamedShapes]) -> Iterator[Graph]:
    """Yields the model's graph for each further shape that --input-shape gives an input."""
    if len(several) > 1:
        names = ", ".join(one.name for one in several)
        raise Error(f"[emit] --input-shape: got several shapes of {names}, need them of one input")
    for name, shapes in several:
        for shape in shapes[1:]:
            yield read_graph(source, replace(given, shapes={**given.shapes, name: shape}))[0]


def _feeds(source: sources.Module, given: Given, mode: str | None) -> list[dict[str, Any]]:
    """Returns the inputs on which the error of compressed weights is measured; empty: random ones."""
    if mode is None or not given.has_arrays or len(source.functions) > 1:
        return []
    known = given.read(source)
    ports = ports_of(source.graph(known.shapes, known.values))
    return [with_random(ports, feed) for _, feed in known.named_feeds()]


def _advice(graph: Graph) -> Iterator[str]:
    """Yields a line for each reason why ops are slow or unconfirmed, with the first of these ops and the names of a
    few others; --json lists all of them."""
    said: dict[str, list[Decision]] = {}
    for decision in graph.decisions:
        if decision.stage == STAGE:
            said.setdefault(decision.reason.rpartition("(")[2], []).append(decision)
    for first, *others in said.values():
        names = [other.node for other in others[:NAMED]]
        if len(others) > NAMED:
            names.append(f"{counted(len(others) - NAMED, 'more op')}")
        more = f"; the same advice for {', '.join(names)}" if names else ""
        yield f"{first.verdict}: {first.node}: {first.reason} ({first.source}){more}"
    if any("(constraint " in first.reason for first, *_ in said.values()):
        yield f"constraints: by their numbers in {CONSTRAINTS}"


def _save(programs: Mapping[int, Mil | Netplist], output: Path) -> None:
    if len(programs) > 1:
        save_programs(programs, output)
        return
    for program in programs.values():
        save_mil(program, output) if isinstance(program, Mil) else save_netplist(program, output)


NAMED = 3  # The most further ops that a line of advice names.
CONSTRAINTS = "docs/mil.md, section Constraints"
LEFT = ("host", "border", "moved")  # verdicts on ops that the host computes


def _why(graph: Graph, ops: list[str]) -> str:
    """Returns the reason why the host computes a segment: the first decision about one of its ops."""
    decided = (d for d in graph.decisions if d.stage == "segment" and d.verdict in LEFT and d.node in ops)
    return next((f"{d.node}: {d.reason}" for d in decided), "it does not run on the engine")


def _check_folder(output: Path, folders: set[Path], name: str) -> None:
    """Raises Error if the folder has another program, which could be mistaken for one of the written ones."""
    for text in sorted((output / name, *output.glob(f"segment_*/{name}"))):
        if text.exists() and text.parent not in folders:
            raise Error(f"[emit] {text}: got a program of another model or chip there, need a folder without it")


def _record(mil: Mil) -> dict[str, Any]:
    ops = sum(node.op not in LEAVES for node in mil.graph.nodes)
    ports = {"inputs": [_port(p) for p in mil.inputs], "outputs": [_port(p) for p in mil.outputs]}
    return {"ops": ops, "weights_bytes": len(mil.weight_file), **ports}


def _ops_of(graph: Graph, segment: Segment) -> int:
    """Returns the number of the graph's ops that the segment computes."""
    names = {name for node in segment.nodes for name in node.sources}
    return sum(node.op not in LEAVES and not names.isdisjoint(node.sources) for node in graph.nodes)


def _netplist_record(net: Netplist) -> dict[str, Any]:
    graph = as_graph_of_netplist(net)
    inputs = [_net_port(str(v.node.attrs["name"]), v) for v in graph.inputs]
    outputs = [_net_port(port.name, port.value) for port in graph.outputs]
    return {"ops": len(net.units), "weights_bytes": len(net.weights), "inputs": inputs, "outputs": outputs}


def _net_port(name: str, value: Value) -> dict[str, Any]:
    return {"name": name, "user_name": name, "dtype": value.dtype.name, "shape": list(value.shape)}


def _port(port: MilPort) -> dict[str, Any]:
    return {"name": port.name, "user_name": port.user_name, "dtype": port.dtype.name, "shape": list(port.shape)}


def _port_text(port: dict[str, Any]) -> str:
    renamed = "" if port["name"] == port["user_name"] else f" ({port['user_name']})"
    return f"{port['name']}{renamed} {type_text(port['dtype'], port['shape'])}"
