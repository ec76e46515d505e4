"""`hexane serve`: serves a language model with OpenAI's API."""

import socket
from pathlib import Path
from typing import Annotated

import typer

from hexane.cli.encoding import Calibration, Encoding, Force, ProductDtype, Products, say_encoded, say_quality
from hexane.cli.errors import command
from hexane.cli.options import Debug
from hexane.cli.output import working
from hexane.cli.sampling import ROOM, Context
from hexane.errors import Error
from hexane.llm import find_model
from hexane.llm.model import load
from hexane.llm.server import NEEDED, application


@command
def serve(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A folder of Hugging Face, a repository (org/name) in its local cache, or a GGUF file.",
        ),
    ],
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0: all. There is no password.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0: any free port.")] = 8000,
    name: Annotated[
        str | None, typer.Option(help="The model's name in requests. [default: that of the folder or repository]")
    ] = None,
    context: Context = None,
    compress: Encoding = None,
    dtype: Products = ProductDtype.FP32,
    calibration: Calibration = None,
    force: Force = False,
    contexts: Annotated[
        int,
        typer.Option(min=1, max=256, help="The number of answers generated at the same time. Each has its own cache."),
    ] = 4,
    waiting: Annotated[
        int, typer.Option(min=0, help="The number of requests that may wait; further ones are refused.")
    ] = 32,
    threads: Annotated[
        int | None, typer.Option(min=1, max=256, help="The number of CPU cores for one answer. [default: all]")
    ] = None,
    debug: Debug = False,
) -> None:
    """Serve a language model with OpenAI's API: /v1/models, /v1/chat/completions and /v1/completions.

    \b
    hexane serve SmolLM2-135M-Instruct --compress int8
    hexane serve HuggingFaceTB/SmolLM2-135M-Instruct --port 9000 --contexts 8

    Answers come as a whole or as a stream. Ctrl-C ends the server.
    """
    try:
        import uvicorn
    except ImportError:
        raise Error(NEEDED.format("uvicorn")) from None
    path = find_model(model)
    with working(f"reading {path.name}"):
        loaded = load(
            path, context=context, compress=compress, dtype=dtype.value, threads=threads, calibration=calibration,
            force=force,
            at_most=ROOM,
        )  # fmt: skip
    say_quality(loaded, "serve")
    say_encoded(loaded.encoded, loaded.quality.encoding if loaded.quality else compress, "serve")
    app = application(
        loaded, name or (path.name if Path(model).exists() else model), contexts=contexts, waiting=waiting
    )
    try:
        listening = socket.create_server((host, port), backlog=512)
    except OSError as error:
        raise Error(f"[serve] {host}:{port}: {error.strerror or error}, need an address that is free") from None
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it
    print(f"http://{host}:{listening.getsockname()[1]}/v1", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
