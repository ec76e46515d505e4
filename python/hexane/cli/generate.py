"""`hexane generate`: text that a decoder makes, as it comes."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from hexane.cli.errors import command
from hexane.cli.options import Debug, Json
from hexane.cli.output import print_json, working
from hexane.cli.train_start import note_of_vocab
from hexane.errors import Error
from hexane.graph.decisions import counted
from hexane.options import Options
from hexane.train.decoder import Generator
from hexane.train.text import NAMES, TextStream, find_tokenizer, load_chat_template, load_tokenizer
from hexane.train.trainer import checkpoint_in


@command
def generate(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="A folder or checkpoint of `hexane train`, a file of llama2.c, or a folder of Hugging Face.",
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
    steps: Annotated[int, typer.Option(min=0, help="Tokens to make, at most.")] = 256,
    temperature: Annotated[float, typer.Option(min=0, help="0: the likeliest token each time.")] = 0.8,
    top_p: Annotated[float, typer.Option(help="The share of the likeliest tokens that one is drawn of.")] = 0.9,
    top_k: Annotated[int, typer.Option(min=0, help="How many of the likeliest tokens one is drawn of; 0: all.")] = 0,
    min_p: Annotated[
        float, typer.Option(min=0, max=1, help="The part of the likeliest token's share that others need.")
    ] = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1: tokens that the text has become less likely.")
    ] = 1.0,
    chat: Annotated[
        bool, typer.Option("--chat", help="--prompt is a user's message, in the template of MODEL: print the answer.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="The same seed, the same text.")] = 0,
    context: Annotated[
        int | None, typer.Option(min=1, help="Room for so many tokens. [default: as many as the model takes]")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, max=256, help="How many. [default: all cores]")] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Print a text that a decoder makes of its beginning, token by token.

    \b
    hexane generate run --prompt "Once" --tokenizer tokenizer.bin
    hexane generate stories15M.bin --prompt "Once" --temperature 0
    hexane generate stories15M.bin --prompt "Once" --lora run/adapter
    hexane generate Qwen2.5-0.5B-Instruct --prompt "What is a tide?" --chat

    It ends where the model ends it (eos_token_id, or the token that ends an answer in a chat), after --steps tokens, or
    where the model's row of tokens is full. Tokens a second are printed on stderr, and the time to the first one.
    """
    # A model of transformers was trained on texts as its tokenizer writes them, others on documents with their mark.
    published = (model / "config.json").is_file()
    if not published and checkpoint_in(model).is_file():
        model = checkpoint_in(model)
    known = load_tokenizer(_tokenizer(model, tokenizer))
    text = prompt
    if chat:
        text = load_chat_template(model if model.is_dir() else model.parent)([{"role": "user", "content": prompt}])
    with working(f"reading {model.name}"):
        made = Generator(model, lora=lora, options=Options(target="host", threads=threads), context=context)
    if known.vocab > made.config.vocab:
        raise Error(f"[generate] {model}: got {made.config.vocab} tokens, need the tokenizer's {known.vocab}")
    if not published and (note := note_of_vocab(known, made.config)):
        print(f"[generate] {note}", file=sys.stderr)
    ids = known.encode(text, begin=not chat and (known.adds_begin or not published))
    if not ids:
        raise Error("[generate] --prompt: got an empty prompt, need some text: this tokenizer has no BOS token")
    tokens = made(
        ids,
        steps=steps,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        stop=known.stops | made.ends,
        vocab=known.vocab,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
    )
    if not json and not chat:
        print(prompt, end="", flush=True)
    stream, found, texts, times = TextStream(known, ids), list[int](), list[str](), list[float]()
    start = time.perf_counter()
    for token in tokens:
        times.append(time.perf_counter())
        found.append(token)
        texts.append(stream.add(token))
        if not json:
            print(texts[-1], end="", flush=True)
    texts.append(stream.end())
    rate = (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else None
    first = times[0] - start if times else None
    full = len(ids) + len(found) >= made.config.seq
    why = "steps" if len(found) == steps else "seq" if full else "end"
    if json:
        print_json(
            {
                "prompt": prompt,
                "text": "".join(texts),
                "prompt_tokens": ids,
                "tokens": found,
                "ended_by": why,
                "tokens_per_second": rate,
                "seconds_to_first_token": first,
            }
        )
        return
    print(texts[-1])
    told = "" if rate is None else f", {rate:.1f} tokens/s"
    told += "" if first is None else f", the first after {first:.2f} s ({counted(len(ids), 'token')} of the prompt)"
    note = f"; the model takes no more than {made.config.seq}" if why == "seq" else ""
    sys.stdout.flush()
    print(f"{counted(len(found), 'token')}{told}{note}", file=sys.stderr)


def _tokenizer(model: Path, given: Path | None) -> Path:
    if given is not None:
        return given
    folder = model if model.is_dir() else model.parent
    found = find_tokenizer(folder)
    if found is None:
        raise Error(f"[generate] --tokenizer: got none, need a file, or {' or '.join(NAMES)} in {folder}")
    return found
