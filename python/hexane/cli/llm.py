"""`hexane llm`: one page of facts about a language model."""

from typing import Annotated

import typer

from hexane.cli.errors import command
from hexane.cli.options import Debug, Json, names_of
from hexane.cli.output import print_json, print_table, working
from hexane.graph.decisions import counted
from hexane.graph.printer import size_text
from hexane.llm import Facts, facts, find_model, load

CONTEXT = 2048  # tokens of a cache to measure with


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
        str, typer.Option(metavar="NAMES", help="Also estimate chips, with commas between them: M1,M5 Pro.")
    ] = "",
    compress: Annotated[
        str | None, typer.Option(metavar="ENCODING", help="Measure with weights in fewer bits, such as int8.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, max=256, help="How many. [default: all cores]")] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Say what a language model is, what memory it needs with each encoding, and how fast it is here.

    \b
    hexane llm SmolLM2-135M-Instruct
    hexane llm SmolLM2-135M-Instruct --compress int8 --target M1,M5
    hexane llm HuggingFaceTB/SmolLM2-135M --json

    Tokens a second of this CPU are measured for a moment. Those of chips are estimated.
    """
    path = find_model(model)
    with working(f"reading {path.name}"):
        made = load(path, compress=compress, threads=threads, at_most=CONTEXT)
    with working("measuring"):
        found = facts(made, names_of(target), compress=compress)
    if json:
        print_json(found.record())
    else:
        _print(found)


def _print(found: Facts) -> None:
    print(f"{found.model}: {found.family}, {found.parameters:,} parameters, context of {found.context:,} tokens")
    print(found.shape)
    print(
        f"\nmeasured here ({counted(found.threads, 'thread')}, weights {found.compress}):"
        f" {found.tokens_per_second:.1f} tokens/s, {found.prompt_tokens_per_second:.0f} tokens/s of a prompt"
    )
    for one in found.chips:
        if one.tokens_per_second is None:
            print(f"{one.target}: no estimate: {one.error}")
        else:
            print(f"{one.target}: estimated {one.tokens_per_second:.1f} tokens/s ({one.low:.1f} to {one.high:.1f})")
    print()
    rows = [(name, size_text(count)) for name, count in found.weights.items()]
    print_table(("encoding", "weights"), rows, right=("weights",))
    print(f"a conversation needs {size_text(found.cache_per_1024_tokens)} more for each 1,024 tokens of its context")
    print("\nnot supported:")
    for line in found.unsupported:
        print(f"  {line}")
