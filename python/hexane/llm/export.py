"""A language model as a Core ML package of two functions, with the other files of an app."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import Array, Graph
from hexane.llm.model import LanguageModel, folder_of
from hexane.report.preflight import preflight
from hexane.runtime.coreml import save_coreml
from hexane.runtime.functions import Functions, compile_functions
from hexane.targets.query import load_chip
from hexane.train.decoder.formats import holds_gguf
from hexane.train.decoder.one_token import block, one_token

PACKAGE, MANIFEST, SCRIPT = "model.mlpackage", "manifest.json", "run.py"
TOKENIZER = "tokenizer.json"
NEXT_TO = (
    "config.json", "generation_config.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja",
)  # fmt: skip
CHECKED = 8  # tokens that are decoded one by one after the prompt
MOST_DISTANCE = 0.05  # relative, of logits in fp16 from those of the model in memory
PREFILL = 64


@dataclass(frozen=True, slots=True)
class Exported:
    """The folder of a language model for a chip. parts: programs of the engine and of the CPU in each function, counted
    like `hexane check`. distance: of the package's logits from the model's, relative L2, in the package's arithmetic on
    this CPU. agrees: the share of checked positions with the same likeliest token."""

    folder: Path
    bytes: int
    target: str
    context: int
    prefill: int
    parts: dict[str, str]
    distance: float
    agrees: float


def export(
    model: LanguageModel, folder: str | os.PathLike[str], *, target: str | None = None, prefill: int = PREFILL
) -> Exported:
    """Writes a folder with `model.mlpackage`, `manifest.json`, `run.py` and the tokenizer.

    The package has two functions over one cache, whose keys and values are states: "prefill" takes `prefill` tokens at
    a time, "decode" one. They share their weights, which are encoded as the model in memory has them. target: the chip
    whose ops are chosen. Before the folder appears, Hexane reads the package and compares its logits with the model's.

    Raises Error for a folder that has files, for a prefill larger than the context, for a model that Core ML has no ops
    for, and for logits that are too far off.
    """
    folder, config = Path(folder), model.config
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Error(f"[llm] {folder}: got a folder that is not empty, need a new one")
    if not 1 < prefill <= config.seq:
        raise Error(f"[llm] prefill: got {prefill}, need 2 to the {config.seq} tokens of the context")
    chip = None if target is None else load_chip(target)
    weights = model.weights
    graphs = {
        "prefill": block(config, weights, prefill, config.seq),
        "decode": one_token(config, weights),
    }
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        saved = save_coreml(graphs, part / PACKAGE, target=chip)
        distance, agrees = _checked(model, part / PACKAGE, prefill)
        if not distance <= MOST_DISTANCE:
            raise Error(
                f"[llm] {folder}: got logits {distance:.2g} from the model's, need at most {MOST_DISTANCE:g}: nothing"
                " was written. fp16 does not hold this model's numbers; hexane check names the ops"
            )
        parts = {} if chip is None else {name: _parts(graph, chip.name) for name, graph in graphs.items()}
        made = Exported(folder, saved.bytes, chip.label if chip else "", config.seq, prefill, parts, distance, agrees)
        _write(model, made, dict(saved.renamed), part)
        if folder.exists():
            folder.rmdir()
        part.replace(folder)
    except BaseException as error:
        shutil.rmtree(part, ignore_errors=True)
        if isinstance(error, OSError):
            raise Error(f"[llm] {folder}: {error.strerror or error}, need a place that can be written to") from None
        raise
    return made


def _parts(graph: Graph, chip: str) -> str:
    """How many parts a function has, in the words of `hexane check`."""
    return str(preflight(graph, chip).outcome)


def _checked(model: LanguageModel, package: Path, prefill: int) -> tuple[float, float]:
    """The distance of the package's logits from the model's, and the share of equal choices."""
    rng = np.random.default_rng(0)
    room = min(model.config.seq - prefill, CHECKED)
    ids = [int(i) for i in rng.integers(0, model.config.vocab, prefill + max(room, 0))]
    got = _logits(compile_functions(package), ids, prefill)
    want = model.logits(ids)[prefill - 1 :].astype(np.float64)
    distance = float(np.linalg.norm(got - want) / max(float(np.linalg.norm(want)), 1e-30))
    return distance, float((got.argmax(1) == want.argmax(1)).mean())


def _logits(functions: Functions, ids: Sequence[int], prefill: int) -> Array:
    def row(made: Any) -> Array:
        return np.asarray(made, np.float64).reshape(-1)

    place = np.array([0], np.int32)
    tokens, last = np.array(ids[:prefill], np.int32), np.array([prefill - 1], np.int32)
    rows = [row(functions["prefill"](tokens=tokens, position=place, last=last))]
    for at in range(prefill, len(ids)):
        token, place = np.array([ids[at]], np.int32), np.array([at], np.int32)
        rows.append(row(functions["decode"](token=token, position=place)))
    return np.stack(rows)


def _write(model: LanguageModel, made: Exported, renamed: dict[str, str], folder: Path) -> None:
    if not holds_gguf(model.path):  # files next to one need not be its own
        for name in NEXT_TO:
            if (source := folder_of(model.path) / name).is_file():
                shutil.copyfile(source, folder / name)
    if model.tokenizer_file is not None and model.tokenizer_file.suffix.lower() == ".json":
        shutil.copyfile(model.tokenizer_file, folder / TOKENIZER)
    else:
        model.tokenizer.save(folder / TOKENIZER)
    record = {
        "format": "coreml",
        "model": PACKAGE,
        "functions": {"prefill": made.prefill, "decode": 1},
        "context": made.context,
        "vocabulary": model.config.vocab,
        "tokens": min(model.config.vocab, model.tokenizer.vocab),
        "begins": model.begins,
        "ends": sorted(model.stops),
        "states": [renamed.get(name, name) for name in model.state_names],
        "target": made.target,
        "parts": made.parts,
        "checked": {"distance": made.distance, "same_choice": made.agrees},
    }
    (folder / MANIFEST).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    (folder / SCRIPT).write_text(_SCRIPT, encoding="utf-8")


_SCRIPT = '''"""Makes text with model.mlpackage on a Mac: python run.py "Once upon a time".

Needs coremltools and tokenizers.
"""

import json
import sys
from pathlib import Path

import coremltools as ct
import numpy as np
from tokenizers import Tokenizer

HERE = Path(__file__).parent
about = json.loads((HERE / "manifest.json").read_text(encoding="utf-8"))
tokenizer = Tokenizer.from_file(str(HERE / "tokenizer.json"))


def function(name):
    units = ct.ComputeUnit.CPU_AND_NE
    return ct.models.MLModel(str(HERE / about["model"]), function_name=name, compute_units=units)


prefill, decode = function("prefill"), function("decode")
state = prefill.make_state()  # keys and values, which both functions read and write
prompt = sys.argv[1] if len(sys.argv) > 1 else "Once upon a time"
ids = about["begins"] + tokenizer.encode(prompt, add_special_tokens=False).ids
if not 0 < len(ids) <= about["context"]:
    sys.exit(f"the prompt has {len(ids)} tokens; this package takes 1 to {about['context']}")
count, place, logits = about["functions"]["prefill"], 0, None
shown = tokenizer.decode(ids)

while place < len(ids):
    part = ids[place : place + count]
    if place + count <= about["context"]:  # rows behind the last token are written again later
        tokens = np.array(part + [0] * (count - len(part)), np.int32)
        given = {"tokens": tokens, "position": np.array([place], np.int32), "last": np.array([len(part) - 1], np.int32)}
        logits = prefill.predict(given, state)["logits"]
        place += len(part)
    else:
        given = {"token": np.array(ids[place : place + 1], np.int32), "position": np.array([place], np.int32)}
        logits = decode.predict(given, state)["logits"]
        place += 1

while place < about["context"]:
    token = int(np.argmax(np.reshape(logits, -1)[: about["tokens"]]))  # rows beyond the tokenizer are padding
    if token in about["ends"]:
        break
    ids.append(token)
    text = tokenizer.decode(ids)  # of all tokens, as spaces and characters may depend on the token before
    if not text.endswith("\\N{REPLACEMENT CHARACTER}"):  # a part of a character
        print(text[len(shown) :], end="", flush=True)
        shown = text
    given = {"token": np.array([token], np.int32), "position": np.array([place], np.int32)}
    logits = decode.predict(given, state)["logits"]
    place += 1
print(tokenizer.decode(ids)[len(shown) :])
'''
