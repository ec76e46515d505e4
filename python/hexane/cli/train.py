"""`hexane train`: trains a decoder on a file of tokens, with a log, checkpoints, and resuming after interruptions."""

import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from hexane.bench.energy import Meter, meter_command
from hexane.cli.errors import command
from hexane.cli.job import ends_the_job, this_job
from hexane.cli.options import Arithmetic, Debug, Json
from hexane.cli.output import print_json, working
from hexane.cli.train_data import checked_data
from hexane.cli.train_lora import FOLDER, AskedLora
from hexane.cli.train_start import (
    base_in,
    export_of,
    family_of,
    keep_base,
    keep_tokenizer,
    keep_tokenizer_files,
    kept_base,
    kept_checkpoint,
    made_folders,
    note_of_vocab,
    removed_if_empty,
    start_of,
    tokenizer_of,
)
from hexane.errors import Error
from hexane.graph.decisions import counted
from hexane.train.decoder import save_llama
from hexane.train.decoder.adapter_files import write_adapter
from hexane.train.decoder.formats import hugging_face
from hexane.train.decoder.training import DecoderTraining
from hexane.train.interrupts import ended_by_sigterm
from hexane.train.log import last_entries
from hexane.train.text import Conversations, TokenWindows
from hexane.train.trainer import CHECKPOINT, LOG, checkpoint_in

POWER_EVERY = 1000  # milliseconds between samples
MAKE = """from any text file:
  hexane tokenize TEXT.txt --learn 4096 --tokenizer tokenizer.json -o tokens.bin
  hexane train --data tokens.bin --vocab 4096 --tokenizer tokenizer.json --sample-every 100
For a model that has a tokenizer, such as one of llama2.c:
  hexane tokenize TEXT.txt --tokenizer tokenizer.bin -o tokens.bin"""


class DeviceName(str, Enum):
    """--device: where a chip's programs run."""

    AUTO = "auto"
    CPU = "cpu"
    ANE = "ane"


class VariantName(str, Enum):
    """--variant: how the step is cut into a chip's programs."""

    CPU_HEAD = "cpu-head"
    ANE_HEAD = "ane-head"
    LINEAR = "linear"


class ScheduleName(str, Enum):
    """--schedule: of the learning rate."""

    CONSTANT = "constant"
    COSINE = "cosine"


@ends_the_job
@command
@ended_by_sigterm()
def train(
    data: Annotated[
        Path | None, typer.Option(metavar="TOKENS.bin", help="A file of tokens, written by `hexane tokenize`.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help=(
                "stories15M, stories42M or stories110M for a new one; a file of llama2.c, a folder of Hugging Face or a"
                " checkpoint for the weights in it. [default: stories15M]"
            ),
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="RUN", help="Folder of log and checkpoint.")] = Path(
        "run"
    ),
    steps: Annotated[int | None, typer.Option(min=1, help="Updates of the weights. [default: 1000]")] = None,
    seq: Annotated[int | None, typer.Option(min=1, help="Tokens in a row. [default: 256, or what MODEL has]")] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Rows in a batch, over all ranks. [default: 1 per rank]")
    ] = None,
    accumulate: Annotated[int | None, typer.Option(min=1, help="Batches in a step. [default: 10]")] = None,
    lr: Annotated[float | None, typer.Option(help="The largest learning rate. [default: 3e-4]")] = None,
    schedule: Annotated[
        ScheduleName | None, typer.Option(help="cosine: down to a tenth of --lr. [default: cosine]", show_default=False)
    ] = None,
    warm_up: Annotated[
        int | None,
        typer.Option(
            min=0, help="Steps until the learning rate reaches --lr. [default: a tenth of --steps, at most 100]"
        ),
    ] = None,
    clip: Annotated[
        float | None, typer.Option(min=0, help="Clip the norm of all gradients to this; 0: no clipping. [default: 1]")
    ] = None,
    weight_decay: Annotated[float | None, typer.Option(min=0, help="The weight decay of AdamW. [default: 0.1]")] = None,
    loss_scale: Annotated[
        float | None,
        typer.Option(
            help="A factor on the loss, which keeps small gradients above zero in fp16. [default: 1, for chips 256]"
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The seed of the initial weights and of the batch order. [default: 0]")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="host, or a chip (M4, h13) to compile the programs for. [default: host]"),
    ] = None,
    numerics: Arithmetic = None,
    eval_data: Annotated[
        Path | None, typer.Option(metavar="TOKENS.bin", help="Held-out tokens, for evaluations.")
    ] = None,
    eval_every: Annotated[int, typer.Option(min=1, help="Steps between evaluations.")] = 100,
    eval_batches: Annotated[int, typer.Option(min=1, help="The largest number of batches in an evaluation.")] = 32,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 100,
    sample_every: Annotated[
        int | None,
        typer.Option(min=1, help="Print a generated text each time this many steps are done. [default: never]"),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The beginning of the texts of --sample-every. [default: empty]")
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=(
                "tokenizer.bin or a tokenizer.json, for the texts of --sample-every; RUN keeps a copy. [default: the"
                " one in RUN]"
            ),
        ),
    ] = None,
    variant: Annotated[
        VariantName | None,
        typer.Option(
            help=(
                "For a chip: where the last norm, the classifier and the gradients of norms run. cpu-head: on this CPU;"
                " ane-head: on the engine; linear: the engine has only products with weights. [default: cpu-head]"
            )
        ),
    ] = None,
    device: Annotated[
        DeviceName,
        typer.Option(
            help="Where a chip's programs run. auto: on this machine's engine if it is that of the chip and --numerics"
            " is not given, else on the CPU."
        ),
    ] = DeviceName.AUTO,
    threads: Annotated[
        int | None, typer.Option(min=1, max=256, help="The number of CPU cores to use. [default: all]")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the checkpoint in RUN, with its options.")
    ] = False,
    export_to: Annotated[
        Path | None,
        typer.Option(
            "--export",
            metavar="FILE.bin|DIR",
            help="The trained model as a file of llama2.c, or a folder of Hugging Face. [default: RUN/model.bin]",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Write a Chrome trace of the last batch, with the time of each step."),
    ] = None,
    power: Annotated[
        bool, typer.Option("--power", help="Log the power of the machine, by macOS' powermetrics. Needs root.")
    ] = False,
    lora: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="RANK", help="Train only adapters of this rank; the weights of MODEL stay unchanged."
        ),
    ] = None,
    lora_alpha: Annotated[
        float | None, typer.Option(help="Scales the adapters by this number / rank. [default: twice the rank]")
    ] = None,
    lora_targets: Annotated[
        str | None,
        typer.Option(metavar="q,k,..", help="Layers with adapters. [default: q,k,v,o,gate,up,down]"),
    ] = None,
    compress: Annotated[
        str | None,
        typer.Option(
            metavar="ENCODING",
            help="With --lora, keep MODEL's weights in fewer bits: int8, blockwise4:b32, palette4 and others.",
        ),
    ] = None,
    dim: Annotated[int | None, typer.Option(min=1, help="Of a new model: the width of the residual stream.")] = None,
    hidden: Annotated[int | None, typer.Option(min=1, help="Of a new model: the width inside an MLP.")] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="Of a new model: the number of layers.")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="Of a new model: the number of query heads.")] = None,
    kv_heads: Annotated[
        int | None, typer.Option(min=1, help="Of a new model: the number of key and value heads.")
    ] = None,
    vocab: Annotated[
        int | None, typer.Option(min=1, help="Of a new model: the number of tokens in the vocabulary.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Train on tokens whose tokenizer or vocabulary is not the model's.")
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a decoder of the Llama family on a file of tokens.

    \b
    hexane tokenize stories.txt --tokenizer tokenizer.bin -o tokens.bin  # --learn 4096: with a new tokenizer
    hexane train --data tokens.bin --model stories15M --steps 1000 -o run
    hexane train --data tokens.bin --resume -o run
    hexane generate run --prompt "Once" --tokenizer tokenizer.bin

    With --tokenizer tokenizer.bin --sample-every 100 --prompt "Once" it prints a generated text of 64 tokens every
    100 steps.

    RUN gets log.jsonl, with a line per batch, checkpoint.hxc (also on Ctrl-C and SIGTERM), and at the end model.bin.

    With --model stories15M.bin --lora 8 it trains adapters of rank 8 on that model (LoRA): checkpoint.hxc has only
    adapters, and at the end RUN/adapter is a PEFT folder: `hexane generate stories15M.bin --lora RUN/adapter`.
    --compress int8 keeps the model encoded meanwhile (QLoRA), which needs a third of the memory.

    mpirun -n 4 hexane train .. trains one model with four processes, with mpi4py.
    """
    job = this_job()
    is_first = job.rank == 0
    if data is None:
        raise Error(f"[train] --data: got none, need a file of tokens, {MAKE}")
    for option, path in (("--data", data), ("--eval-data", eval_data)):
        if path is not None and not path.exists():
            raise Error(f"[train] {option}: got no file {path}, need a file of tokens, {MAKE}")
    sizes = {"dim": dim, "hidden": hidden, "layers": layers, "heads": heads, "kv_heads": kv_heads, "vocab": vocab}
    given = {
        "steps": steps, "batch": batch, "accumulate": accumulate, "lr": lr, "warm_up": warm_up, "clip": clip,
        "schedule": schedule and schedule.value, "weight_decay": weight_decay, "loss_scale": loss_scale, "seed": seed,
        "target": target, "numerics": numerics and numerics.value, "variant": variant and variant.value,
        "compress": compress,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    if prompt is not None and sample_every is None:
        raise typer.BadParameter("--prompt: got it without --sample-every, need both")
    meter_of_power, why = meter_command(POWER_EVERY) if power and is_first else ([], "")
    if why:
        raise Error(f"[train] --power: {why}")
    known = tokenizer_of(tokenizer, output, needed=sample_every is not None)
    folders = made_folders(output)
    with removed_if_empty(folders):
        if job.communicator is not None and not checkpoint_in(output).exists():
            given.setdefault("batch", job.count)
        with working("reading"):
            start = start_of(
                checkpoint_in(output), model, sizes, seq, given, resume, AskedLora(lora, lora_alpha, lora_targets)
            )
        base = model or (None if start.base is None else start.base.path) or base_in(output)
        files = []
        for option, path in (("--data", data), ("--eval-data", eval_data)):
            if path is not None:
                read, note = checked_data(option, path, start.config, base, known, force)
                files.append(read)
                if note and is_first:
                    print(f"[train] {note}", file=sys.stderr)
        exported = export_of(export_to, output, start.config, adapters=start.lora is not None)
        with working("compiling the training step"):
            training = DecoderTraining(
                start.config,
                start.weights,
                files[0],
                output,
                start.options,
                evaluation=files[1] if len(files) > 1 else None,
                evaluated=eval_batches,
                tokens=start.tokens,
                threads=threads or job.threads,
                device=device.value,
                tokenizer=known if sample_every is not None and is_first else None,
                prompt=prompt or "",
                lora=start.lora,
                base=start.base,
                communicator=job.communicator,
            )
        if tokenizer is not None and is_first:
            keep_tokenizer(tokenizer, output)
        if is_first:
            keep_base(base, output)
        if is_first and (note := note_of_vocab(known, start.config)):
            print(f"[train] {note}", file=sys.stderr)
        if is_first and (note := _note_of_rows(training.windows)):
            print(f"[train] {note}", file=sys.stderr)
        trainer = training.trainer
        start.weights = None  # the program has its own copy
        if not json and is_first:
            print(_head(training, job.count), flush=True)
        try:
            with Meter(meter_of_power) as meter:
                training.run(
                    evaluate_every=eval_every,
                    checkpoint_every=checkpoint_every,
                    resume=resume,
                    trace=trace,
                    sample_every=sample_every or 0,
                    watch=lambda: {f"mw.{part}": drawn for part, drawn in meter.last.items()},
                )
        except KeyboardInterrupt:
            if trainer.calls and is_first:
                done = counted(trainer.calls // start.options.accumulate, "step")
                print(f"interrupted: {output / CHECKPOINT} has {done}; --resume goes on from it", file=sys.stderr)
            raise
    if not is_first:
        return
    adapter = None
    if start.lora is not None and start.base is not None:
        adapter = output / FOLDER
        with kept_checkpoint(output / CHECKPOINT):
            write_adapter(adapter, start.config, start.lora, training.adapters(), start.base, family_of(output))
            keep_tokenizer_files(adapter, output)
    if exported.format is not None:
        with kept_checkpoint(output / CHECKPOINT):
            like = kept_base(output) if exported.format == hugging_face.FORMAT.name else None
            save_llama(exported.path, start.config, training.weights(), format=exported.format, like=like)
    of_step = last_entries(output / LOG, start.options.accumulate)  # the batches of the last step
    last = of_step[-1] if of_step else {}
    loss = _mean([one["loss"] for one in of_step])
    if json:
        print_json(
            {
                "run": str(output),
                "checkpoint": str(output / CHECKPOINT),
                "model": None if exported.format is None else str(exported.path),
                "adapter": None if adapter is None else str(adapter),
                "parameters": start.config.parameters,
                "loss": loss,
                "last": last,
            }
        )
        return
    told = f", {last['tokens']} tokens, loss {_number(loss)} in the last step" if last else ""
    print(f"{output}: {counted(trainer.updates, 'step')}{told}")
    print(f"checkpoint  {output / CHECKPOINT}")
    if adapter is not None:
        print(f"adapter     {adapter}")
    print(f"model       {exported.note or exported.path}")


def _note_of_rows(windows: TokenWindows | Conversations) -> str:
    """Returns a note on conversations that are longer than a row; "" if all fit."""
    if isinstance(windows, TokenWindows) or not windows.cut + windows.left_out:
        return ""
    total = len(windows) + windows.left_out
    return (
        f"note: of {counted(total, 'conversation')} {windows.cut} are longer than a row of {windows.seq} tokens and"
        f" lose their ends; {windows.left_out} have no answer in a row and are left out; --seq makes rows longer"
    )


def _mean(losses: Sequence[float | None]) -> float | None:
    """Returns the loss of a step from those of its batches, as the dashboard shows it; None if one is not finite."""
    finite = [loss for loss in losses if loss is not None]
    return sum(finite) / len(finite) if finite and len(finite) == len(losses) else None


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def _head(training: DecoderTraining, ranks: int) -> str:
    config, options = training.model.config, training.options
    rows = f"{counted(options.batch, 'row')} of {config.seq} tokens"
    batches = f"{counted(options.accumulate, 'batch')} of {rows}"
    rows_of = training.windows
    chats = f" in {counted(len(rows_of), 'conversation')}" if isinstance(rows_of, Conversations) else ""
    where = "" if options.target == "host" else f"\n{training.trainer.net.device}"
    return (
        f"{_what(training)}, {len(training.windows.tokens):,} tokens of data{chats},"
        f" {counted(options.steps, 'step')} of {batches}, on {counted(training.trainer.net.threads, 'thread')}"
        + (f" of each of {ranks} ranks" if ranks > 1 else "")
        + where
    )


def _what(training: DecoderTraining) -> str:
    parameters = f"{training.model.config.parameters:,}"
    if training.model.lora is None:
        return f"{parameters} parameters"
    count = sum(tensor.type.size for tensor in training.model.params.values())
    return f"adapters of {count:,} parameters on a model of {parameters}"
