"""The option of benchmarks for the folder of networks."""

import argparse
from pathlib import Path

MODELS = Path(__file__).parents[1] / "build" / "models"


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=doc)
    made.add_argument(
        "--networks", type=Path, default=MODELS, metavar="DIR",
        help="folder of .onnx files (default: build/models, where `make test` and `make bench` build them)",
    )  # fmt: skip
    return made
