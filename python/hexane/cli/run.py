"""`hexane run`: runs a model on given or random inputs; shows outputs, latency and profile."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import hexane
from hexane import sources
from hexane.cli.errors import command
from hexane.cli.given import Given, Known
from hexane.cli.inputs import SEED, random_line, with_random
from hexane.cli.model import choice_line, open_model
from hexane.cli.options import (
    Arithmetic,
    Debug,
    Dtype,
    Function,
    Inputs,
    InputShapes,
    Json,
    ModelOrPlan,
    Target,
    Tolerance,
    Values,
    numbers,
)
from hexane.cli.output import named_option, print_json, working
from hexane.cli.results import print_outputs, summary, write_outputs
from hexane.cli.run_c99 import Runtime, run_in_c99
from hexane.cli.timing import print_profile, profile_record
from hexane.errors import Error
from hexane.feeds import Preprocess
from hexane.graph import Array
from hexane.graph.decisions import counted
from hexane.report.profile import latency, profile
from hexane.runtime import PortType


@command
def run(
    model: ModelOrPlan,
    output: Annotated[Path | None, typer.Option(metavar="DIR", help="Write each output to DIR/NAME.npy.")] = None,
    target: Target = None,
    numerics: Arithmetic = None,
    threads: Annotated[
        int | None, typer.Option(min=1, max=256, help="The number of CPU cores to use. [default: all]")
    ] = None,
    with_profile: Annotated[
        bool, typer.Option("--profile", help="Show the time of every step, its rates, and the share of the roofline.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(metavar="F.json", help="Write a profiled call as a Chrome trace (Perfetto reads it).")
    ] = None,
    dtype: Dtype = None,
    tolerance: Tolerance = None,
    input_shape: InputShapes = None,
    inputs: Inputs = None,
    values: Values = None,
    function: Function = None,
    mean: Annotated[
        Any, typer.Option(parser=numbers, metavar="M[,M,M]", help="The mean to subtract from pixels scaled to 0..1.")
    ] = None,
    std: Annotated[
        Any, typer.Option(parser=numbers, metavar="S[,S,S]", help="The standard deviation to divide by, after --mean.")
    ] = None,
    runtime: Annotated[
        Runtime,
        typer.Option(
            help="host: this CPU's kernels; c99: the runtime for small devices, built with this machine's C compiler."
        ),
    ] = Runtime.HOST,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run a model. Inputs that are not given are random, with a fixed seed."""
    if runtime is Runtime.C99 and (with_profile or trace):
        raise typer.BadParameter("--profile, --trace: got one with --runtime c99, need the host's kernels")
    given = Given.of(input_shape, inputs, values, Preprocess(mean or (0.0,), std or (1.0,)))
    _check_scaling(given, mean, std)
    opened, known = open_model(
        sources.open(model, function=function, where="run"),
        target=target,
        threads=threads,
        dtype=dtype,
        tolerance=tolerance,
        given=given,
        numerics=numerics,
        memory=hexane.Memory(runtime="c99") if runtime is Runtime.C99 else None,
    )
    net, arrays = _with_inputs(opened, known)
    if isinstance(net, hexane.StagedModel) and (with_profile or trace or runtime is Runtime.C99):
        raise Error(
            "[run] --profile, --trace, --runtime c99: got one for a model that computes its shapes, need a model of one"
            " program"
        )
    with working(f"running {model.name}"):
        results = net(arrays)
        outputs: dict[str, Array] = results if isinstance(results, dict) else {net.outputs[0].name: results}
        difference = None
        if runtime is Runtime.C99 and isinstance(net, hexane.Model):
            outputs, difference, timed = run_in_c99(net, arrays, outputs)
        else:
            timed = latency(net, arrays)
        with named_option("--output", output or Path()):
            written = write_outputs(output, outputs) if output else {}
        profiled = None
        if (with_profile or trace) and isinstance(net, hexane.Model):
            with named_option("--trace", trace or Path()):
                profiled = profile(net, arrays, trace=trace, roofline=with_profile)
    record: dict[str, Any] = {
        "model": str(model),
        "inputs": [_input(port, arrays[port.name], known) for port in net.inputs],
        "outputs": [summary(p, outputs[p.name]) for p in net.outputs],
        "latency": timed,
        "device": net.device if difference is None else "C99 runtime",
        "threads": net.threads if difference is None else 1,
    }
    if difference is not None:
        record["difference"] = difference
    for entry in record["outputs"]:
        if entry["name"] in written:
            entry["file"] = str(written[entry["name"]])
    if json:
        print_json(record | {"profile": profile_record(profiled)} if profiled and with_profile else record)
        return
    if line := random_line(net.inputs, known.arrays):
        print(line)
    print_outputs(record["outputs"])
    if isinstance(net, hexane.Model) and (line := choice_line(net)):
        print(line)
    times = counted(timed["runs"], "run")
    print(f"latency  median {timed['median_us']:.1f} us, p90 {timed['p90_us']:.1f} us over {times}")
    print(f"ran on   {record['device']}, threads: {record['threads']}")
    if isinstance(net, hexane.Model) and net.in_engine_arithmetic and difference is None:
        for line in _nan_lines(arrays):
            print(line)
    if difference is not None:
        same = all(value == 0 for value in difference.values())
        print(
            "compared with the host's kernels: "
            + ("the same numbers" if same else f"differs by up to {max(difference.values()):g}")
        )
    if profiled is not None and with_profile:
        print_profile(profiled)
    if trace is not None:
        print(f"wrote {trace}")


def _nan_lines(arrays: Mapping[str, Array]) -> Iterator[str]:
    """Yields a line for each input with NaN, which the engine's arithmetic hides in the outputs."""
    for name, array in arrays.items():
        if array.dtype.kind == "f" and (count := int(np.isnan(array).sum())):
            yield (
                f"input {name} holds {count} NaN, which the engine reads as infinity, or in products as a large number:"
                " outputs may hide it (docs/numerics.md); a run without --target shows it"
            )


def _check_scaling(given: Given, mean: Any, std: Any) -> None:
    if (mean or std) and not given.pictures:
        raise typer.BadParameter("--mean and --std: got no image, need one that they apply to")
    if std and 0 in std:
        raise typer.BadParameter("--std: got 0, need numbers to divide by")


def _with_inputs(
    net: hexane.Model | hexane.OpenModel | hexane.StagedModel, known: Known
) -> tuple[hexane.Model | hexane.StagedModel, dict[str, Array]]:
    """Returns the model and its inputs. Raises Error if shapes are still unknown."""
    if isinstance(net, hexane.OpenModel) and net.value_inputs:
        name = min(net.value_inputs)
        raise Error(f"[run] input {name!r}: its value decides shapes, need --value {name}=V or --input {name}=FILE.npy")
    arrays = with_random(net.inputs, known.arrays)
    if isinstance(net, hexane.OpenModel):
        net = net.specialised(arrays)
    return net, {port.name: arrays[port.name] for port in net.inputs}


def _input(port: PortType, array: Array, known: Known) -> dict[str, Any]:
    origin = known.origins.get(port.name, f"random, seed {SEED}")
    return {"name": port.name, "dtype": str(port.dtype), "shape": list(array.shape), "from": origin}
