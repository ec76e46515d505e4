"""Options of commands that generate text: how tokens are sampled, and the size of the context."""

from typing import Annotated

import typer

ROOM = 4096  # tokens of a context by default: memory for the whole cache is allocated

MODELS = "[default: what generation_config.json says, else {}]"
Temperature = Annotated[
    float | None,
    typer.Option(min=0, help=f"The randomness of the choice; 0: always the likeliest token. {MODELS.format(0.8)}"),
]
TopP = Annotated[
    float | None,
    typer.Option(help=f"Draw from the likeliest tokens with this total probability. {MODELS.format(0.9)}"),
]
TopK = Annotated[
    int | None,
    typer.Option(min=0, help=f"Draw from this many of the likeliest tokens; 0: from all. {MODELS.format(0)}"),
]
MinP = Annotated[
    float | None,
    typer.Option(min=0, max=1, help=f"Drop tokens below this fraction of the highest probability. {MODELS.format(0)}"),
]
RepetitionPenalty = Annotated[
    float | None,
    typer.Option(help=f"Above 1: tokens that are already in the text become less likely. {MODELS.format(1)}"),
]
Context = Annotated[
    int | None,
    typer.Option(
        min=1, help=f"The largest number of tokens, prompt included. [default: that of the model, at most {ROOM}]"
    ),
]
Threads = Annotated[int | None, typer.Option(min=1, max=256, help="The number of CPU cores to use. [default: all]")]
