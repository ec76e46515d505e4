"""Loads the plan that a command is given, or compiles the model."""

from pathlib import Path

import hexane
from hexane import sources
from hexane.cli.given import Given, Known
from hexane.cli.options import Fallback, Numerics, Precision, Repair
from hexane.cli.output import working
from hexane.errors import Error
from hexane.runtime.load import load_function


def open_model(
    source: sources.Module,
    *,
    target: str | None = None,
    threads: int | None = None,
    dtype: Precision | None = None,
    given: Given | None = None,
    dump: Path | None = None,
    fallback: Fallback = Fallback.HOST,
    repair: Repair = Repair.ON,
    numerics: Numerics | None = None,
    memory: hexane.Memory | None = None,
) -> tuple[hexane.Model | hexane.OpenModel, Known]:
    """A loaded plan or a compiled model, and what is given for its inputs. Raises Error for a plan with options that
    only compiling can follow."""
    given = given or Given.of(None)
    name = Path(source.name).name
    if source.form in ("plan", "plans"):
        options = {"--target": target, "--dtype": dtype, "--input-shape": given.shapes, "--numerics": numerics}
        if unfit := [name for name, value in options.items() if value]:
            raise Error(
                f"[open] {source.name}: got a plan and {', '.join(unfit)}, need an ONNX model to compile that way"
            )
        with working(f"loading {name}"):
            net = load_function(source.source, source.asked, threads=threads)
        arrays, origins = given.arrays(net.inputs)
        return net, Known(arrays=arrays, origins=origins)
    known = given.read(sources.open_network(source))
    with working(f"compiling {name}"):
        chosen = dtype.value if dtype else ""
        made = hexane.compile(
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
    return made, known
