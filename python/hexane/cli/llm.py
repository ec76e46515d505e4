"""`hexane llm`: prints one page of facts about a language model, or exports it."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer

from hexane.cli.encoding import Calibration, Encoding, Force, ProductDtype, Products, say_quality
from hexane.cli.errors import command
from hexane.cli.options import Debug, Json, names_of
from hexane.cli.output import print_json, print_table, working
from hexane.graph.decisions import counted
from hexane.graph.printer import size_text
from hexane.importers.encoders import holds_encoder
from hexane.importers.speech import holds_speech
from hexane.llm import Exported, Facts, export, facts, find_model
from hexane.llm.encoder import load_encoder
from hexane.llm.encoder_facts import EncoderFacts, EncoderOnChip, encoder_facts
from hexane.llm.export import LAYERS, PREFILL
from hexane.llm.facts import perplexities
from hexane.llm.model import load
from hexane.llm.speech import load_speech
from hexane.llm.speech_facts import SpeechFacts, speech_facts
from hexane.memory import byte_count

CONTEXT = 2048  # tokens of the measured model's context


class Opset(str, Enum):
    """--opset: systems that load a package."""

    IOS16 = "iOS16"
    IOS17 = "iOS17"
    IOS18 = "iOS18"


@command
def llm(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A folder of Hugging Face, a repository (org/name) in its local cache, or a GGUF file.",
        ),
    ],
    target: Annotated[
        str, typer.Option(metavar="NAMES", help="Also estimate these chips, separated by commas: M1,M5 Pro.")
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Write a Core ML package for the one --target there."),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(min=2, help=f"With -o: the number of tokens in the cache. [default: at most {CONTEXT}]"),
    ] = None,
    prefill: Annotated[
        str | None,
        typer.Option(
            metavar="N[,N]",
            help="With -o: the number of prompt tokens in one call; several numbers give a function for each. [default:"
            f" {PREFILL}, or all of a shorter --context]",
        ),
    ] = None,
    package: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="With -o: the most weights of a package, as in 500M. A larger model becomes several. [default: what"
            " systems place on the engine]",
        ),
    ] = None,
    opset: Annotated[
        Opset | None,
        typer.Option(
            help="With -o: the oldest system that loads the package. Before iOS18, each function is a package of its"
            " own, and the cache is an input. [default: iOS18]"
        ),
    ] = None,
    compress: Encoding = None,
    dtype: Products = ProductDtype.FP32,
    calibration: Calibration = None,
    force: Force = False,
    threads: Annotated[
        int | None, typer.Option(min=1, max=256, help="The number of CPU cores to use. [default: all]")
    ] = None,
    perplexity: Annotated[
        bool, typer.Option("--perplexity", help="Also measure the perplexity in each encoding, on the text.")
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Describe a language model: its sizes, its memory in each encoding, and its speed on this machine.

    \b
    hexane llm SmolLM2-135M-Instruct
    hexane llm SmolLM2-135M-Instruct --compress int8 --target M1,M5
    hexane llm HuggingFaceTB/SmolLM2-135M --perplexity --json
    hexane llm SmolLM2-135M-Instruct --target M4 --compress blockwise4:b32 --context 1024 -o out

    With -o, DIR gets a package with the functions prefill and decode, which share weights and the cache, a manifest,
    the tokenizer, and run.py for a Mac. Above 1 GiB of weights it gets several packages. Before DIR appears, their
    logits are compared with those of the loaded model, whose weights are as --compress stores them. Tokens a second are
    measured briefly on this CPU, and estimated for chips.

    For a text encoder (BERT, MiniLM, RoBERTa) it prints the time of one text instead of tokens a second, and the ops
    that a chip leaves to the CPU; `hexane embed` runs it. For Whisper it prints the times of the encoder and of a
    token; `hexane transcribe` runs it.
    """
    path = find_model(model)
    of_exports = {"--context": context, "--prefill": prefill, "--package": package, "--opset": opset}
    of_decoders = {"-o": output, **of_exports, "--calibration": calibration, "--perplexity": perplexity or None}
    if holds_encoder(path):
        _refuse(of_decoders, "a text encoder")
        _encoder(path, names_of(target), compress, dtype.value, threads, force, json)
        return
    if holds_speech(path):
        _refuse({**of_decoders, "--compress": compress}, "a speech model")
        _speech(path, names_of(target), dtype.value, threads, json)
        return
    for option, given in of_exports.items():
        if output is None and given is not None:
            raise typer.BadParameter(f"{option}: got it without -o, need both")
    lengths = None if prefill is None else _lengths(prefill)
    most = None if package is None else byte_count("--package", package)
    if output is not None and len(names_of(target)) > 1:
        raise typer.BadParameter(f"--target: got {target!r} with -o, need one chip or none")
    with working(f"reading {path.name}"):
        loaded = load(
            path, context=context, compress=compress, dtype=dtype.value, threads=threads, calibration=calibration,
            force=force,
            at_most=CONTEXT,
        )  # fmt: skip
    say_quality(loaded, "llm", given=compress)
    if output is not None:
        with working(f"writing {output}"):
            usual = min(PREFILL, loaded.config.seq)
            written = export(
                loaded, output, target=target or None, prefill=lengths or usual, most_bytes=most,
                opset=None if opset is None else opset.value,
            )  # fmt: skip
        print_json(_record(written)) if json else _print_export(written)
        return
    with working("measuring"):
        known = facts(loaded, names_of(target), compress=compress, dtype=dtype.value)
        if perplexity:
            measured = perplexities(path, threads=threads, calibration=calibration, dtype=dtype.value)
            known = replace(known, perplexity=measured)
    if json:
        print_json(known.record())
    else:
        _print(known)


def _lengths(text: str) -> list[int]:
    try:
        return [int(one) for one in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"--prefill: got {text!r}, need numbers such as 64 or 16,256") from None


def _refuse(options: Mapping[str, object], kind: str) -> None:
    for option, given in options.items():
        if given is not None:
            raise typer.BadParameter(f"{option}: got it for {kind}, need a decoder")


def _speech(path: Path, targets: list[str], dtype: str, threads: int | None, json: bool) -> None:
    with working(f"reading {path.name}"):
        loaded = load_speech(path, dtype=dtype, threads=threads)
    with working("measuring"):
        known = speech_facts(loaded, targets, dtype=dtype)
    if json:
        print_json(known.record())
    else:
        _print_speech(known)


def _print_speech(known: SpeechFacts) -> None:
    print(f"{known.model}: {known.family}, {known.parameters:,} parameters, windows of {known.window:g} s of sound")
    print(known.shape)
    languages = counted(len(known.languages), "language") if known.languages else "one language"
    print(f"texts of {known.tokens:,} tokens with their prompt, {languages}, tasks: {', '.join(known.tasks)}")
    weights = f"weights of {size_text(known.weights)}{_products(known.dtype)}"
    print(
        f"\nmeasured here ({counted(known.threads, 'thread')}, {weights}):"
        f" {known.milliseconds:.1f} ms for the encoder of a window, {known.tokens_per_second:.1f} tokens/s"
    )
    _print_chips(known.chips, "the encoder ")


def _encoder(
    path: Path, targets: list[str], compress: str | None, dtype: str, threads: int | None, force: bool, json: bool
) -> None:
    with working(f"reading {path.name}"):
        loaded = load_encoder(path, compress=compress, dtype=dtype, threads=threads, force=force)
    with working("measuring"):
        known = encoder_facts(loaded, targets, compress=compress, dtype=dtype)
    if json:
        print_json(known.record())
    else:
        _print_encoder(known)


def _compressed(encoding: str) -> str:
    return "weights not compressed" if encoding == "none" else f"weights {encoding}"


def _products(dtype: str) -> str:
    return "" if dtype == "fp32" else f", products in {dtype}"


def _print_encoder(known: EncoderFacts) -> None:
    print(f"{known.model}: {known.family}, {known.parameters:,} parameters, texts of {known.longest:,} tokens")
    print(known.shape)
    print(f"embeddings of {known.dim} numbers: {known.pooling}")
    print(f"head: {known.head or 'none'}")
    print(
        f"\nmeasured here ({counted(known.threads, 'thread')}, {_compressed(known.compress)}{_products(known.dtype)}):"
        f" {known.milliseconds:.1f} ms for a text of {known.tokens} tokens, {known.texts_per_second:.0f} texts/s in"
        " batches"
    )
    _print_chips(known.chips)
    print()
    print_table(
        ("encoding", "weights"), [(name, size_text(n)) for name, n in known.weights.items()], right=("weights",)
    )


def _print_chips(chips: Iterable[EncoderOnChip], what: str = "") -> None:
    for one in chips:
        if one.milliseconds is None:
            print(f"{one.target}: no estimate: {one.error}")
            continue
        left = f"; on the CPU: {', '.join(one.left)}" if one.left else ""
        time = f"{one.milliseconds:.2f} ms ({one.low:.2f} to {one.high:.2f})"
        print(f"{one.target}: {what}estimated {time}, {counted(one.parts, 'part')} on the engine{left}")


def _record(exported: Exported) -> dict[str, Any]:
    """A dict for JSON, which has no infinite numbers: they are None."""
    layers = [{name: v if isfinite(v) else None for name, v in asdict(layer).items()} for layer in exported.layers]
    return {**asdict(exported), "folder": str(exported.folder), "layers": layers}


def _print_export(exported: Exported) -> None:
    packages = f" in {len(exported.packages)} packages" if len(exported.packages) > 1 else ""
    print(f"{exported.folder}: {size_text(exported.bytes)}{packages}, room for {exported.context:,} tokens")
    for name, parts in exported.parts.items():
        print(f"  {name} on {exported.target}: {parts}")
    same = f"the likeliest token is the same at {exported.agrees:.0%} of the positions checked"
    print(
        f"  logits differ by {exported.distance:.2g} (relative L2) from those of the same weights on this CPU; {same}"
    )
    if exported.layers:
        worst = max(exported.layers, key=lambda one: one.own_error)
        largest = max(one.largest for one in exported.layers)
        alone = f"each layer alone, on exact inputs in the arithmetic of {exported.target}"
        own = f"{alone}, is at most {worst.own_error:.2g} from fp32"
        if not isfinite(worst.own_error):
            own = f"in the arithmetic of {exported.target}, numbers of a layer are infinite or NaN"
        print(f"  {own} (layer {worst.layer}); numbers up to {largest:.3g} ({LAYERS})")


def _print(known: Facts) -> None:
    print(f"{known.model}: {known.family}, {known.parameters:,} parameters, context of {known.context:,} tokens")
    print(known.shape)
    print(
        f"\nmeasured here ({counted(known.threads, 'thread')}, {_compressed(known.compress)}{_products(known.dtype)}):"
        f" {known.tokens_per_second:.1f} tokens/s, {known.prompt_tokens_per_second:.0f} tokens/s of a prompt"
    )
    for one in known.chips:
        if one.tokens_per_second is None:
            print(f"{one.target}: no estimate: {one.error}")
        else:
            print(f"{one.target}: estimated {one.tokens_per_second:.1f} tokens/s ({one.low:.1f} to {one.high:.1f})")
    print()
    columns = ("encoding", "weights", "perplexity") if known.perplexity else ("encoding", "weights")
    rows = [(name, size_text(n), f"{known.perplexity.get(name, 0):.4g}") for name, n in known.weights.items()]
    print_table(columns, [row[: len(columns)] for row in rows], right=columns[1:])
    print(f"a conversation needs {size_text(known.cache_per_1024_tokens)} more for each 1,024 tokens of its context")
    print("\nnot supported:")
    for line in known.unsupported:
        print(f"  {line}")
