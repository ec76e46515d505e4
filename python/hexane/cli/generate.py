"""`hexane generate`: prints the text that a decoder generates, token by token."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from hexane.cli.encoding import Calibration, Encoding, Force, ProductDtype, Products, say_encoded, say_quality
from hexane.cli.errors import command
from hexane.cli.options import Debug, Json
from hexane.cli.output import print_json, working
from hexane.cli.sampling import ROOM, Context, MinP, RepetitionPenalty, Temperature, Threads, TopK, TopP
from hexane.cli.train_start import note_of_vocab
from hexane.graph.decisions import counted
from hexane.llm import find_model
from hexane.llm.model import load, tokenizer_of


@command
def generate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help=(
                "A folder or checkpoint of `hexane train`, a file of llama2.c, GGUF, a folder of Hugging Face, or"
                " a repository (org/name) in its local cache."
            ),
        ),
    ],
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="What the text begins with.")] = "",
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="tokenizer.bin or a tokenizer.json. [default: the one next to MODEL, or inside it]"
        ),
    ] = None,
    lora: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN/adapter",
            help="Adapters that are added to the weights: a folder of PEFT, or a checkpoint of `hexane train --lora`.",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=0, help="The largest number of tokens to generate.")] = 256,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    min_p: MinP = None,
    repetition_penalty: RepetitionPenalty = None,
    chat: Annotated[
        bool,
        typer.Option(
            "--chat", help="Put --prompt into the chat template of MODEL as a user's message, and print the answer."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the sampling. Equal seeds give equal texts.")] = 0,
    context: Context = None,
    compress: Encoding = None,
    dtype: Products = ProductDtype.FP32,
    calibration: Calibration = None,
    force: Force = False,
    threads: Threads = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Generate text from a prompt, token by token.

    \b
    hexane generate run --prompt "Once" --tokenizer tokenizer.bin
    hexane generate stories15M.bin --prompt "Once" --temperature 0
    hexane generate stories15M.bin --prompt "Once" --lora run/adapter
    hexane generate Qwen2.5-0.5B-Instruct --prompt "What is a tide?" --chat
    hexane generate HuggingFaceTB/SmolLM2-135M --prompt "Once" --compress int8

    The text ends with the model's end token (eos_token_id, or the end of an answer in a chat), after --steps tokens, or
    when the context is full. Tokens a second, and the time to the first token, are printed on stderr.
    """
    path = find_model(
        model, "a folder or checkpoint of `hexane train`, a file of llama2.c, a GGUF file, a folder of Hugging Face"
    )
    with working(f"reading {path.name}"):
        loaded = load(
            path,
            context=context,
            compress=compress,
            dtype=dtype.value,
            threads=threads,
            calibration=calibration,
            force=force,
            lora=lora,
            tokenizer=tokenizer or tokenizer_of(path),
            at_most=ROOM,
        )
    say_quality(loaded, "generate")
    say_encoded(loaded.encoded, loaded.quality.encoding if loaded.quality else compress, "generate")
    if not loaded.published and (note := note_of_vocab(loaded.tokenizer, loaded.config)):
        print(f"[generate] {note}", file=sys.stderr)
    answer = loaded.generate(
        [{"role": "user", "content": prompt}] if chat else prompt,
        steps=steps,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
    )
    if not json and not chat:
        print(prompt, end="", flush=True)
    texts = []
    for text in answer:
        texts.append(text)
        if not json:
            print(text, end="", flush=True)
    ids, tokens, why = answer.prompt, answer.tokens, answer.ended_by
    rate, first = answer.tokens_per_second, answer.seconds_to_first_token
    if json:
        print_json(
            {
                "prompt": prompt,
                "text": "".join(texts),
                "prompt_tokens": ids,
                "tokens": tokens,
                "ended_by": why,
                "tokens_per_second": rate,
                "seconds_to_first_token": first,
            }
        )
        return
    print()
    told = "" if rate is None else f", {rate:.1f} tokens/s"
    told += "" if first is None else f", the first after {first:.2f} s ({counted(len(ids), 'token')} of the prompt)"
    room = loaded.config.seq
    full = f"; the model takes no more than {room}" if room == loaded.longest else f"; the --context is full at {room}"
    note = full if why == "seq" else ""
    sys.stdout.flush()
    print(f"{counted(len(tokens), 'token')}{told}{note}", file=sys.stderr)
