"""`hexane embed`: texts and images as vectors of an encoder."""

import io
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from hexane import _core
from hexane.cli.encoding import FASTER, EncoderEncoding, EncoderForce, ProductDtype, say_cosine, say_encoded
from hexane.cli.errors import command
from hexane.cli.options import Debug, Json
from hexane.cli.output import print_json, print_table, working
from hexane.cli.sampling import Threads
from hexane.errors import Error
from hexane.graph import Array
from hexane.importers.encoders import holds_encoder
from hexane.importers.image_encoders import holds_image_encoder, holds_pair, holds_text_half
from hexane.importers.speech import holds_speech
from hexane.llm import find_model
from hexane.llm.encoder import TextEncoder, load_encoder
from hexane.llm.image_encoder import ImageEncoder, load_image_encoder
from hexane.llm.text_image_encoder import TextImageEncoder, load_text_image_encoder

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
    text: Annotated[
        list[str] | None, typer.Option("--text", metavar="TEXT", help="A text to embed. Repeatable.")
    ] = None,
    lines: Annotated[
        Path | None, typer.Option("--lines", metavar="FILE", help="A file with one text per line.")
    ] = None,
    image: Annotated[
        list[Path] | None, typer.Option("--image", metavar="FILE", help="A png or jpeg to embed. Repeatable.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A prefix for each text. [default: that of the folder]")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="F.npy", help="Write the vectors, an array of fp32.")
    ] = None,
    compress: EncoderEncoding = None,
    force: EncoderForce = False,
    dtype: Annotated[
        ProductDtype,
        typer.Option(
            "--dtype",
            help=f"{FASTER} int8, with --compress int8, is for texts only: the fastest and the least precise.",
        ),
    ] = ProductDtype.FP32,
    threads: Threads = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Compute embeddings: a vector per text or image, and its cosine with the first vector.

    \b
    hexane embed all-MiniLM-L6-v2 --text "A tide." --text "The sea rises."
    hexane embed all-MiniLM-L6-v2 --lines texts.txt -o vectors.npy
    hexane embed e5-small-v2 --prompt "query: " --text "What is a tide?"
    hexane embed vit-base-patch16-224 --image tide.png --image sea.jpg
    hexane embed clip-vit-base-patch32 --image tide.png --text "a tide" --text "a cat"

    A text's vector is pooled as the folder's modules.json defines: the mean of its tokens or the first token, with or
    without scaling to length 1. Without modules.json, it is the mean. Images are preprocessed as
    preprocessor_config.json defines. For texts and images with CLIP or SigLIP, prints similarities: cosines with the
    model's scale and bias.
    """
    texts, images = [*(text or []), *(_lines(lines) if lines else [])], image or []
    path = find_model(model, "a Hugging Face folder of an encoder")
    kind, names = ("image", [str(one) for one in images]) if images else ("text", texts)
    of_images, of_both, of_texts = holds_image_encoder(path), holds_pair(path), holds_encoder(path)
    if holds_speech(path):
        raise Error(
            f"[embed] {path}: got a speech model (whisper), need an encoder: `hexane transcribe` takes this folder"
        )
    if not (of_images or of_both or of_texts or holds_text_half(path)):
        raise Error(f"[embed] {path}: got no encoder, need a Hugging Face folder of one, such as BERT's or ViT's")
    for option, value in (("--prompt", prompt), ("--compress", compress)):
        if value is not None and not of_texts:
            raise typer.BadParameter(f"{option}: got it for an encoder of images or of CLIP's kind, need none")
    if images and not (of_images or of_both):
        raise typer.BadParameter("--image: got it for a text encoder, need --text")
    if texts and of_images:
        raise typer.BadParameter("--text: got it for an image encoder, need --image alone")
    if not names:
        options = "--image" if of_images else "--text, --lines or --image" if of_both else "--text or --lines"
        raise typer.BadParameter(f"{options}: got none, need one")
    if images and texts and output is not None:
        raise typer.BadParameter("-o: got it with texts and images, need one of them")
    encoder: TextEncoder | ImageEncoder | TextImageEncoder
    with working(f"reading {path.name}"):
        if of_texts:
            encoder = load_encoder(path, compress=compress, dtype=dtype.value, threads=threads, force=force)
            if compress == "auto":
                say_cosine(encoder, "embed")
            say_encoded(encoder.encoded, encoder.encoding if compress else None, "embed")
        elif of_images:
            encoder = load_image_encoder(path, dtype=dtype.value, threads=threads)
        else:
            encoder = load_text_image_encoder(path, dtype=dtype.value, threads=threads)
    with working("computing"):
        if isinstance(encoder, TextEncoder):
            vectors = encoder.embed(texts, prompt=prompt)
        elif isinstance(encoder, ImageEncoder):
            vectors = encoder.embed(images)
        elif images and texts:
            vectors = encoder.similarity(texts, images)
        else:
            vectors = encoder.embed(images=images) if images else encoder.embed(texts)
    if images and texts:
        _print_similarities(vectors, names, texts, json)
        return
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


def _print_similarities(similarities: Array, images: list[str], texts: list[str], json: bool) -> None:
    """similarities: (images, texts)."""
    if json:
        print_json({"images": images, "texts": texts, "similarities": similarities.tolist()})
        return
    rows = [
        (f"{number:.4f}", _short(image), _short(text))
        for image, of_image in zip(images, similarities, strict=True)
        for text, number in zip(texts, of_image, strict=True)
    ]
    print_table(("similarity", "image", "text"), rows, right=("similarity",))


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise Error(f"[embed] --lines {path}: {error}, need a file of text") from None


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
