"""Options of commands that generate text: how tokens are sampled, and the size of the context."""

from typing import Annotated

import typer

ROOM = 4096  # tokens of a context by default: memory for the whole cache is allocated

MODELS = "[default: what generation_config.json says, else {}]"
Temperature = Annotated[
    float | None, typer.Option(min=0, help=f"0: the likeliest token each time. {MODELS.format(0.8)}")
]
TopP = Annotated[
    float | None,
    typer.Option(help=f"The share of the likeliest tokens that one is drawn of. {MODELS.format(0.9)}"),
]
TopK = Annotated[
    int | None,
    typer.Option(min=0, help=f"How many of the likeliest tokens one is drawn of; 0: all. {MODELS.format(0)}"),
]
MinP = Annotated[
    float | None,
    typer.Option(min=0, max=1, help=f"The part of the likeliest token's share that others need. {MODELS.format(0)}"),
]
RepetitionPenalty = Annotated[
    float | None,
    typer.Option(help=f"Above 1: tokens that the text has become less likely. {MODELS.format(1)}"),
]
Context = Annotated[
    int | None,
    typer.Option(min=1, help=f"Room for so many tokens. [default: as many as the model takes, at most {ROOM}]"),
]
Threads = Annotated[int | None, typer.Option(min=1, max=256, help="How many. [default: all cores]")]
