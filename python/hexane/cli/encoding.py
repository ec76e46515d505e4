"""Options of commands that run a language model or an encoder with encoded weights."""

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from hexane.compression.weights import LEAST_NUMBERS
from hexane.llm import LanguageModel, TextEncoder
from hexane.llm.encoder import AUTO_COSINE, LEAST_COSINE


class SpeechDtype(str, Enum):
    """--dtype of speech models, whose weights are not encoded."""

    FP32 = "fp32"
    BF16 = "bf16"


class ProductDtype(str, Enum):
    """--dtype: of the operands of matrix products and convolutions. Sums are in fp32."""

    FP32 = "fp32"
    BF16 = "bf16"
    INT8 = "int8"


FASTER = (
    "The dtype in which products multiply. bf16 is faster on CPUs with AMX, and on AMD's with AVX-512-BF16; it is less"
    " precise."
)
SpeechProducts = Annotated[SpeechDtype, typer.Option("--dtype", help=FASTER)]
Products = Annotated[
    ProductDtype,
    typer.Option(
        "--dtype",
        help=f"{FASTER} int8, with --compress int8, is the fastest for prompts and the least precise.",
    ),
]
Encoding = Annotated[
    str | None,
    typer.Option(
        metavar="ENCODING",
        help="Store weights in fewer bits: int8, blockwise4:b32, or auto: the fewest bits that keep the perplexity.",
    ),
]
Calibration = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A text to measure the perplexity on, with --compress. [default: a text that comes with Hexane]",
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force", help="Accept --compress even if the perplexity is more than 1.1 times that of the original."
    ),
]
EncoderEncoding = Annotated[
    str | None,
    typer.Option(
        metavar="ENCODING",
        help=f"Store weights in fewer bits: int8, blockwise4:b32, or auto: the fewest bits with a cosine of at least"
        f" {AUTO_COSINE} between new and old embeddings.",
    ),
]
EncoderForce = Annotated[
    bool,
    typer.Option(
        "--force",
        help=f"Accept --compress even if the cosine between new and old embeddings falls below {LEAST_COSINE}.",
    ),
]


def say_quality(model: LanguageModel, command: str, given: str | None = None) -> None:
    """Prints on stderr which encoding "auto" chose, and its perplexity. given: an encoding whose perplexity is printed
    too."""
    quality = model.quality
    if quality is not None and (given or quality.encoding.startswith("auto")):
        text = (
            f"{quality.encoding}; perplexity {quality.perplexity:.4g}, {quality.plain:.4g} of the weights as they are"
        )
        print(f"[{command}] {text}", file=sys.stderr)
    elif given not in (None, "none"):
        print(f"[{command}] {given}; its perplexity was not measured (--force)", file=sys.stderr)


def say_cosine(encoder: TextEncoder, command: str) -> None:
    """Prints on stderr which encoding "auto" chose, and the least cosine between its embeddings and those of the
    original weights."""
    print(f"[{command}] auto: {encoder.encoding}; least cosine {encoder.quality:.4f}", file=sys.stderr)


def say_encoded(count: int, encoding: str | None, command: str) -> None:
    """Prints on stderr how many weights are stored in this encoding; nothing for "none" or no encoding."""
    if encoding in (None, "none", "auto: none"):
        return
    least = f"none has the {LEAST_NUMBERS} numbers that an encoding takes"
    stored = "weight matrix is" if count == 1 else "weight matrices are"
    text = f"{count} {stored} stored in this encoding" if count else f"no weight is encoded: {least}"
    print(f"[{command}] {encoding}: {text}", file=sys.stderr)
