"""`hexane transcribe`: prints the text of a sound."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from hexane.cli.encoding import SpeechDtype, SpeechProducts
from hexane.cli.errors import command
from hexane.cli.options import Debug, Json
from hexane.cli.output import print_json, working
from hexane.cli.sampling import Threads
from hexane.errors import Error
from hexane.importers.speech import holds_speech
from hexane.llm import find_model
from hexane.llm.kinds import name_of_kind
from hexane.llm.speech import load_speech, read_samples
from hexane.llm.speech_features import RATE


@command
def transcribe(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A Hugging Face folder of Whisper, or a repository (org/name) in its local cache."
        ),
    ],
    sound: Annotated[Path, typer.Argument(metavar="FILE", help=f"A wav file of {RATE:,} samples a second.")],
    language: Annotated[
        str | None, typer.Option(metavar="CODE", help="As in en, de or german. [default: the folder's, else detected]")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="transcribe, or translate (into English). [default: the folder's]"),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A tokenizer.json. [default: the one in MODEL]")
    ] = None,
    dtype: SpeechProducts = SpeechDtype.FP32,
    threads: Threads = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Print the text of a sound, in windows of 30 s.

    \b
    hexane transcribe whisper-tiny tide.wav
    hexane transcribe openai/whisper-small meer.wav --language de --task translate
    ffmpeg -i tide.mp3 -ar 16000 tide.wav

    The time is printed on stderr.
    """
    path = find_model(model, "a Hugging Face folder of Whisper")
    if not holds_speech(path):
        raise Error(f"[transcribe] {path}: got {name_of_kind(path)}, need a Hugging Face folder of Whisper")
    with working(f"reading {path.name}"):
        loaded = load_speech(path, dtype=dtype.value, threads=threads, tokenizer=tokenizer)
    begin = time.perf_counter()
    samples = read_samples(sound, "[transcribe]")
    texts: list[str] = []
    for piece in loaded.pieces(samples, language, task):
        texts.append(piece if any(texts) else piece.lstrip())
        if not json:
            print(texts[-1], end="", flush=True)
    seconds, heard = time.perf_counter() - begin, len(samples) / RATE
    if json:
        text = "".join(texts).strip()
        print_json({"file": str(sound), "text": text, "seconds_of_sound": heard, "seconds": seconds})
        return
    print(flush=True)
    print(f"{heard:.1f} s of sound in {seconds:.1f} s", file=sys.stderr)
