"""Opens the data of `hexane train`, and checks that its tokens are from the model's vocabulary."""

from importlib.util import find_spec
from pathlib import Path

from hexane.errors import Error
from hexane.train.decoder import LlamaConfig
from hexane.train.decoder.checkpoint import is_checkpoint
from hexane.train.decoder.config import STORIES
from hexane.train.decoder.formats import holds_gguf
from hexane.train.text import TokenFile, Tokenizer, find_tokenizer, load_tokenizer

PADDING = 512  # most rows of an embedding beyond the tokenizer's tokens, which pad it to a round number
FORCE = "need tokens of the model's tokenizer, or --force"


def checked_data(
    option: str, path: Path, config: LlamaConfig, model: str | None, shown: Tokenizer | None, force: bool
) -> tuple[TokenFile, str]:
    """Returns the file of tokens, and a note to print, or "". model: the path or name of --model; shown: the tokenizer
    for sample texts.

    Raises Error for an unreadable file, and for an id beyond the model's vocabulary. Unless forced, also raises Error
    if the tokenizer or the vocabulary's size differs from the model's.
    """
    tokens = TokenFile(path, vocab=config.vocab)
    record = tokens.record
    if record is None:
        return tokens, f"note: {path} has no record of its tokenizer: nobody compares it with the model's"
    where, own = f"[train] {option}: {path}", model_tokenizer(model)
    for what, known in (("the model", own), ("--tokenizer", shown)):
        if known is not None and record.tokenizer is not None and known.digest != record.tokenizer:
            fault = f"got tokens of another tokenizer than that of {what}"
            return tokens, _fault(where, f"{fault}, {FORCE}", force)
    if own is not None and own.digest == record.tokenizer and own.fits(config.vocab):
        return tokens, ""
    if not record.vocab <= config.vocab <= record.vocab + PADDING:
        fault = f"got tokens of a vocabulary of {record.vocab:,} for a model of {config.vocab:,}, {FORCE}"
        new = (
            "" if model is not None and model not in STORIES else f"; --vocab {record.vocab} makes a new model of them"
        )
        return tokens, _fault(where, fault + new, force)
    return tokens, ""


def _fault(where: str, text: str, force: bool) -> str:
    if not force:
        raise Error(f"{where}: {text}")
    return f"note: {where.removeprefix('[train] ')}: {text}"


def model_tokenizer(model: str | None) -> Tokenizer | None:
    """Returns the tokenizer of a Hugging Face folder, a GGUF file, or a run's checkpoint; None for a new model, one
    without a tokenizer, or without the package tokenizers. Also None for other files, whose folder may have an
    unrelated tokenizer.

    Raises Error for a damaged tokenizer.
    """
    if model is None or not Path(model).exists() or find_spec("tokenizers") is None:
        return None
    path = Path(model)
    if path.is_dir():
        tokenizer = find_tokenizer(path)
    elif holds_gguf(path):
        tokenizer = path
    else:
        tokenizer = find_tokenizer(path.parent) if is_checkpoint(path) else None
    return None if tokenizer is None else load_tokenizer(tokenizer)
