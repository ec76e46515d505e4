"""Exports a language model as Core ML packages with two functions, and further files that an app needs."""

from __future__ import annotations

import json
import os
import shutil
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from hexane.build import Tensor
from hexane.errors import Error
from hexane.graph import Array, Graph
from hexane.llm.calibration import TEXT
from hexane.llm.layer_errors import LayerError, layer_errors, write_table
from hexane.llm.model import LanguageModel, folder_of
from hexane.ops.encodings import encoding_of
from hexane.report.preflight import preflight
from hexane.runtime.coreml import save_coreml
from hexane.runtime.functions import Functions, compile_functions
from hexane.targets.placement import placement
from hexane.targets.query import load_chip
from hexane.train.decoder import LlamaConfig
from hexane.train.decoder.config import EMBEDDING, HEAD, POSITIONS
from hexane.train.decoder.formats import holds_gguf
from hexane.train.decoder.one_token import HIDDEN, block, one_token

PACKAGE, MANIFEST, SCRIPT, LAYERS = "model.mlpackage", "manifest.json", "run.py", "layers.csv"
TOKENIZER = "tokenizer.json"
NEXT_TO = (
    "config.json", "generation_config.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja",
)  # fmt: skip
CHECKED = 8  # tokens decoded after the prompt to check a package
COMPARED = 64  # tokens on which layers are compared
MOST_DISTANCE = 0.05  # largest relative distance of a package's logits in fp16 from the loaded model's
PREFILL = 64


@dataclass(frozen=True, slots=True)
class Exported:
    """The exported folder of a language model.

    packages: their names, in the order of the layers. bytes: of all packages. prefill: tokens in a call of each
    prefill function, ascending. parts: for each function, where its ops run, in the words of `hexane check`; empty
    without a target. distance: of the packages' logits from the model's, relative L2, in the packages' arithmetic on
    this CPU. agrees: the share of checked positions with the same likeliest token. layers: the error of each layer in
    the chip's arithmetic; empty without a target."""

    folder: Path
    packages: tuple[str, ...]
    bytes: int
    target: str
    context: int
    prefill: tuple[int, ...]
    parts: dict[str, str]
    distance: float
    agrees: float
    layers: tuple[LayerError, ...] = ()


def export(
    model: LanguageModel,
    folder: str | os.PathLike[str],
    *,
    target: str | None = None,
    prefill: int | Sequence[int] = PREFILL,
    most_bytes: int | None = None,
) -> Exported:
    """Writes a folder with `model.mlpackage`, `manifest.json`, `run.py`, the tokenizer and, with a target,
    `layers.csv`.

    The package has functions that share a cache, whose keys and values are states: "prefill" runs `prefill` tokens in
    one call, "decode" one token. With several lengths, such as prefill=(16, 256), the functions are "prefill_16" and
    "prefill_256". All functions share weights, in the encoding of the loaded model. target: the chip for which ops are
    chosen. Before the folder gets its final name, Hexane reads the package back and compares its logits with the
    model's. With a target, each layer in the chip's arithmetic is compared with fp32. most_bytes: of the weights in a
    package; None: the largest program that macOS places on the engine. A larger model becomes several packages,
    `model-1.mlpackage` and so on, each with some of the layers.

    Raises Error for a model of dtype="int8", for a folder that is not empty, for a prefill out of range, for ops that
    Core ML does not have, for a layer larger than a package, and for logits that differ too much.
    """
    if model.dtype == "int8":
        raise Error(
            "[llm] dtype: got a model that multiplies in int8, need one without dtype: packages multiply in fp16"
        )
    folder, config = Path(folder), model.config
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Error(f"[llm] {folder}: got a folder that is not empty, need a new one")
    lengths = tuple(sorted({prefill} if isinstance(prefill, int) else set(prefill)))
    if not lengths or not 1 < lengths[0] <= lengths[-1] <= config.seq:
        raise Error(f"[llm] prefill: got {prefill}, need 2 to the {config.seq} tokens of the context")
    functions = dict(zip(_names(lengths), lengths, strict=True))
    chip = None if target is None else load_chip(target)
    most = placement().most_program_bytes if most_bytes is None else most_bytes
    runs = _runs(config, model.weights, most)
    packages = [PACKAGE] if len(runs) == 1 else [f"model-{i}.mlpackage" for i in range(1, len(runs) + 1)]
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        parts, states, size = dict[str, str](), list[list[str]](), 0
        for run, package in zip(runs, packages, strict=True):
            graphs = {
                name: block(config, model.weights, count, config.seq, layers=run) for name, count in functions.items()
            }
            graphs["decode"] = one_token(config, model.weights, layers=run)
            saved = save_coreml(graphs, part / package, target=chip)
            size += saved.bytes
            own = [n for n in model.state_names if int(n.split(".")[1]) in run]
            states.append([saved.renamed.get(name, name) for name in own])
            if chip is not None:
                where = "" if len(runs) == 1 else f" of layers {run.start + 1} to {run.stop}"
                parts |= {f"{name}{where}": _parts(graph, chip.name) for name, graph in graphs.items()}
        distance, agrees = _checked(model, [part / package for package in packages], functions)
        layers = () if chip is None else tuple(layer_errors(config, model.weights, _text(model), chip, model.threads))
        if not distance <= MOST_DISTANCE:
            raise Error(
                f"[llm] {folder}: got logits that differ from the model's by {distance:.2g} (relative L2), need at most"
                f" {MOST_DISTANCE:g}: nothing was written. fp16 does not hold this model's numbers{_worst(layers)};"
                " hexane check names the ops"
            )
        if layers:
            write_table(layers, part / LAYERS)
        label = chip.label if chip else ""
        exported = Exported(folder, tuple(packages), size, label, config.seq, lengths, parts, distance, agrees, layers)
        _write(model, exported, states, part)
        if folder.exists():
            folder.rmdir()
        part.replace(folder)
    except BaseException as error:
        shutil.rmtree(part, ignore_errors=True)
        if isinstance(error, OSError):
            raise Error(f"[llm] {folder}: {error.strerror or error}, need a place that can be written to") from None
        raise
    return exported


def _runs(config: LlamaConfig, weights: Mapping[str, Array | Tensor], most: int) -> list[range]:
    """Returns the layers of each package: the fewest packages of at most `most` bytes of weights, with the largest as
    small as possible. Raises Error for a layer that is too large alone."""
    of_layer = [sum(_bytes(weights[name]) for name, _ in config.of_layer(i)) for i in range(config.layers)]
    of_layer[0] += sum(_bytes(weights[name]) for name in (EMBEDDING, POSITIONS) if name in weights)
    if config.layers > 1 or not config.tied:
        of_layer[-1] += _bytes(weights[EMBEDDING if config.tied else HEAD])
    for i, size in enumerate(of_layer, 1):
        if size > most:
            raise Error(
                f"[llm] layer {i}, with the embedding or the head: got {size} bytes of weights, need at most {most} in"
                " a package: store weights in fewer bits (--compress), or allow larger packages"
            )
    return packed(of_layer, most)


def packed(sizes: Sequence[int], most: int) -> list[range]:
    """Splits a sequence into the fewest ranges with sums of at most `most`, and the largest sum as small as
    possible."""

    def filled(most: int) -> list[range]:
        ends = [0]
        for i in range(1, len(sizes)):
            if sum(sizes[ends[-1] : i + 1]) > most:
                ends.append(i)
        return [range(*pair) for pair in pairwise([*ends, len(sizes)])]

    fewest = len(filled(most))
    return filled(bisect_left(range(most), True, lo=max(sizes), key=lambda size: len(filled(size)) <= fewest))


def _bytes(weight: Array | Tensor) -> int:
    """Returns the bytes of a weight in a package: floats are stored in fp16."""
    return 2 * weight.size if isinstance(weight, np.ndarray) else encoding_of(weight.value).bytes


def _parts(graph: Graph, chip: str) -> str:
    return str(preflight(graph, chip).outcome)


def _text(model: LanguageModel) -> list[int]:
    ids = [i for i in model.encode(TEXT) if i < model.config.vocab]
    return ids[: min(COMPARED, model.config.seq)] or [0]


def _worst(layers: Sequence[LayerError]) -> str:
    """Names the layer with the largest error of its own, if that error is too large."""
    worst = max(layers, key=lambda one: one.own_error, default=None)
    if worst is None or worst.own_error <= MOST_DISTANCE:
        return ""
    return f": layer {worst.layer} alone is {worst.own_error:.2g} off"


def _names(lengths: Sequence[int]) -> list[str]:
    return ["prefill"] if len(lengths) == 1 else [f"prefill_{count}" for count in lengths]


def _checked(model: LanguageModel, packages: Sequence[Path], prefill: Mapping[str, int]) -> tuple[float, float]:
    """Returns the distance of the packages' logits from the model's, and the share of equal likeliest tokens. prefill:
    the tokens of each function, ascending."""
    rng = np.random.default_rng(0)
    longest = max(prefill.values())
    room = min(model.config.seq - longest, CHECKED)
    ids = [int(i) for i in rng.integers(0, model.config.vocab, longest + max(room, 0))]
    got = _logits([compile_functions(package) for package in packages], ids, prefill)
    last = [count - 1 for count in prefill.values()] + list(range(longest, len(ids)))
    want = model.logits(ids)[last].astype(np.float64)
    distance = float(np.linalg.norm(got - want) / max(float(np.linalg.norm(want)), 1e-30))
    return distance, float((got.argmax(1) == want.argmax(1)).mean())


def _logits(packages: Sequence[Functions], ids: Sequence[int], prefill: Mapping[str, int]) -> Array:
    """Returns the logits after a prompt for each prefill function, then after each token that follows the longest."""

    def run(name: str, tokens: Sequence[int], at: int, **given: Array) -> Array:
        given |= {"position": np.array([at], np.int32)}
        first, hidden = {"token" if name == "decode" else "tokens": np.array(tokens, np.int32)}, None
        for functions in packages:
            known = first | given | ({} if hidden is None else {HIDDEN: hidden})
            net = functions[name]
            hidden = np.asarray(net(**{port.name: known[port.name] for port in net.inputs}))
        assert hidden is not None
        return hidden.astype(np.float64).reshape(-1)

    rows = [run(name, ids[:count], 0, last=np.array([count - 1], np.int32)) for name, count in prefill.items()]
    rows += [run("decode", ids[at : at + 1], at) for at in range(max(prefill.values()), len(ids))]
    return np.stack(rows)


def _write(model: LanguageModel, exported: Exported, states: Sequence[Sequence[str]], folder: Path) -> None:
    if not holds_gguf(model.path):  # files next to a GGUF file may belong to another model
        for name in NEXT_TO:
            if (source := folder_of(model.path) / name).is_file():
                shutil.copyfile(source, folder / name)
    if model.tokenizer_file is not None and model.tokenizer_file.suffix.lower() == ".json":
        shutil.copyfile(model.tokenizer_file, folder / TOKENIZER)
    else:
        model.tokenizer.save(folder / TOKENIZER)
    record = {
        "format": "coreml",
        "models": list(exported.packages),
        "functions": {**dict(zip(_names(exported.prefill), exported.prefill, strict=True)), "decode": 1},
        "context": exported.context,
        "vocabulary": model.config.vocab,
        "tokens": min(model.config.vocab, model.tokenizer.vocab),
        "begins": model.begins,
        "ends": sorted(model.stops),
        "states": [list(names) for names in states],
        "target": exported.target,
        "parts": exported.parts,
        "checked": {"distance": exported.distance, "same_choice": exported.agrees},
    }
    (folder / MANIFEST).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    (folder / SCRIPT).write_text(_SCRIPT, encoding="utf-8")


_SCRIPT = '''"""Makes text with the packages of this folder on a Mac: python run.py "Once upon a time".

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


def functions(name):
    units = ct.ComputeUnit.CPU_AND_NE
    return [ct.models.MLModel(str(HERE / file), function_name=name, compute_units=units) for file in about["models"]]


def run(models, tokens, position, **last):
    """Returns the logits. Each package runs some of the layers, and passes its result to the next package."""
    given = {"tokens" if last else "token": np.array(tokens, np.int32)}
    place = {"position": np.array([position], np.int32)}
    for i, (model, state) in enumerate(zip(models, states)):
        ends = last if i + 1 == len(models) else {}
        made = model.predict({**given, **place, **ends}, state)
        given = {"hidden": made.get("hidden_after")}
    return made["logits"]


decode = functions("decode")
prefill = {count: functions(name) for name, count in about["functions"].items() if count > 1}
states = [model.make_state() for model in decode]  # keys and values, which all functions read and write
prompt = sys.argv[1] if len(sys.argv) > 1 else "Once upon a time"
ids = about["begins"] + tokenizer.encode(prompt, add_special_tokens=False).ids
if not 0 < len(ids) <= about["context"]:
    sys.exit(f"the prompt has {len(ids)} tokens; this package takes 1 to {about['context']}")
place, logits = 0, None
shown = tokenizer.decode(ids)

while place < len(ids):
    fits = [count for count in prefill if place + count <= about["context"]]
    if fits:  # the shortest call for all tokens, or the longest; later tokens overwrite the rows after the last token
        count = min((one for one in fits if one >= len(ids) - place), default=max(fits))
        part = ids[place : place + count]
        tokens = part + [0] * (count - len(part))
        logits = run(prefill[count], tokens, place, last=np.array([len(part) - 1], np.int32))
        place += len(part)
    else:
        logits = run(decode, ids[place : place + 1], place)
        place += 1

while place < about["context"]:
    token = int(np.argmax(np.reshape(logits, -1)[: about["tokens"]]))  # rows beyond the tokenizer are padding
    if token in about["ends"]:
        break
    ids.append(token)
    text = tokenizer.decode(ids)  # of all tokens, as spaces and characters may depend on the token before
    if not text.endswith("\\N{REPLACEMENT CHARACTER}"):  # the last character is complete
        print(text[len(shown) :], end="", flush=True)
        shown = text
    logits = run(decode, [token], place)
    place += 1
print(tokenizer.decode(ids)[len(shown) :])
'''
