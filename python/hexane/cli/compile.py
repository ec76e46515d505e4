"""`hexane compile`: compiles a model to a plan file."""

from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

import hexane
from hexane import sources
from hexane.cli.errors import command
from hexane.cli.given import Given
from hexane.cli.model import choice_line, open_model
from hexane.cli.on_inputs import judged
from hexane.cli.options import (
    Arithmetic,
    CalibrationFiles,
    Debug,
    Dtype,
    Fallback,
    Function,
    Inputs,
    InputShapes,
    Json,
    ModelFile,
    Precision,
    Preprocessing,
    Repair,
    Repairs,
    RunsOn,
    Strategy,
    Target,
    Tolerance,
    Values,
)
from hexane.cli.output import named_option, print_json, working
from hexane.errors import Error
from hexane.graph import Graph
from hexane.graph.decisions import counted
from hexane.graph.printer import size_text
from hexane.ops import LEAVES
from hexane.passes.repair import repair as repair_of
from hexane.passes.repair import repairs_of, without_repair
from hexane.planning.flash import flash_of
from hexane.runtime.open_model import shape_options
from hexane.targets import Chip, load_target

MOST_NAMED = 6  # Most ops that the line on repairs names.


class Compression(str, Enum):
    """--compress: how weights are packed in the plan."""

    LZ4 = "lz4"


@command
def compile_model(
    model: ModelFile,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.hxp", help="The plan file to write.")],
    dtype: Dtype = None,
    tolerance: Tolerance = None,
    input_shape: InputShapes = None,
    inputs: Inputs = None,
    values: Values = None,
    calibration: CalibrationFiles = None,
    preprocess: Preprocessing = None,
    function: Function = None,
    target: Target = None,
    fallback: Annotated[
        Fallback,
        typer.Option(help="host: ops that the chip does not support run on the CPU; error: they are an error."),
    ] = Fallback.HOST,
    repair: Repairs = Repair.ON,
    numerics: Arithmetic = None,
    sram: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help=(
                "The size of the memory for the arena, and for the buffers that --runtime names, on one thread, as in"
                " 128K. If whole tensors do not fit, parts are computed row by row. 128K+64K: two memories; these"
                " buffers are in the first."
            ),
        ),
    ] = None,
    slow: Annotated[
        str | None, typer.Option(metavar="BYTES", help="The size of a slower memory, used only if --sram is too small.")
    ] = None,
    strategy: Annotated[
        Strategy,
        typer.Option(
            help=(
                "How to compute if whole tensors do not fit --sram. stream: parts row by row; --slow holds tensors"
                " that still do not fit. stages: as many steps at a time as fit; tensors between stages go through"
                " --slow."
            )
        ),
    ] = Strategy.STREAM,
    hold_ports: Annotated[
        bool,
        typer.Option(
            "--hold-ports",
            help=(
                "Copy inputs and outputs into the arena, so that they count against --sram. With --runtime c99 or"
                " cmsis-nn the caller's arrays count, too."
            ),
        ),
    ] = False,
    whole_weights: Annotated[
        bool,
        typer.Option(
            "--whole-weights",
            help="Decode compressed weights once, not in each call: faster calls, more memory.",
        ),
    ] = False,
    stream_input: Annotated[
        bool,
        typer.Option(
            "--stream-input",
            help=(
                "Inputs come row by row, as from a camera: on a device only the rows that are needed at once are in"
                " memory, in the arena."
            ),
        ),
    ] = False,
    stream_output: Annotated[
        bool, typer.Option("--stream-output", help="Outputs are written row by row, as --stream-input reads inputs.")
    ] = False,
    runtime: RunsOn = None,
    flash: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES", help="The flash of a microcontroller, for the plan and the code that runs it, as in 1M."
        ),
    ] = None,
    compress: Annotated[
        Compression | None,
        typer.Option(
            help=(
                "Pack weights that become smaller; they are unpacked to --sram before they are used. Needs"
                " hexane[compress]."
            )
        ),
    ] = None,
    xip: Annotated[
        bool,
        typer.Option(
            "--xip",
            help="Read weights in place, from the plan; with --compress, pack only as many as --flash requires.",
        ),
    ] = False,
    dump: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the graph after each pass to this folder, in numbered files."),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Compile a model to a plan file.

    For a chip, with --input for all inputs or with --calibration, the program runs on this CPU in the engine's
    arithmetic. The command then shows how far the outputs are off and which op causes it, as `hexane check` does.
    """
    source = sources.open_network(model, function=function, where="compile")
    if output.exists() and output.samefile(model):
        raise Error(f"[compile] {output}: got the model itself as the output, need another file")
    chip = _chip(target)
    if calibration is not None and dtype is not Precision.AUTO and chip is None:
        raise Error("[compile] --calibration: got it for the host, need --dtype auto as well, or a chip as --target")
    if slow is not None and sram is None:
        raise Error("[compile] --slow: got it alone, need --sram as well")
    if strategy is Strategy.STAGES and sram is None:
        raise Error("[compile] --strategy: got stages, need --sram as well")
    of_host = {
        "--sram": sram,
        "--slow": slow,
        "--hold-ports": hold_ports,
        "--whole-weights": whole_weights,
        "--stream-input": stream_input,
        "--stream-output": stream_output,
        "--runtime": runtime,
        "--flash": flash,
        "--compress": compress,
        "--xip": xip,
    }
    given = [name for name, value in of_host.items() if value]
    if given and chip is not None:
        raise Error(f"[compile] got {', '.join(given)} for {chip.label}, need the host as the target; no plan written")
    memory = hexane.Memory(
        sram,
        slow=slow or 0,
        strategy=strategy.value,
        hold_ports=hold_ports,
        whole_weights=whole_weights,
        stream_input=stream_input,
        stream_output=stream_output,
        runtime=runtime.value if runtime else "",
        flash=flash or 0,
        compress=compress.value if compress else "",
        xip=xip,
    )
    if len(source.functions) > 1 and "main" not in source.functions:
        if given or dtype or numerics or input_shape or inputs or values or dump:
            raise Error(
                f"[compile] {model}: got options for one function, need --function, one of"
                f" {', '.join(source.functions)}"
            )
        options = hexane.Options(target=target, fallback=fallback.value, repair=repair is Repair.ON)
        _save_functions(source, output, options, json=json)
        return
    asked = Given.of(input_shape, inputs, values, calibration=calibration, preprocess=preprocess)
    try:
        net, known = open_model(
            source,
            target=target,
            threads=1 if memory.limits else None,
            dtype=dtype,
            tolerance=tolerance,
            given=asked,
            dump=dump,
            fallback=fallback,
            repair=repair,
            numerics=numerics,
            memory=memory,
        )
    except Error as error:
        if not memory.limits:
            raise
        raise Error(f"{error}; no plan written") from None
    if isinstance(net, hexane.StagedModel):
        raise Error(
            f"[compile] {model}: got a model that computes its shapes, need one whose shapes follow from its inputs: a"
            " plan is one program; `hexane run` and hx.compile run such a model in parts"
        )
    if isinstance(net, hexane.OpenModel):
        raise Error(f"[compile] {model}: got open shapes ({', '.join(map(str, net.inputs))}), need {_fixes(net)}")
    with working(f"writing {output.name}"), named_option("--output", output):
        net.save(output)
    file_bytes = output.stat().st_size
    in_flash = None if net.program is None or not _asks_for_flash(memory) else flash_of(net.program)
    lines, judgement, repairs = list[str](), None, ""
    # Without inputs the lines say which ops depend on them; --json has no lines.
    judges = asked.has_arrays or not json
    if judges and chip is not None and net.program is not None and source.form not in ("plan", "plans"):
        graph = source.graph(known.shapes, known.values)
        graph = graph if repair is Repair.ON else without_repair(graph)
        repairs = _repairs_line(graph, chip)
        lines, judgement = judged(graph, chip, known, "compile")
    if json:
        record = {"plan": str(output), "target": net.target, "file_bytes": file_bytes}
        record |= {} if in_flash is None else {"flash": {**asdict(in_flash), "total": in_flash.total}}
        record |= {} if judgement is None else {"on_inputs": judgement.record()}
        print_json({**record, "steps": len(net.steps), "memory": net.memory})
        return
    c99 = net.program is not None and net.program.runtime != "host"
    counts = {name: count for name, count in net.memory.items() if not (c99 and name == "scratch")}
    sizes = ", ".join(f"{name} {size_text(count)}" for name, count in counts.items())
    on_chip = "" if net.target == "host" else f" for {net.target_label}"
    where = "memory" if net.target == "host" else "memory on this CPU"
    print(
        f"{output}: {size_text(file_bytes)}, {counted(len(net.steps), 'step')}{on_chip}; {where}: {sizes}"
        + (", no scratch (C99)" if c99 else "")
    )
    if line := _streams_line(memory, c99=c99):
        print(line)
    if net.program is not None and (layers := net.program.occupancy()):
        most = max(layers, key=lambda one: one.bytes)
        print(
            f"on-chip memory: at most {size_text(most.bytes)} of {size_text(most.capacity)} at once; `hexane explain`"
            " shows each layer"
        )
    if line := choice_line(net):
        print(line)
    if repairs:
        print(repairs)
    for line in lines:
        print(line)
    if in_flash is not None:
        packed = in_flash.weights - in_flash.in_place
        why = " (none gets smaller, or --sram has no room to unpack it)" if compress and not packed and not xip else ""
        print(
            f"flash: plan {in_flash.plan} bytes: {in_flash.in_place} of weights read in place,"
            f" {packed} of packed weights{why}, and steps"
            + ("" if in_flash.missing else f"; code about {in_flash.code} bytes (Cortex-M4, -Os)")
        )


def _chip(target: str | None) -> Chip | None:
    """Returns the chip that --target names; None for the host, and without a name."""
    found = None if target is None else load_target(target)
    return found if isinstance(found, Chip) else None


def _repairs_line(graph: Graph, chip: Chip) -> str:
    """Returns which ops `repair` rewrites for the chip; "" for none."""
    repaired = repair_of(graph, chip)
    changes = repairs_of(repaired)
    if not changes:
        return ""
    kept = {name for node in repaired.nodes for name in node.sources}
    places = {change.node for change in changes}
    changed = (node for node in graph.nodes if node.where in places or (node.source and node.source not in kept))
    names = list(dict.fromkeys(node.source or node.op for node in changed if node.op not in LEAVES))
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"rewritten to stay in fp16's range: {', '.join(names[:MOST_NAMED])}{more} (--repair off keeps them)"


def _save_functions(source: sources.Module, output: Path, options: hexane.Options, *, json: bool) -> None:
    with working(f"compiling {Path(source.name).name}"):
        net = hexane.compile_functions(source, options)
    with working(f"writing {output.name}"), named_option("--output", output):
        net.save(output)
    file_bytes = output.stat().st_size
    memory = {name: part.memory for name, part in net.items()}
    if json:
        print_json({"plan": str(output), "file_bytes": file_bytes, "functions": memory})
        return
    print(f"{output}: {size_text(file_bytes)}, {counted(len(net), 'function')}")
    for name, part in net.items():
        sizes = ", ".join(f"{space} {size_text(count)}" for space, count in part.memory.items())
        print(f"  {name}: {counted(len(part.steps), 'step')}; {sizes}")


def _streams_line(memory: hexane.Memory, *, c99: bool) -> str:
    """Returns what the bytes of the arena count with streamed inputs or outputs; "" without them."""
    streams = {"inputs": memory.stream_input, "outputs": memory.stream_output}
    streamed = " and ".join(name for name, asked in streams.items() if asked)
    if not streamed:
        return ""
    beside = [f"the caller's {name}" for name, asked in streams.items() if not asked] if c99 else ["scratch"]
    limited = f"the sum of the arena and {beside[0]}" if beside else "the arena"
    return f"the arena includes the rows of {streamed} that are needed at once; --sram limits {limited}"


def _asks_for_flash(memory: hexane.Memory) -> bool:
    return bool(memory.flash_bytes or memory.compress or memory.xip)


def _fixes(net: hexane.OpenModel) -> str:
    if net.value_inputs:
        return f"the value of what decides shapes: {' '.join(f'--value {name}=V' for name in sorted(net.value_inputs))}"
    return " ".join(shape_options(net.inputs))
