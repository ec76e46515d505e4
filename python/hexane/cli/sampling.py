"""The options of commands that make text: how tokens are drawn, and the room of a context."""

from typing import Annotated

import typer

ROOM = 4096  # tokens of a context by default: each token attends to the whole room, and the cache has its memory

Temperature = Annotated[float, typer.Option(min=0, help="0: the likeliest token each time.")]
TopP = Annotated[float, typer.Option(help="The share of the likeliest tokens that one is drawn of.")]
TopK = Annotated[int, typer.Option(min=0, help="How many of the likeliest tokens one is drawn of; 0: all.")]
MinP = Annotated[float, typer.Option(min=0, max=1, help="The part of the likeliest token's share that others need.")]
RepetitionPenalty = Annotated[float, typer.Option(help="Above 1: tokens that the text has become less likely.")]
Context = Annotated[
    int | None,
    typer.Option(min=1, help=f"Room for so many tokens. [default: as many as the model takes, at most {ROOM}]"),
]
Threads = Annotated[int | None, typer.Option(min=1, max=256, help="How many. [default: all cores]")]
