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
from hexane.llm.run_script import script
from hexane.ops.encodings import encoding_of
from hexane.report.preflight import preflight
from hexane.runtime.coreml import save_coreml
from hexane.runtime.functions import Functions, compile_functions
from hexane.runtime.model import Model
from hexane.targets.placement import placement
from hexane.targets.query import load_chip
from hexane.train.decoder import LlamaConfig
from hexane.train.decoder.config import EMBEDDING, HEAD, POSITIONS
from hexane.train.decoder.formats import holds_gguf
from hexane.train.decoder.one_token import HIDDEN, NEW, block, block_with_ports, cache_ports, one_token

MODEL, MANIFEST, SCRIPT, LAYERS = "model", "manifest.json", "run.py", "layers.csv"
TOKENIZER = "tokenizer.json"
NEXT_TO = (
    "config.json", "generation_config.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja",
)  # fmt: skip
CHECKED = 8  # tokens decoded after the prompt to check a package
COMPARED = 64  # tokens on which layers are compared
MOST_DISTANCE = 0.05  # largest relative distance of a package's logits in fp16 from the loaded model's
PREFILL = 64
DECODE = "decode"
STATES = "iOS18"  # the first opset with states and functions


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
    opset: str | None = None,
) -> Exported:
    """Writes a folder with `model.mlpackage`, `manifest.json`, `run.py`, the tokenizer and, with a target,
    `layers.csv`.

    The package has functions that share a cache, whose keys and values are states: "prefill" runs `prefill` tokens in
    one call, "decode" one token. With several lengths, such as prefill=(16, 256), the functions are "prefill_16" and
    "prefill_256". All functions share weights, in the encoding of the loaded model. target: the chip for which ops are
    chosen. Before the folder gets its final name, Hexane reads the package back and compares its logits with the
    model's. With a target, each layer in the chip's arithmetic is compared with fp32. most_bytes: the limit for the
    weights of a package; None: the size of the largest program that macOS places on the engine. A larger model becomes
    several packages, `model-1.mlpackage` and so on, each with some of the layers.

    opset: iOS16 to iOS18. Before iOS18, Core ML has neither states nor functions: each function is a package of its own
    (`prefill.mlpackage`, `decode.mlpackage`) with its own copy of the weights. The cache is an input, and its new rows
    are outputs, which the caller writes to the cache.

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
    if opset is not None and opset not in ("iOS16", "iOS17", STATES):
        raise Error(f"[llm] opset: got {opset!r}, need iOS16, iOS17 or {STATES}")
    if not lengths or not 1 < lengths[0] <= lengths[-1] <= config.seq:
        raise Error(f"[llm] prefill: got {prefill}, need 2 to the {config.seq} tokens of the context")
    functions = dict(zip(_names(lengths), lengths, strict=True))
    has_states = opset is None or opset == STATES
    chip = None if target is None else load_chip(target)
    most = placement().most_program_bytes if most_bytes is None else most_bytes
    runs = _runs(config, model.weights, most)
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        parts, states, size = dict[str, str](), list[list[str]](), 0
        packages = dict[str, list[str]]()  # by function
        for number, run in enumerate(runs, 1):
            graphs = _graphs(model, functions, run, has_states)
            suffix = "" if len(runs) == 1 else f"-{number}"
            for names in [list(graphs)] if has_states else [[name] for name in graphs]:
                package = f"{MODEL if has_states else names[0]}{suffix}.mlpackage"
                wanted = {name: graphs[name] for name in names}
                saved = save_coreml(
                    wanted if has_states else wanted[names[0]], part / package, target=chip, opset=opset
                )
                size += saved.bytes
                for name in names:
                    packages.setdefault(name, []).append(package)
            own = [n for n in model.state_names if int(n.split(".")[1]) in run]
            states.append([saved.renamed.get(name, name) for name in own] if has_states else [])
            if chip is not None:
                where = "" if len(runs) == 1 else f" of layers {run.start + 1} to {run.stop}"
                parts |= {f"{name}{where}": _parts(graph, chip.name) for name, graph in graphs.items()}
        caches = [{} if has_states else cache_ports(config, run) for run in runs]
        calls = _calls(part, packages, has_states)
        distance, agrees = _checked(model, calls, caches, functions)
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
        files = tuple(dict.fromkeys(file for of_function in packages.values() for file in of_function))
        exported = Exported(folder, files, size, label, config.seq, lengths, parts, distance, agrees, layers)
        _write(model, exported, packages, states, caches, part)
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


def _graphs(model: LanguageModel, functions: Mapping[str, int], run: range, has_states: bool) -> dict[str, Graph]:
    """Returns the graph of each function for these layers."""
    config, weights = model.config, model.weights
    if not has_states:
        counts = {**functions, DECODE: 1}
        return {name: block_with_ports(config, weights, count, layers=run) for name, count in counts.items()}
    graphs = {name: block(config, weights, count, config.seq, layers=run) for name, count in functions.items()}
    return {**graphs, DECODE: one_token(config, weights, layers=run)}


def _calls(folder: Path, packages: Mapping[str, Sequence[str]], has_states: bool) -> dict[str, list[Model]]:
    """Returns the compiled packages of each function, in the order of the layers."""
    opened = dict[str, Functions]()
    for file in dict.fromkeys(file for files in packages.values() for file in files):
        opened[file] = compile_functions(folder / file)
    return {
        name: [opened[file][name] if has_states else next(iter(opened[file].values())) for file in files]
        for name, files in packages.items()
    }


def _checked(
    model: LanguageModel,
    calls: Mapping[str, Sequence[Model]],
    caches: Sequence[Mapping[str, tuple[int, ...]]],
    prefill: Mapping[str, int],
) -> tuple[float, float]:
    """Returns the distance of the packages' logits from the model's, and the share of equal likeliest tokens. caches:
    the names and shapes of each package's cache, if it is an input. prefill: the tokens of each function, ascending."""
    rng = np.random.default_rng(0)
    longest = max(prefill.values())
    room = min(model.config.seq - longest, CHECKED)
    ids = [int(i) for i in rng.integers(0, model.config.vocab, longest + max(room, 0))]
    got = _logits(calls, caches, ids, prefill)
    last = [count - 1 for count in prefill.values()] + list(range(longest, len(ids)))
    want = model.logits(ids)[last].astype(np.float64)
    distance = float(np.linalg.norm(got - want) / max(float(np.linalg.norm(want)), 1e-30))
    return distance, float((got.argmax(1) == want.argmax(1)).mean())


def _logits(
    calls: Mapping[str, Sequence[Model]],
    caches: Sequence[Mapping[str, tuple[int, ...]]],
    ids: Sequence[int],
    prefill: Mapping[str, int],
) -> Array:
    """Returns the logits after a prompt for each prefill function, then after each token that follows the longest."""
    rows = [{name: np.zeros(shape, np.float16) for name, shape in ports.items()} for ports in caches]

    def run(name: str, tokens: Sequence[int], at: int, **given: Array) -> Array:
        given |= {"position": np.array([at], np.int32)}
        first, hidden = {"token" if name == DECODE else "tokens": np.array(tokens, np.int32)}, None
        for net, cache in zip(calls[name], rows, strict=True):
            known = first | given | ({} if hidden is None else {HIDDEN: hidden}) | cache
            made = net(**{port.name: known[port.name] for port in net.inputs})
            results = made if isinstance(made, dict) else {"": made}
            for port, whole in cache.items():
                whole[:, at : at + len(tokens)] = results.pop(f"{NEW}{port}")
            (hidden,) = map(np.asarray, results.values())
        assert hidden is not None
        return hidden.astype(np.float64).reshape(-1)

    made = [run(name, ids[:count], 0, last=np.array([count - 1], np.int32)) for name, count in prefill.items()]
    made += [run(DECODE, ids[at : at + 1], at) for at in range(max(prefill.values()), len(ids))]
    return np.stack(made)


def _write(
    model: LanguageModel,
    exported: Exported,
    packages: Mapping[str, Sequence[str]],
    states: Sequence[Sequence[str]],
    caches: Sequence[Mapping[str, tuple[int, ...]]],
    folder: Path,
) -> None:
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
        "models": packages if any(caches) else list(exported.packages),
        "functions": {**dict(zip(_names(exported.prefill), exported.prefill, strict=True)), "decode": 1},
        "context": exported.context,
        "vocabulary": model.config.vocab,
        "tokens": min(model.config.vocab, model.tokenizer.vocab),
        "begins": model.begins,
        "ends": sorted(model.stops),
        "states": [list(names) for names in states],
        "caches": [{name: list(shape) for name, shape in ports.items()} for ports in caches],
        "target": exported.target,
        "parts": exported.parts,
        "checked": {"distance": exported.distance, "same_choice": exported.agrees},
    }
    (folder / MANIFEST).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    (folder / SCRIPT).write_text(script(has_states=not any(caches)), encoding="utf-8")
