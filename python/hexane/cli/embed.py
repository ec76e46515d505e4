"""`hexane embed`: texts and images as vectors of an encoder."""

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
from hexane.graph import Array
from hexane.importers.encoders import holds_encoder
from hexane.importers.image_encoders import holds_image_encoder
from hexane.llm import find_model
from hexane.llm.encoder import load_encoder
from hexane.llm.image_encoder import load_image_encoder

SHOWN = 60  # characters of a text


@command
def embed(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A Hugging Face folder of an encoder, or a repository (org/name) in its local cache.",
        ),
    ],
    text: Annotated[list[str] | None, typer.Option("--text", metavar="TEXT", help="Again for further texts.")] = None,
    lines: Annotated[
        Path | None, typer.Option("--lines", metavar="FILE", help="A file with a text in each line.")
    ] = None,
    image: Annotated[
        list[Path] | None, typer.Option("--image", metavar="FILE", help="A png or jpeg. Again for further images.")
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
    """Compute embeddings: a vector of each text or image, and its cosine with the first vector.

    \b
    hexane embed all-MiniLM-L6-v2 --text "A tide." --text "The sea rises."
    hexane embed all-MiniLM-L6-v2 --lines texts.txt -o vectors.npy
    hexane embed e5-small-v2 --prompt "query: " --text "What is a tide?"
    hexane embed vit-base-patch16-224 --image tide.png --image sea.jpg

    Tokens are pooled as the folder's modules.json says: their mean, the first token, with or without the length 1;
    without that file their mean. Images become the input of the network as preprocessor_config.json says.
    """
    texts, images = [*(text or []), *(_lines(lines) if lines else [])], image or []
    path = find_model(model)
    if holds_image_encoder(path):
        for option, value in (("--text", texts or None), ("--prompt", prompt), ("--compress", compress)):
            if value is not None:
                raise typer.BadParameter(f"{option}: got it for an image encoder, need --image alone")
        if not images:
            raise typer.BadParameter("--image: got no image, need one")
        vectors = _of_images(path, images, threads)
    elif holds_encoder(path):
        if images:
            raise typer.BadParameter("--image: got it for a text encoder, need --text")
        if not texts:
            raise typer.BadParameter("--text: got no text, need one, or --lines")
        with working(f"reading {path.name}"):
            made = load_encoder(path, compress=compress, threads=threads, force=force)
        with working("computing"):
            vectors = made.embed(texts, prompt=prompt)
    else:
        raise Error(f"[embed] {path}: got no encoder, need a Hugging Face folder of one, such as BERT's or ViT's")
    kind, names = ("image", [str(one) for one in images]) if images else ("text", texts)
    if output is not None:
        data = io.BytesIO()
        np.save(data, vectors)
        _core.save_file(str(output), data.getvalue())
    lengths = np.maximum(np.linalg.norm(vectors, axis=1), 1e-30)
    cosines = (vectors @ vectors[0]) / (lengths * lengths[0])
    if json:
        rows = [{kind: one, "cosine": float(cosine)} for one, cosine in zip(names, cosines, strict=True)]
        record = {"count": len(names), "dim": vectors.shape[1], f"{kind}s": rows, "output": output and str(output)}
        print_json(record if output else {**record, "vectors": vectors.tolist()})
        return
    print(f"{len(names)} x {vectors.shape[1]}{f', in {output}' if output else ''}")
    print_table(
        ("cosine", kind),
        [(f"{cosine:.4f}", _short(one)) for one, cosine in zip(names, cosines, strict=True)],
        right=("cosine",),
    )


def _of_images(path: Path, images: list[Path], threads: int | None) -> Array:
    with working(f"reading {path.name}"):
        made = load_image_encoder(path, threads=threads)
    with working("computing"):
        return made.embed(images)


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise Error(f"[embed] --lines {path}: {error}, need a file of text") from None


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
