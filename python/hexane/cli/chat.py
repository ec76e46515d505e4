"""`hexane chat`: a conversation with a language model, line by line."""

import sys
from typing import Annotated, Any

import typer

from hexane.cli.encoding import Calibration, Encoding, Force, ProductDtype, Products, say_encoded, say_quality
from hexane.cli.errors import command
from hexane.cli.options import Debug
from hexane.cli.output import working
from hexane.cli.sampling import ROOM, Context, MinP, RepetitionPenalty, Temperature, Threads, TopK, TopP
from hexane.errors import Error
from hexane.llm import Conversation, find_model
from hexane.llm.model import load
from hexane.train.decoder.generate import NotFinite

RESET, QUIT = "/reset", "/quit"
ASK = "> "


@command
def chat(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A folder of Hugging Face, a repository (org/name) in its local cache, or a GGUF file.",
        ),
    ],
    system: Annotated[str, typer.Option(metavar="TEXT", help="A system message, before all others.")] = "",
    steps: Annotated[int, typer.Option(min=1, help="The largest number of tokens in an answer.")] = 1024,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    min_p: MinP = None,
    repetition_penalty: RepetitionPenalty = None,
    seed: Annotated[
        int, typer.Option(min=0, help="The seed of the sampling. Equal seeds and messages give equal answers.")
    ] = 0,
    context: Context = None,
    compress: Encoding = None,
    dtype: Products = ProductDtype.FP32,
    calibration: Calibration = None,
    force: Force = False,
    threads: Threads = None,
    debug: Debug = False,
) -> None:
    """Talk with a language model: each line of stdin is a message, and the answer is printed as it comes.

    \b
    hexane chat SmolLM2-135M-Instruct
    echo "What is a tide?" | hexane chat SmolLM2-135M-Instruct --temperature 0

    /reset starts a new conversation; /quit or the end of stdin ends the chat. Ctrl-C stops an answer; at the prompt it
    ends the chat. The cache keeps the history, so that a message costs only its own tokens.
    """
    path = find_model(model)
    with working(f"reading {path.name}"):
        known = load(
            path, context=context, compress=compress, dtype=dtype.value, threads=threads, calibration=calibration,
            force=force,
            at_most=ROOM,
        )  # fmt: skip
    say_quality(known, "chat")
    say_encoded(known.encoded, known.quality.encoding if known.quality else compress, "chat")
    first = [{"role": "system", "content": system}] if system else []
    options = {
        "steps": steps,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
    }
    known.render([*first, {"role": "user", "content": ""}])  # raises Error now for a model without a template
    talk, messages = known.context(), list(first)
    while (line := _read()) is not None:
        if line.strip() == QUIT:
            break
        if line.strip() == RESET:
            talk.reset()
            messages = list(first)
        elif line.strip():
            messages = _answer(talk, messages, line, options)


def _read() -> str | None:
    if sys.stdin.isatty():
        print(ASK, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None


def _answer(
    talk: Conversation, messages: list[dict[str, str]], line: str, options: dict[str, Any]
) -> list[dict[str, str]]:
    """Prints the answer to a message. Returns the messages with the new message and its answer, or unchanged if the
    message cannot be answered."""
    asked, said = [*messages, {"role": "user", "content": line}], ""
    try:
        answer = talk.generate(asked, **options)
    except Error as error:
        if not messages:
            raise
        print(f"error: {error}; {RESET} begins anew", file=sys.stderr)
        return messages
    try:
        for piece in answer:
            said += piece
            print(piece, end="", flush=True)
    except KeyboardInterrupt:  # the cache has the tokens printed so far
        print(" ..", end="", file=sys.stderr, flush=True)
    except NotFinite:
        talk.reset()
        raise
    print(flush=True)
    if answer.ended_by == "seq":
        print(f"the context is full; {RESET} begins anew", file=sys.stderr)
    return [*asked, {"role": "assistant", "content": said}]
