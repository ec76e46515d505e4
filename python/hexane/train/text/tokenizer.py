"""Converts text to tokens and back with the `tokenizers` package. Reads llama2.c's tokenizer.bin, and
tokenizer.json."""

import json
import os
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from hexane.errors import Error
from hexane.importers.files import open_next_to, open_regular, read_all
from hexane.train.text.sentencepiece import read_pieces

BEGINNINGS = ("<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>", "[BOS]", "<|endoftext|>")
ENDINGS = ("</s>", "<|end_of_text|>", "<eos>", "<|endoftext|>", "[EOS]")
# Tokens that end an answer in the chat formats of published models.
CHAT_ENDINGS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<|end_of_turn|>",
    "<|endofturn|>",
)
NAMES = ("tokenizer.json", "tokenizer.bin")  # Files in a model's folder; the first existing file is used.
JSON_BYTES = 1 << 28
SPACE = "\u2581"  # SentencePiece's mark for a space.
PART = 1 << 16  # The least characters of a part.


class Tokenizer:
    """A tokenizer and its special tokens. vocab: ids are below it; begin, end: the ids that begin and end a document,
    or None; adds_begin: true if the tokenizer itself puts `begin` before a text; chat_ends: the ids that end an answer
    in a chat; added: the ids of tokens added to the vocabulary."""

    def __init__(
        self,
        inner: Any,
        vocab: int,
        begin: int | None,
        end: int | None = None,
        markers: frozenset[int] = frozenset(),
        prefix: str = "",
        lines_apart: bool = False,
        adds_begin: bool = True,
        chat_ends: frozenset[int] = frozenset(),
        added: frozenset[int] = frozenset(),
    ) -> None:
        self.vocab, self.begin, self.end = vocab, begin, end
        self.adds_begin, self.chat_ends, self.added = adds_begin, chat_ends, added
        self._inner, self._markers = inner, markers
        self._prefix, self._lines_apart = prefix, lines_apart

    @property
    def stops(self) -> frozenset[int]:
        """The ids that end a generated text: the ids that end a document or an answer, and the id that begins a
        document, as files of tokens may have no other separator."""
        return frozenset(one for one in (self.begin, self.end, *self.chat_ends) if one is not None)

    def id_of(self, token: str) -> int | None:
        """Returns the id of a token given its text; None if unknown."""
        number = self._inner.token_to_id(token)
        return None if number is None else int(number)

    def fits(self, rows: int) -> bool:
        """True if a model with this many embedding rows has one for each token. Added tokens may have no row: Gemma 3
        1B's tokenizer has an image token that only the larger models embed."""
        return all(one in self.added for one in range(rows, self.vocab))

    @property
    def digest(self) -> str:
        """Identifies the vocabulary, from ids and tokens: "sha256:" and 64 digits. The digest does not change if
        another program rewrites the tokenizer.json, or converts it to a tokenizer.bin."""
        ids = self._inner.get_vocab(with_added_tokens=True)
        listed = sorted((int(i), _plain(token)) for token, i in ids.items())
        return f"sha256:{sha256(json.dumps(listed).encode()).hexdigest()}"

    def encode_at(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Returns the ids of a text without `begin`, and the character range of each id. Raises Error as `encode`
        does."""
        self._check(text)
        ids: list[int] = []
        places: list[tuple[int, int]] = []
        first = -len(self._prefix)
        for part in self._parts(f"{self._prefix}{text}" if text else ""):
            encoding = self._inner.encode(part, add_special_tokens=False)
            ids += encoding.ids
            places += [(max(first + begin, 0), max(first + end, 0)) for begin, end in encoding.offsets]
            first += len(part)
        return ids, places

    def encode(self, text: str, *, begin: bool = True) -> list[int]:
        """Returns the ids of a document. begin: put the id `begin` first, if there is one. Raises Error for a lone
        surrogate, which Python uses for bytes that are not UTF-8."""
        self._check(text)
        ids = [self.begin] if begin and self.begin is not None else []
        for part in self._parts(f"{self._prefix}{text}" if text else ""):
            ids += self._inner.encode(part, add_special_tokens=False).ids
        return ids

    def _check(self, text: str) -> None:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            bad = text[error.start]
            raise Error(f"[train.Tokenizer] encode: got {bad!r} at {error.start}, need text in UTF-8") from None

    def _parts(self, text: str) -> Iterator[str]:
        """Yields parts of the text to encode separately: encoding needs over 100 bytes of memory per character."""
        first = 0
        while self._lines_apart and len(text) - first > PART:
            end = text.find("\n", first + PART)
            if end < 0:
                break
            yield text[first:end]
            first = end
        yield text[first:]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids, without special tokens. Raises Error for ids beyond the vocabulary."""
        plain = [int(i) for i in ids]
        for i in plain:
            if not 0 <= i < self.vocab:
                raise Error(f"[train.Tokenizer] decode: got the id {i}, need one below the vocabulary's {self.vocab}")
        text: str = self._inner.decode([i for i in plain if i not in self._markers], skip_special_tokens=True)
        return text

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a tokenizer.json that encodes like this tokenizer, without `begin`."""
        copy = type(self._inner).from_str(self._inner.to_str())
        if self._prefix:
            from tokenizers import normalizers

            copy.normalizer = normalizers.Prepend(self._prefix)
        copy.save(os.fspath(path))


def _plain(token: str) -> str:
    """Returns a token as in llama2.c, but without the line ends around its marks of documents."""
    bare = token.strip("\n")
    return bare if token == f"\n{bare}\n" and bare[:1] == "<" else token.replace(SPACE, " ")


def find_tokenizer(folder: Path) -> Path | None:
    """Returns the tokenizer.json or tokenizer.bin of a folder; None without one.

    Raises Error for a link that leaves the folder.
    """
    name = next((name for name in NAMES if (folder / name).is_file()), None)
    if name is None:
        return None
    os.close(open_next_to(folder, name, f"[train.load_tokenizer] {folder}"))
    return folder / name


def read_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Returns the tokenizer in llama2.c's tokenizer.bin, or in a tokenizer.json.

    A file whose name ends in .json is read as JSON, any other file as tokenizer.bin. Raises Error for a damaged file,
    and without the package tokenizers.
    """
    path = Path(path)
    where = f"[train.load_tokenizer] {path}"
    try:
        import tokenizers
    except ImportError:
        raise Error(f"{where}: got no package tokenizers, need: pip install 'hexane[train]'") from None
    data = read_all(open_regular(path, where, "tokenizer.bin or tokenizer.json"), where)
    if path.suffix.lower() == ".json":
        return _from_json(tokenizers, data, where)
    return _from_pieces(tokenizers, data, where)


def _from_pieces(tokenizers: Any, data: bytes, where: str) -> Tokenizer:
    pieces = read_pieces(data, where)
    model = tokenizers.models.BPE(
        vocab={piece: i for i, piece in enumerate(pieces.pieces)},
        merges=pieces.merges(),
        unk_token=pieces.pieces[0],
        byte_fallback=pieces.has_bytes,
    )
    inner = tokenizers.Tokenizer(model)
    decoders = tokenizers.decoders
    inner.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(content=" ", left=1, right=0)]
    )
    # SentencePiece writes U+2581 for a space, but these pieces have spaces; a document begins with a space. If no
    # longer piece contains a line end, no merge crosses one, and lines may be encoded separately.
    lines_apart = not any("\n" in piece and len(piece) > 1 for piece in pieces.pieces)
    return Tokenizer(inner, len(pieces.pieces), 1, 2, frozenset((1, 2)), prefix=" ", lines_apart=lines_apart)


def _from_json(tokenizers: Any, data: bytes, where: str) -> Tokenizer:
    if len(data) > JSON_BYTES:
        raise Error(f"{where}: got {len(data)} bytes, need at most {JSON_BYTES}")
    try:
        inner = tokenizers.Tokenizer.from_str(data.decode())
        inner.no_truncation()  # truncation would cut long documents
        inner.no_padding()
        ids = inner.get_vocab(with_added_tokens=True)
        marked = _marked(inner)
        begin = marked if marked is not None else next((ids[name] for name in BEGINNINGS if name in ids), None)
        special = {token.content: i for i, token in inner.get_added_tokens_decoder().items()}
        chat_ends = frozenset(special[name] for name in CHAT_ENDINGS if name in special)
        end = next((ids[name] for name in ENDINGS if name in ids), None)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # panics of the package tokenizers are no Exception
        raise Error(f"{where}: {error}, need a tokenizer.json") from None
    if not ids:
        raise Error(f"{where}: got an empty vocabulary, need tokens")
    vocab, adds, added = max(ids.values()) + 1, marked is not None, frozenset(special.values())
    return Tokenizer(inner, vocab, begin, end, adds_begin=adds, chat_ends=chat_ends, added=added)


def _marked(inner: Any) -> int | None:
    """Returns the id that the tokenizer itself puts before a text; None if it adds none."""
    marked = inner.encode("a", add_special_tokens=True)
    return int(marked.ids[0]) if marked.special_tokens_mask[:1] == [1] else None
