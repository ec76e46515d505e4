"""`hexane compress`: writes a model with encoded weights, and lists the encoding of each layer."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hexane import _core, sources
from hexane.cli.errors import command
from hexane.cli.given import Given, Known
from hexane.cli.inputs import ADVICE, random_line, with_random
from hexane.cli.large_error import Force, is_too_large, refusal
from hexane.cli.options import (
    CalibrationFiles,
    Debug,
    Function,
    Inputs,
    InputShapes,
    Json,
    ModelFile,
    Preprocessing,
    Values,
)
from hexane.cli.output import named_option, print_json, print_table, working
from hexane.compression import Compression
from hexane.compression.compress import modes
from hexane.compression.encode import fits_fp16
from hexane.compression.request import ALIASES, FIXED_TEXT, TOLERANCE
from hexane.compression.weights import LEAST_NUMBERS, left_whole
from hexane.errors import Error
from hexane.graph import Graph
from hexane.graph.decisions import counted
from hexane.graph.printer import size_text
from hexane.options import Options
from hexane.report.compression_chart import compression_chart
from hexane.report.compression_page import compression_page
from hexane.report.legend import legend
from hexane.report.model_ports import ports_of
from hexane.report.plotting import check_plotting
from hexane.runtime import Model
from hexane.runtime.compile_graphs import compile_compressed
from hexane.runtime.compressed import Compressed, LayerReport
from hexane.runtime.emitted import save_mil_as, weights_beside
from hexane.runtime.mil import emit_pieces
from hexane.targets import Chip, Target, load_target
from hexane.targets.floors import route_of

if TYPE_CHECKING:
    from hexane.compression.onnx_file import StoredWeight
    from hexane.quant.network import Network

SUFFIXES = (".mil", ".hxp", ".onnx")
PLOTS = (".png", ".svg", ".pdf")
MOST_NAMED = 4  # most layers named in a remark
NONE = f"every weight that can be encoded has fewer than {LEAST_NUMBERS} numbers"
HEAD = ("layer", "encoding", "before", "after", "error", "target")
MEANINGS = {
    "before": "bytes of the weights in fp16",
    "after": "bytes of the weights in the encoding, not of the file; none: in fp16, even if the file keeps fp32",
    "error": "relative error of the outputs if this layer alone is compressed",
}
TARGET_MEANINGS = {
    "streams": "the chip reads the weights as they are stored, so that less memory is read",
    "folds": "the weights become fp16 before the network runs: a smaller file, and no more speed",
    "stays": "the weights stay compressed in this CPU's memory while the network runs",
    "whole": "the weights are not compressed",
}


@command
def compress(
    model: ModelFile,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="M.mil|M.hxp|M.onnx", help="The result: MIL, a compiled plan, or an ONNX file."
        ),
    ],
    target: Annotated[
        str, typer.Option(metavar="NAME", help="The chip or a device that has it: M4, M1, iPhone 12, h13; or host.")
    ] = "host",
    mode: Annotated[
        str,
        typer.Option(
            metavar="MODE",
            help=f"auto: the smallest encoding within --tolerance, or the best within --bytes; none; {FIXED_TEXT}.",
        ),
    ] = "auto",
    tolerance: Annotated[
        float | None,
        typer.Option(
            metavar="X", help=f"For auto: the largest relative error of an output; {TOLERANCE} without --bytes."
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--bytes",
            metavar="BYTES",
            help=f"The most bytes of all weights of at least {LEAST_NUMBERS} numbers together, as in 4M. A weight that"
            " stays whole counts in fp16.",
        ),
    ] = None,
    layer: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN=MODE", help="The mode of some layers, as in *conv1*=int8. Repeatable."),
    ] = None,
    calibration: CalibrationFiles = None,
    preprocess: Preprocessing = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="F.html", help="Write a page for a browser: error over bytes, and each layer's choice."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="F.png", help="Draw the same: .png, .svg or .pdf. Needs hexane[plot]."),
    ] = None,
    input_shape: InputShapes = None,
    inputs: Inputs = None,
    values: Values = None,
    function: Function = None,
    force: Force = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Store a model's weights in fewer bits; list the encoding, bytes, error and chip support of each layer.

    \b
    hexane compress net.onnx --target M4 -o net.mil
    hexane compress net.onnx --target M4 --bytes 4M -o net.mil
    hexane compress net.onnx --target M1 --mode palette4 --layer '*head*=none' -o net.hxp
    hexane compress net.onnx --mode int8 -o net8.onnx
    hexane compress net.onnx --mode blockwise4:b32 --calibration inputs.npz -o net4.onnx
    hexane compress net.onnx --html net.html --plot net.png -o small.onnx

    Errors are relative errors of the outputs on --calibration, or on --input, or else on two random inputs with a
    fixed seed. The table shows each layer's error when it alone is compressed. Block scales are fitted to given
    inputs. --html and --plot measure every encoding of every layer, which takes as long as auto. Exit code 1, and no
    file, if an output's error exceeds both 0.1 and --tolerance; --force writes it.
    """
    source = sources.open_network(model, function=function, where="compress")
    if output.exists() and output.samefile(model):
        raise Error(f"[compress] {output}: got the model itself as the output, need another file")
    chip = load_target(target)
    _check_output(source, model, output, chip)
    _check_pages(model, output, html, plot)
    asked = Compression(mode, per_layer=_per_layer(layer or []), tolerance=tolerance, bytes=budget)
    given = Given.of(input_shape, inputs, values, calibration=calibration, preprocess=preprocess)
    known = given.read(source)
    pictured = html is not None or plot is not None
    with working(f"compressing {model.name}"):
        network = _read(model, asked) if output.suffix == ".onnx" else None
        read = source if network is None else sources.open(network.proto)
        graph = read.graph(known.shapes, known.values)
        ports = ports_of(graph)
        random = random_line(ports, known.arrays)
        if known.arrays:
            feeds = [with_random(ports, feed) for _, feed in known.named_feeds()]
            asked = replace(asked, calibration=feeds)
        compressed, net = compile_compressed(graph, asked, Options(target=target), surveys=pictured)
    if pictured and compressed.survey is None:
        raise Error(f"[compress] {model}: got no weight that may be compressed, need one for --html and --plot")
    refused = is_too_large(compressed.error, tolerance) and not force
    with working(f"writing {output.name}"), named_option("--output", output):
        if refused:
            written = _Written(None, ())
        elif network is None:
            written = _write(compressed.graph, net, output, chip)
        else:
            written = _write_onnx(network, graph, compressed, known, output)
    _write_pages(html, plot, model, chip, asked, compressed, written)
    if json:
        print_json(_record(compressed, output, written, chip))
    else:
        if mode in ALIASES:
            print(f"{mode} is another name of {ALIASES[mode]}")
        if compressed.layers:
            print_table(_head(chip), [_row(one) for one in compressed.layers], right=HEAD[2:5])
        for remark, layers in _remarks(compressed, written).items():
            print(f"{_listed(layers)}: {remark}")
        for kind, layers in _whole(graph).items():
            print(f"{_listed(layers)}: whole, in {kind}: encodings take weights in fp32 and fp16")
        print(_totals(compressed, output, written, chip, asked))
        if random and compressed.error is not None:
            print(f"{random if known.arrays else 'inputs: random'}; {ADVICE}")
        if compressed.layers:
            print(f"\n{_legend(compressed, chip)}")
    if refused and compressed.error is not None:
        raise refusal("compress", output, compressed.error, tolerance, compressed.measured_on, _change(asked))


def _change(asked: Compression) -> str:
    """Returns advice for an error that is too large."""
    own = "" if asked.feeds else "give --calibration with inputs of the model's own, "
    return f"{own}try --mode auto, a mode of more bits, or --layer PATTERN=none for the layers of large errors"


def _check_output(source: sources.Module, model: Path, output: Path, chip: Target) -> None:
    if output.suffix not in SUFFIXES:
        raise Error(
            f"[compress] {output}: got {output.suffix or 'no suffix'!r}, need a name that ends in .mil, .hxp or .onnx"
        )
    if output.suffix == ".onnx" and source.form != "onnx":
        raise Error(f"[compress] {model}: got no ONNX file, need one to write {output.name}; -o X.hxp takes any model")
    if output.suffix == ".mil" and (not isinstance(chip, Chip) or route_of(chip) != "mil"):
        raise Error(f"[compress] {output}: got {chip.label}, which takes no programs in MIL, need a .hxp or .onnx")


def _check_pages(model: Path, output: Path, html: Path | None, plot: Path | None) -> None:
    """Raises Error for unusable paths before anything is measured."""
    if plot is not None:
        if plot.suffix.lower() not in PLOTS:
            raise typer.BadParameter(f"--plot: got the file {str(plot)!r}, need one that ends in {', '.join(PLOTS)}")
        check_plotting("compress")
    seen = {model.absolute(): "model", output.absolute(): "output"}
    for path, what in ((html, "page"), (plot, "picture")):
        if path is None:
            continue
        other = seen.setdefault(path.absolute(), what)
        if other != what:
            raise Error(f"[compress] {path}: got the file of the {other} as the {what}, need another file")


def _write_pages(
    html: Path | None,
    plot: Path | None,
    model: Path,
    chip: Target,
    asked: Compression,
    compressed: Compressed,
    written: "_Written",
) -> None:
    if html is not None:
        page = compression_page(model.name, chip.label, compressed, _remarks(compressed, written), asked.limit)
        with named_option("--html", html):
            _core.save_file(str(html), page.encode("utf-8", "xmlcharrefreplace"))
    if plot is not None:
        with named_option("--plot", plot):
            _core.save_file(str(plot), compression_chart(model.name, compressed, asked.limit, plot.suffix.lower()[1:]))


def _per_layer(given: list[str]) -> dict[str, str]:
    modes: dict[str, str] = {}
    for text in given:
        pattern, equals, mode = text.rpartition("=")
        if not (pattern and equals and mode):
            raise typer.BadParameter(f"--layer: got {text!r}, need PATTERN=MODE, for example '*conv1*=int8'")
        modes[pattern] = mode
    return modes


def _read(model: Path, asked: Compression) -> "Network":
    """Returns the ONNX model, in an opset that has the requested encodings."""
    from hexane.compression.onnx_file import least_opset  # late import: `onnx` loads slowly
    from hexane.quant.network import read_network

    return read_network(model, least_opset([asked.mode, *asked.per_layer.values()]), "compress")


def _write_onnx(network: "Network", graph: Graph, compressed: Compressed, known: Known, output: Path) -> "_Written":
    from hexane.compression.onnx_file import write_compressed

    encodings = [layer.encoding for layer in compressed.layers]
    model, stored = write_compressed(network, graph, compressed.weights, encodings, known.shapes, known.values)
    try:
        data = model.SerializeToString()
    except ValueError as error:  # protobuf's limit
        raise Error(f"[compress] {output}: got more than 2 GiB, need less: {error}") from None
    _core.save_file(str(output), data)
    return _Written(len(data), tuple(stored))


@dataclass(frozen=True, slots=True)
class _Written:
    """The written files. bytes: their sum, None if nothing was written. layers: how an ONNX file stores each weight.
    beside: the file of weights next to the output; None for one file."""

    bytes: int | None
    layers: tuple["StoredWeight", ...]
    beside: Path | None = None


def _remarks(compressed: Compressed, written: _Written) -> dict[str, list[str]]:
    """Returns the remarks on how weights are stored in the file, with their layers."""
    remarks: dict[str, list[str]] = {}
    for layer, stored in zip(compressed.layers, written.layers, strict=False):
        if stored.remark:
            remarks.setdefault(stored.remark, []).append(layer.layer)
    return remarks


def _whole(graph: Graph) -> dict[str, list[str]]:
    """Returns the layers whose weights cannot be encoded, by dtype."""
    by_kind: dict[str, list[str]] = {}
    for where, kind in left_whole(graph).items():
        by_kind.setdefault(kind, []).append(where)
    return by_kind


def _listed(layers: Sequence[str]) -> str:
    more = f" and {len(layers) - MOST_NAMED} more" if len(layers) > MOST_NAMED else ""
    return ", ".join(layers[:MOST_NAMED]) + more


def _write(graph: Graph, net: Model, output: Path, chip: Target) -> "_Written":
    if output.suffix == ".hxp":
        net.save(output)
        return _Written(output.stat().st_size, ())
    assert isinstance(chip, Chip)
    _, pieces = emit_pieces(graph, chip)
    programs = [piece.mil for piece in pieces]
    if len(programs) != 1 or programs[0] is None:
        raise Error(
            f"[compress] {output}: got a model of {counted(len(programs), 'segment')}, some of the host, need one that"
            f" {chip.label} computes as a whole; hexane check says why, and -o X.hxp takes any"
        )
    save_mil_as(programs[0], output)
    weights = len(programs[0].weight_file)
    return _Written(output.stat().st_size + weights, (), weights_beside(output) if weights else None)


def _row(one: LayerReport) -> tuple[str, ...]:
    error = "" if one.error is None else f"{one.error:.2g}"
    return one.layer, one.encoding, size_text(one.bytes_before), size_text(one.bytes_after), error, one.target_does


def _head(chip: Target) -> tuple[str, ...]:
    return HEAD if isinstance(chip, Chip) else (*HEAD[:-1], "on this CPU")


def _legend(compressed: Compressed, chip: Target) -> str:
    does = {word: text for word, text in TARGET_MEANINGS.items() if any(_does(one, word) for one in compressed.layers)}
    target = {_head(chip)[-1]: "; ".join(f"{word}: {text}" for word, text in does.items())} if does else {}
    return legend("columns", {**MEANINGS, **target})


def _does(one: LayerReport, word: str) -> bool:
    return one.target_does.partition(":")[0].split(" ")[0] == word


def _totals(compressed: Compressed, output: Path, written: _Written, chip: Target, asked: Compression) -> str:
    where = chip.label if isinstance(chip, Chip) else "this CPU"
    size = f"not written (for {where})" if written.bytes is None else f"{size_text(written.bytes)} for {where}"
    files = str(output) if written.beside is None else f"{output} and {written.beside}"
    if not compressed.layers:
        return f"{files}: {size}; nothing compressed: {NONE}"
    if all(layer.encoding == "none" for layer in compressed.layers):
        return f"{files}: {size}; nothing compressed: {_why_whole(compressed, asked)}"
    before, after = _bytes(compressed)
    streamed = sum(layer.streams for layer in compressed.layers)
    reads = f", {streamed} streamed" if isinstance(chip, Chip) else ""
    error = "" if compressed.error is None else f"; relative error {compressed.error:.2g} on {compressed.measured_on}"
    return (
        f"{files}: {size}; {counted(len(compressed.layers), 'weight')}:"
        f" {size_text(before)} in fp16 -> {size_text(after)}{reads}{error}"
    )


def _why_whole(compressed: Compressed, asked: Compression) -> str:
    """Returns the reason why every weight stays whole."""
    if not any(fits_fp16(weight) for weight, _ in compressed.weights):
        return "no weight fits into fp16, which encodings need"
    if "auto" not in modes([weight for weight, _ in compressed.weights], asked):
        return "every layer has the mode none"
    if asked.budget is not None:
        before, _ = _bytes(compressed)
        return f"whole weights take {size_text(before)} in fp16, within the {size_text(asked.budget)} of --bytes"
    return f"no encoding keeps the outputs within the relative error {asked.limit:g}"


def _bytes(compressed: Compressed) -> tuple[int, int]:
    return sum(layer.bytes_before for layer in compressed.layers), sum(layer.bytes_after for layer in compressed.layers)


def _record(compressed: Compressed, output: Path, written: _Written, chip: Target) -> dict[str, Any]:
    before, after = _bytes(compressed)
    layers = [{**asdict(layer), "error": _finite(layer.error)} for layer in compressed.layers]
    for layer, stored in zip(layers, written.layers, strict=False):
        layer |= {"file_bytes": stored.bytes, "remark": stored.remark}
    return {
        "output": str(output),
        "weights_file": None if written.beside is None else str(written.beside),
        "target": chip.name,
        "file_bytes": written.bytes,
        "bytes_before": before,
        "bytes_after": after,
        "error": _finite(compressed.error),
        "measured_on": compressed.measured_on,
        "layers": layers,
    }


def _finite(error: float | None) -> float | None:
    return error if error is not None and isfinite(error) else None
