"""Converts texts to the ids of a text encoder with special tokens, by tokenizer.json or the files of older folders."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hexane.errors import Error
from hexane.importers.files import open_next_to, open_regular, read_all

WHERE = "[llm.load]"
MOST_BYTES = 1 << 28
WORD_PIECES = ("bert", "distilbert")  # families for which vocab.txt and tokenizer_config.json suffice
BYTES = ("roberta",)
OF_BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
OF_ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
NO_LIMIT = 1 << 20  # a model_max_length from here on is no limit: transformers writes 1e30

Text = str | tuple[str, str]  # a pair is encoded as one input


class EncoderTokenizer:
    """A text encoder's tokenizer. vocab: ids are below it; most: tokens of a text including special ones; longer texts
    are cut."""

    def __init__(self, inner: Any, most: int, where: str) -> None:
        self._inner, self.most, self._where = inner, most, where
        inner.no_padding()
        inner.enable_truncation(most)
        self.vocab = max(inner.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        if 1 not in _encoded(inner, "a", where).special_tokens_mask:
            raise Error(f"{where}: got a tokenizer that puts no marks around a text, need one with a post-processor")

    def id_of(self, mark: str) -> int | None:
        """Returns the id of a token; None if unknown."""
        number: int | None = self._inner.token_to_id(mark)
        return number

    def encode(self, texts: Sequence[Text]) -> list[tuple[list[int], list[int]]]:
        """Returns ids and token types of each text or pair.

        Raises Error for anything but texts, and for a lone surrogate.
        """
        for one in texts:
            if not isinstance(one, str) and not (
                isinstance(one, tuple) and len(one) == 2 and all(isinstance(part, str) for part in one)
            ):
                raise Error(f"{self._where}: got {type(one).__name__}, need texts, or pairs of them")
            for part in (one,) if isinstance(one, str) else one:
                _check_utf8(part, self._where)
        return [(list(encoding.ids), list(encoding.type_ids)) for encoding in self._inner.encode_batch(list(texts))]


def _encoded(inner: Any, text: str, where: str) -> Any:
    try:
        return inner.encode(text)
    except BaseException as error:  # a panic in Rust is no Exception
        if type(error).__name__ != "PanicException":
            raise
        raise Error(f"{where}: got a tokenizer that fails on a text ({error}), need another file") from None


def several_texts(texts: Any) -> list[Any]:
    """Returns the texts of a call as a list; a single text becomes a list of one. Raises Error for other types."""
    if isinstance(texts, str):
        return [texts]
    if not isinstance(texts, Iterable) or isinstance(texts, (bytes, Mapping)):
        raise Error(f"[llm.embed] texts: got {type(texts).__name__}, need texts")
    return list(texts)


def _check_utf8(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Error(f"{where}: got {text[error.start]!r} at {error.start}, need text in UTF-8") from None


def load_encoder_tokenizer(folder: Path, family: str, longest: int, given: Path | None = None) -> EncoderTokenizer:
    """Returns the tokenizer of an encoder's folder, or of a tokenizer.json. longest: the model's largest number of
    tokens.

    Raises Error for a folder without one, for a damaged file, and without the package tokenizers.
    """
    where = f"{WHERE} {given or folder}"
    try:
        import tokenizers
    except ImportError:
        raise Error(f"{where}: got no package tokenizers, need: pip install 'hexane[chat]'") from None
    fields = tokenizer_fields(folder)
    limit = fields.get("model_max_length")
    most = min(longest, int(limit)) if isinstance(limit, (int, float)) and 1 <= limit < NO_LIMIT else longest
    try:
        inner = _inner(tokenizers, folder, family, fields, given, where)
        return EncoderTokenizer(inner, most, where)
    except (KeyboardInterrupt, SystemExit, Error):
        raise
    except BaseException as error:  # the package's panics are no Exception
        raise Error(f"{where}: {error}, need an undamaged tokenizer") from None


def tokenizer_fields(folder: Path) -> dict[str, Any]:
    """Returns the fields of tokenizer_config.json; empty without that file."""
    return _fields(folder, "tokenizer_config.json", f"{WHERE} {folder}")


def _inner(package: Any, folder: Path, family: str, fields: Mapping[str, Any], given: Path | None, where: str) -> Any:
    if given is not None:
        return package.Tokenizer.from_str(text_of(open_regular(given, where, "tokenizer.json"), where))
    if (folder / "tokenizer.json").is_file():
        return package.Tokenizer.from_str(_next_to(folder, "tokenizer.json", where))
    if (folder / "vocab.txt").is_file() and family in WORD_PIECES:
        return _word_pieces(package, _next_to(folder, "vocab.txt", where), fields, where)
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file() and family in BYTES:
        return _byte_pairs(package, folder, fields, where)
    others = {**dict.fromkeys(WORD_PIECES, " or vocab.txt"), **dict.fromkeys(BYTES, " or vocab.json with merges.txt")}
    raise Error(f"{where}: got no tokenizer, need tokenizer.json{others.get(family, '')}")


def _word_pieces(package: Any, text: str, fields: Mapping[str, Any], where: str) -> Any:
    """Returns the tokenizer of a vocabulary with one piece per line, like transformers' BertTokenizer."""
    ids = {piece: i for i, piece in enumerate(text.removesuffix("\n").split("\n"))}
    _check_marks(ids, OF_BERT, where)
    tokenizer = package.Tokenizer(package.models.WordPiece(vocab=ids, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = package.normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=fields.get("tokenize_chinese_chars", True),
        strip_accents=fields.get("strip_accents"),
        lowercase=fields.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = package.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = package.processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    tokenizer.add_special_tokens(list(OF_BERT))
    return tokenizer


def _byte_pairs(package: Any, folder: Path, fields: Mapping[str, Any], where: str) -> Any:
    """Returns the tokenizer of vocab.json and merges.txt, like transformers' RobertaTokenizer."""
    ids = _fields(folder, "vocab.json", where)
    _check_marks(ids, OF_ROBERTA, where)
    lines = _next_to(folder, "merges.txt", where).split("\n")
    pairs = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    if bad := [pair for pair in pairs if len(pair) != 2]:
        raise Error(f"{where}: merges.txt: got {' '.join(bad[0])!r}, need two pieces in each line")
    space = fields.get("add_prefix_space", False)
    tokenizer = package.Tokenizer(package.models.BPE(vocab=ids, merges=[(a, b) for a, b in pairs], fuse_unk=False))
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=space)
    tokenizer.post_processor = package.processors.RobertaProcessing(
        ("</s>", ids["</s>"]), ("<s>", ids["<s>"]), trim_offsets=True, add_prefix_space=space
    )
    mask = package.AddedToken("<mask>", lstrip=True, special=True)  # published models' tokenizer.json has these flags
    tokenizer.add_special_tokens([*OF_ROBERTA[:-1], mask])
    return tokenizer


def _check_marks(ids: Mapping[str, Any], marks: Sequence[str], where: str) -> None:
    if missing := [one for one in marks if one not in ids]:
        raise Error(f"{where}: got a vocabulary without {', '.join(missing)}, need {', '.join(marks)}")


def _fields(folder: Path, name: str, where: str) -> dict[str, Any]:
    if not (folder / name).is_file():
        return {}
    try:
        fields = json.loads(_next_to(folder, name, where))
    except (ValueError, RecursionError) as error:
        raise Error(f"{where}: {name}: {error}, need JSON") from None
    if not isinstance(fields, dict):
        raise Error(f"{where}: {name}: got {type(fields).__name__}, need an object")
    return fields


def _next_to(folder: Path, name: str, where: str) -> str:
    return text_of(open_next_to(folder, name, where), f"{where}: {name}")


def text_of(descriptor: int, where: str) -> str:
    data = read_all(descriptor, where)
    if len(data) > MOST_BYTES:
        raise Error(f"{where}: got {len(data)} bytes, need at most {MOST_BYTES}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Error(f"{where}: {error}, need text") from None
