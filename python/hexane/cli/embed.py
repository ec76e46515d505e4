"""`hexane embed`: texts as vectors of a text encoder."""

import io
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from hexane import _core
from hexane.cli.encoding import EncoderForce, Encoding
from hexane.cli.errors import command
from hexane.cli.options import Debug, Json
from hexane.cli.output import print_json, print_table, working
from hexane.cli.sampling import Threads
from hexane.errors import Error
from hexane.importers.encoders import holds_encoder
from hexane.llm import find_model
from hexane.llm.encoder import load_encoder

SHOWN = 60  # characters of a text


@command
def embed(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A Hugging Face folder of a text encoder, or a repository (org/name) in its local cache.",
        ),
    ],
    text: Annotated[list[str] | None, typer.Option("--text", metavar="TEXT", help="Again for further texts.")] = None,
    lines: Annotated[
        Path | None, typer.Option("--lines", metavar="FILE", help="A file with a text in each line.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Put before each text. [default: the folder's own]")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="F.npy", help="Write the vectors, an array of fp32.")
    ] = None,
    compress: Encoding = None,
    force: EncoderForce = False,
    threads: Threads = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Compute sentence embeddings: a vector of each text, and its cosine with that of the first text.

    \b
    hexane embed all-MiniLM-L6-v2 --text "A tide." --text "The sea rises."
    hexane embed all-MiniLM-L6-v2 --lines texts.txt -o vectors.npy
    hexane embed e5-small-v2 --prompt "query: " --text "What is a tide?"

    Tokens are pooled as the folder's modules.json says: their mean, the first token, with or without the length 1;
    without that file their mean.
    """
    texts = [*(text or []), *(_lines(lines) if lines else [])]
    if not texts:
        raise typer.BadParameter("--text: got no text, need one, or --lines")
    path = find_model(model)
    if not holds_encoder(path):
        raise Error(f"[embed] {path}: got no text encoder, need a Hugging Face folder of one, of BERT's kind")
    with working(f"reading {path.name}"):
        made = load_encoder(path, compress=compress, threads=threads, force=force)
    with working("computing"):
        vectors = made.embed(texts, prompt=prompt)
    if output is not None:
        data = io.BytesIO()
        np.save(data, vectors)
        _core.save_file(str(output), data.getvalue())
    lengths = np.maximum(np.linalg.norm(vectors, axis=1), 1e-30)
    cosines = (vectors @ vectors[0]) / (lengths * lengths[0])
    if json:
        rows = [{"text": one, "cosine": float(cosine)} for one, cosine in zip(texts, cosines, strict=True)]
        record = {"count": len(texts), "dim": vectors.shape[1], "texts": rows, "output": output and str(output)}
        print_json(record if output else {**record, "vectors": vectors.tolist()})
        return
    print(f"{len(texts)} x {vectors.shape[1]}{f', in {output}' if output else ''}")
    print_table(
        ("cosine", "text"),
        [(f"{cosine:.4f}", _short(one)) for one, cosine in zip(texts, cosines, strict=True)],
        right=("cosine",),
    )


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise Error(f"[embed] --lines {path}: {error}, need a file of text") from None


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
