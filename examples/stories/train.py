"""Trains a small decoder on the documentation of installed packages, in minutes on one core, without a network.

    python examples/stories/train.py -o stories

makes stories/train.txt and held_out.txt, and then calls `hexane tokenize`, `hexane train` and `hexane generate`; every
command is printed before it runs. An interrupted training goes on when the script is called again.
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from corpus import documents

END = "<|endoftext|>"
VOCAB = 512
HELD_OUT = 10  # one document in 10
MODEL = {"dim": 128, "hidden": 384, "layers": 4, "heads": 4, "seq": 128, "vocab": VOCAB}
TRAINING = {"batch": 8, "accumulate": 1, "lr": 3e-3}


def make_texts(folder: Path, size: int) -> None:
    """train.txt and held_out.txt of `size` characters together."""
    found = documents(size)
    held = found[HELD_OUT // 2 :: HELD_OUT]
    kept = [text for i, text in enumerate(found) if i % HELD_OUT != HELD_OUT // 2]
    for name, texts in (("train.txt", kept), ("held_out.txt", held)):
        (folder / name).write_text(END.join(texts), "utf-8")


def hexane(*arguments: object) -> None:
    words = [str(one) for one in arguments]
    print("$ hexane", shlex.join(words), flush=True)
    code = subprocess.call([sys.executable, "-m", "hexane", *words])
    if code:
        sys.exit(code)


def options_of(named: dict[str, object]) -> list[object]:
    """Returns the options as words of a command: --name value for each."""
    return [word for name, value in named.items() for word in (f"--{name}", value)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("stories"), metavar="DIR", help="default: stories")
    parser.add_argument("--characters", type=int, default=1_000_000, help="of text; default: 1000000")
    parser.add_argument("--steps", type=int, default=1000, help="default: 1000")
    parser.add_argument("--threads", type=int, help="default: all cores")
    asked = parser.parse_args()
    folder, threads = asked.output, ["--threads", asked.threads] if asked.threads else []
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.exists():
        folder.mkdir(parents=True, exist_ok=True)
        make_texts(folder, asked.characters)
    for name in ("train", "held_out"):
        learn = [] if tokenizer.exists() else ["--learn", VOCAB]
        hexane(
            "tokenize", folder / f"{name}.txt", *learn, "--tokenizer", tokenizer, "--separator", END,
            "-o", folder / f"{name}.bin",
        )  # fmt: skip
    hexane(
        "train", "--data", folder / "train.bin", *options_of({**MODEL, **TRAINING}), "--steps", asked.steps,
        "--eval-data", folder / "held_out.bin", "--tokenizer", tokenizer, "--sample-every", max(1, asked.steps // 10),
        "--prompt", "Return", *threads, "--resume", "-o", folder / "run",
    )  # fmt: skip
    hexane("generate", folder / "run" / "checkpoint.hxc", "--prompt", "Return", "--steps", 100, *threads)


if __name__ == "__main__":
    main()
