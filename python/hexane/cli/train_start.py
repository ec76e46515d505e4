"""Checks the model, options and output folder of `hexane train` before anything is computed."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from hexane import _core
from hexane.build import Tensor
from hexane.cli.train_lora import AskedLora, base_of, base_path
from hexane.errors import Error
from hexane.graph import Array
from hexane.train.decoder import LlamaConfig, Lora, read_llama
from hexane.train.decoder.adapter_files import PLAIN_FAMILY, check_base
from hexane.train.decoder.checkpoint import holds_adapters, read_adapted, read_checkpoint
from hexane.train.decoder.config import STORIES
from hexane.train.decoder.encoded_base import encoded_base
from hexane.train.decoder.files import read_stored
from hexane.train.decoder.formats import hugging_face, llama2c
from hexane.train.decoder.formats.hugging_face_like import CONFIG, TOKENIZER_FILES, files_of
from hexane.train.decoder.lora import Base
from hexane.train.decoder.training import TrainingOptions, resumed_options
from hexane.train.text import NAMES, Tokenizer, find_tokenizer, load_tokenizer

BASE = "base"  # Subfolder of a run with the files of its initial model.
SEQ = 256  # Default context in tokens.
NAME = "stories15M"


@dataclass(slots=True)
class Start:
    """A training's start. weights: None for random initial weights. tokens: the data's tokens, if the run is resumed.
    lora, base: the adapters to train, if any, and their base model."""

    config: LlamaConfig
    weights: dict[str, Array | Tensor] | None
    options: TrainingOptions
    tokens: int | None = None
    lora: Lora | None = None
    base: Base | None = None


@dataclass(frozen=True, slots=True)
class Export:
    """The file to write at the end. format: None if no file is written; `note` has the reason."""

    path: Path
    format: str | None
    note: str = ""


def start_of(
    checkpoint: Path,
    model: str | None,
    sizes: Mapping[str, int | None],
    seq: int | None,
    given: Mapping[str, Any],
    resume: bool,
    lora: AskedLora,
) -> Start:
    """Returns the model to train and its options: from the checkpoint if there is one, or else from the options.

    Raises Error for a checkpoint without --resume, or of another model or other options.
    """
    if not checkpoint.exists():
        adapters, options = lora.made, TrainingOptions(**given)
        if adapters is None and options.compress is not None:
            raise Error(
                "[train] --compress: got it without --lora, need adapters: weights that are trained stay in fp32"
            )
        config, weights = _asked(model, sizes, seq, stored=adapters is not None)
        base = None if adapters is None else base_of(model, config, weights, adapters)
        return Start(config, _kept(config, weights, options), options, lora=adapters, base=base)
    if not resume:
        raise Error(
            f"[train] {checkpoint}: got a checkpoint of an earlier run, need --resume to go on from it, or another"
            " folder: -o RUN"
        )
    where = f"[train] {checkpoint}"
    kept = read_adapted(checkpoint) if holds_adapters(checkpoint) else None
    lora.check_kept(where, None if kept is None else kept.lora)
    if kept is None:
        config, read, notes = read_checkpoint(checkpoint)
        weights = {**read}
        asked, _ = _asked(model, sizes, seq, config)
    else:
        config, notes = kept.config, kept.notes
        path = base_path(where, model, kept)
        asked, weights = _asked(path, sizes, seq, config, stored=True)
    for one in fields(LlamaConfig):
        got, need = getattr(config, one.name), getattr(asked, one.name)
        if got != need:
            raise Error(
                f"{where}: {one.name}: got {got}, need the {need} that is asked for: a checkpoint of that model"
            )
    if kept is not None and weights is not None:
        check_base(where, kept.base, config, weights)
    data = notes.get("data")
    tokens = data.get("tokens") if isinstance(data, Mapping) else None
    if not isinstance(tokens, int):
        raise Error(f"{where}: got no count of tokens, need a checkpoint that `hexane train` wrote")
    options = resumed_options(notes, given, where)
    return Start(
        config,
        _kept(config, weights, options),
        options,
        tokens,
        *(() if kept is None else (kept.lora, replace(kept.base, path=path))),
    )


def _kept(
    config: LlamaConfig, weights: dict[str, Array | Tensor] | None, options: TrainingOptions
) -> dict[str, Array | Tensor] | None:
    """Returns the weights as the program keeps them. If the weights get encoded, they are removed from the given
    dict."""
    if weights is None or options.compress is None:
        return weights
    return encoded_base(config, weights, options.compress)


def _asked(
    model: str | None,
    sizes: Mapping[str, int | None],
    seq: int | None,
    known: LlamaConfig | None = None,
    stored: bool = False,
) -> tuple[LlamaConfig, dict[str, Array | Tensor] | None]:
    """Returns the model of the options. known: a checkpoint's config, for sizes that are not given. stored: keep the
    encoding of the file's weights."""
    changes: dict[str, Any] = {name: value for name, value in sizes.items() if value is not None}
    row = seq or (SEQ if known is None else known.seq)
    if model is None and known is not None:
        return replace(known, seq=row, **changes), None
    if model is None or model in STORIES:
        return LlamaConfig.named(model or NAME, **{**changes, "seq": row}), None
    if not Path(model).exists():
        raise Error(f"[train] --model: got {model!r}, need {', '.join(STORIES)}, or the path of a model or checkpoint")
    config, weights = read_stored(model) if stored else read_llama(model)
    for name, value in changes.items():
        if getattr(config, name) != value:
            got = f"--{name.replace('_', '-')}: got {value} with --model {model}"
            raise Error(f"[train] {got}, need the model's {getattr(config, name)}, or no option")
    if seq is not None and seq > config.seq:
        raise Error(f"[train] --seq: got {seq}, need at most the {config.seq} of {model}")
    return replace(config, seq=min(row, config.seq)), {**weights}


def made_folders(path: Path) -> list[Path]:
    """Makes the folder of a run, and returns the folders that did not exist before, the outermost first. Raises Error
    if it cannot be made or written to."""
    missing = [folder for folder in (*reversed(path.parents), path) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise Error(f"[train] --output: got the file {path}, need a folder") from None
    except OSError as error:
        raise Error(f"[train] --output: {path}: {error.strerror}, need a place that can be written to") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise Error(f"[train] --output: {path}: Permission denied, need a folder that can be written to")
    return missing


@contextmanager
def removed_if_empty(folders: Sequence[Path]) -> Iterator[None]:
    """Removes the folders made for a run if the run fails before it writes anything."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for folder in reversed(folders):
                folder.rmdir()
        raise


def note_of_vocab(known: Tokenizer | None, config: LlamaConfig) -> str:
    """Returns a note if a model has more tokens than its tokenizer; "" if not."""
    if known is None or known.vocab >= config.vocab:
        return ""
    unused = config.vocab - known.vocab
    return (
        f"the tokenizer has {known.vocab:,} tokens and the model {config.vocab:,}: {unused:,} of them never occur;"
        f" --vocab {known.vocab} makes a new model of the tokenizer's size"
    )


def tokenizer_of(given: Path | None, run: Path, needed: bool) -> Tokenizer | None:
    """Returns the given tokenizer, or if `needed` the one in the run's folder; None without one.

    Raises Error for a file that is no tokenizer, for a tokenizer that differs from the folder's, and for a missing
    tokenizer that is needed.
    """
    kept = find_tokenizer(run)
    if given is not None:
        known = load_tokenizer(given)
        if kept is not None and kept.read_bytes() != given.read_bytes():
            raise Error(f"[train] --tokenizer: got another one than {kept}, need that one, or another folder: -o RUN")
        return known
    if not needed:
        return None
    if kept is None:
        raise Error(
            f"[train] --sample-every: got no tokenizer, need --tokenizer FILE, or {' or '.join(NAMES)} in {run}"
        )
    return load_tokenizer(kept)


def keep_tokenizer(path: Path, run: Path) -> None:
    """Copies a tokenizer to the folder of a run for `hexane generate`, unless the folder has one."""
    if find_tokenizer(run) is None:
        name = NAMES[0] if path.suffix.lower() == ".json" else NAMES[1]
        _core.save_file(str(run / name), path.read_bytes())


def keep_base(model: str | None, run: Path) -> None:
    """Copies tokenizer and configs of a Hugging Face folder to RUN/base, for the models written later. The tokenizer's
    files also go to RUN, for `hexane generate RUN --chat`, unless RUN has a tokenizer."""
    if model is None or not Path(model).exists():
        return
    folder = Path(model) if Path(model).is_dir() else Path(model).parent
    is_folder = Path(model).is_dir() or Path(model).suffix == ".safetensors"
    if not is_folder or not (folder / CONFIG).is_file() or (run / BASE).exists():
        return
    files = files_of(folder)
    (run / BASE).mkdir()
    alone = find_tokenizer(run) is None
    for name, data in files.items():
        _core.save_file(str(run / BASE / name), data)
        if alone and name in TOKENIZER_FILES:
            _core.save_file(str(run / name), data)


def base_in(run: Path) -> str | None:
    """Returns the folder of `keep_base`; None if the run has none."""
    return str(run / BASE) if (run / BASE).is_dir() else None


def family_of(run: Path) -> str:
    """Returns the model_type of the Hugging Face folder that the run began from; "llama" if it began otherwise."""
    return hugging_face.family(run / BASE) if (run / BASE / CONFIG).is_file() else PLAIN_FAMILY


def kept_base(run: Path) -> Path:
    """Returns the folder with files to copy next to a model: RUN/base, or else RUN itself, which may have a
    tokenizer."""
    return run / BASE if (run / BASE).is_dir() else run


def keep_tokenizer_files(adapter: Path, run: Path) -> None:
    """Copies the model's tokenizer to the folder of its adapters, where transformers looks for it."""
    for name, data in files_of(kept_base(run), TOKENIZER_FILES).items():
        _core.save_file(str(adapter / name), data)


def export_of(path: Path | None, run: Path, config: LlamaConfig, adapters: bool = False) -> Export:
    """Returns where the trained model goes: to `path`, or by default RUN/model.bin; with adapters only to `path`,
    merged. Raises Error for an unusable path, and for a model that the format of `path` cannot describe."""
    if path is None and adapters:
        return Export(
            run / "model.bin", None, "not written: --export FILE.bin or DIR writes it with the adapters in it"
        )
    if path is None:
        try:
            llama2c.check_config("[train]", config, 0)
        except Error as error:
            return Export(run / "model.bin", None, f"no file of llama2.c: {str(error).removeprefix('[train]: ')}")
        return Export(run / "model.bin", llama2c.V0.name)
    where = f"[train] --export: {path}"
    if not path.parent.is_dir():
        raise Error(f"{where}: got no folder {path.parent}, need one that is there")
    if path.suffix == ".bin":
        if path.exists() and not path.is_file():
            raise Error(f"{where}: got something that is no file, need a file, or the name of a new one")
        llama2c.check_config(where, config, 0)
        return Export(path, llama2c.V0.name)
    if path.exists():
        raise Error(f"{where}: got something that is there already, need a FILE.bin, or the name of a new folder")
    hugging_face.check_config(where, config)
    return Export(path, hugging_face.FORMAT.name)


@contextmanager
def kept_checkpoint(path: Path) -> Iterator[None]:
    """Adds a hint to an error about writing the model: the checkpoint has the weights."""
    try:
        yield
    except Error as error:
        raise Error(f"{error}; {path} has the trained model: --resume --export writes it elsewhere") from None
