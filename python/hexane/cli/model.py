"""Loads the plan given to a command, or compiles the model."""

from itertools import islice
from pathlib import Path

import hexane
from hexane import sources
from hexane.cli.given import Given, Known
from hexane.cli.options import Fallback, Numerics, Precision, Repair
from hexane.cli.output import working
from hexane.errors import Error
from hexane.graph.decisions import Decision, counted
from hexane.options import DEFAULT_TOLERANCE, MOST_FEEDS
from hexane.runtime.auto_dtype import STAGE
from hexane.runtime.load import load_function


def open_model(
    source: sources.Module,
    *,
    target: str | None = None,
    threads: int | None = None,
    dtype: Precision | None = None,
    tolerance: float | None = None,
    given: Given | None = None,
    dump: Path | None = None,
    fallback: Fallback = Fallback.HOST,
    repair: Repair = Repair.ON,
    numerics: Numerics | None = None,
    memory: hexane.Memory | None = None,
) -> tuple[hexane.Model | hexane.OpenModel | hexane.StagedModel, Known]:
    """Returns a loaded plan or a compiled model, and its inputs. Raises Error for a plan with options of the
    compiler."""
    given = given or Given.of(None)
    name = Path(source.name).name
    if source.form in ("plan", "plans"):
        options = {
            "--target": target,
            "--dtype": dtype,
            "--tolerance": tolerance,
            "--input-shape": given.shapes,
            "--numerics": numerics,
        }
        if unfit := [name for name, value in options.items() if value]:
            raise Error(
                f"[open] {source.name}: got a plan and {', '.join(unfit)}, need the model that it was made from"
            )
        with working(f"loading {name}"):
            net = load_function(source.source, source.asked, threads=threads)
        arrays, origins = given.arrays(net.inputs)
        return net, Known(arrays=arrays, origins=origins)
    known = given.read(sources.open_network(source))
    with working(f"compiling {name}"):
        chosen = dtype_of(dtype, tolerance, known)
        compiled = hexane.compile(
            source,
            target=target,
            threads=threads,
            dtype=chosen,
            input_shapes=known.shapes,
            input_values=known.values,
            fallback=fallback.value,
            repair=repair is Repair.ON,
            numerics=numerics.value if numerics else "",
            dump=dump,
            memory=memory,
        )
    return compiled, known


def dtype_of(dtype: Precision | None, tolerance: float | None, known: Known) -> str | hexane.AutoDtype:
    """Returns the dtype of --dtype and --tolerance; "auto" is measured on the given inputs. Raises Error for a
    tolerance with another dtype."""
    if dtype is not Precision.AUTO:
        if tolerance is not None:
            raise Error(f"[compile] --tolerance: got {tolerance:g} without --dtype auto, need both")
        return dtype.value if dtype else ""
    given = islice(known.named_feeds(), MOST_FEEDS)
    feeds = [{k: v for k, v in feed.items() if k not in known.values} for _, feed in given if feed]
    return hexane.AutoDtype(DEFAULT_TOLERANCE if tolerance is None else tolerance, calibration=feeds)


def choices(net: hexane.Model) -> list[Decision]:
    """Returns the decisions of --dtype auto, the first about the whole network; empty for other dtypes, and for a
    plan."""
    return [] if net.program is None else [d for d in net.program.graph.decisions if d.stage == STAGE]


def choice_line(net: hexane.Model) -> str:
    """Returns the line to print about --dtype auto or int8, or about --numerics q31 if it changes nothing; "" for other
    options, and for a plan."""
    if chosen := choices(net):
        return f"dtype auto: {chosen[0].reason}"
    decisions = [] if net.program is None else net.program.decisions
    if products := [d for d in decisions if d.stage == "multiply_in_int8"]:
        none = products[0].verdict == "unchanged"
        what = f" changes nothing: {products[0].reason}" if none else f": {counted(len(products), 'product')} in int8"
        return f"dtype int8{what}"
    q31 = next((d for d in decisions if d.stage == "use_q31" and d.verdict == "unchanged"), None)
    return "" if q31 is None else f"numerics q31 changes nothing: {q31.reason}"
