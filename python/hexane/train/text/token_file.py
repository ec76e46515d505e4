"""Files of tokens: plain ids as little-endian uint16 or uint32, or conversations with marks of learnt tokens.

A file of conversations is a safetensors file of two tensors of the same length: `ids` (U16 or U32), and `marks` (U8):
1 for a token that is learnt, 2 for the first token of a conversation, 3 for both, 0 for others.
"""

import json
import os
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hexane._core import save_file
from hexane.errors import Error
from hexane.graph import Array
from hexane.importers.files import open_regular
from hexane.train.text.token_record import DTYPES, TokenRecord, parsed_record, read_record, record_of, write_record
from hexane.train.text.tokenizer import Tokenizer

BLOCK = 1 << 20  # Ids checked at a time.
LEARNT, FIRST = 1, 2  # Bits of a mark.
NOTE = "hexane.tokens"  # The key in the metadata of a file of conversations.
HEADER_BYTES = 1 << 16  # The most bytes of a header.
LEAST_TEXT, TEXT_BYTES = 64, 4096  # The fewest and the most bytes that are examined for text.
NAMES = {"uint16": "U16", "uint32": "U32"}


def token_dtype(vocab: int) -> str:
    """The stored dtype of a vocabulary's ids: "uint16" if all fit, else "uint32"."""
    return "uint16" if vocab <= 1 << 16 else "uint32"


def save_tokens(
    path: str | os.PathLike[str],
    documents: Iterable[Sequence[int] | Array],
    *,
    vocab: int,
    tokenizer: Tokenizer | None = None,
) -> int:
    """Writes documents one after the other, atomically, and returns the number of tokens. The size of the vocabulary
    and the tokenizer's digest are written to PATH.json. Raises Error for ids beyond the vocabulary, and if a file
    cannot be written."""
    pieces = []
    for number, document in enumerate(documents):
        pieces.append(_stored(document, vocab, f"[train.save_tokens] document {number}"))
    tokens = sum(piece.size for piece in pieces)
    save_file(os.fspath(path), pieces)
    if tokens:
        write_record(path, record_of(tokens, token_dtype(vocab), vocab, tokenizer))
    return tokens


def save_conversations(
    path: str | os.PathLike[str],
    conversations: Iterable[tuple[Sequence[int] | Array, Sequence[bool] | Array]],
    *,
    vocab: int,
    tokenizer: Tokenizer | None = None,
) -> int:
    """Writes conversations (ids, and which of them are learnt) atomically into a file. Returns the number of tokens.

    Raises Error for ids beyond the vocabulary, if a conversation's ids and marks differ in number, if there are no
    tokens, and if the file cannot be written.
    """
    pieces, marks = [], []
    for number, (ids, learnt) in enumerate(conversations):
        where = f"[train.save_conversations] conversation {number}"
        pieces.append(_stored(ids, vocab, where))
        mark = np.asarray(learnt, bool).astype(np.uint8) * LEARNT
        if mark.shape != pieces[-1].shape or not mark.size:
            raise Error(
                f"{where}: got {pieces[-1].size} ids and {mark.size} marks, need equal numbers, and at least one"
            )
        mark[0] |= FIRST
        marks.append(mark)
    if not pieces:
        raise Error("[train.save_conversations] got no conversation, need at least one")
    dtype, tokens = token_dtype(vocab), sum(piece.size for piece in pieces)
    end = tokens * np.dtype(dtype).itemsize
    header = {
        "__metadata__": {NOTE: record_of(tokens, dtype, vocab, tokenizer).text()},
        "ids": {"dtype": NAMES[dtype], "shape": [tokens], "data_offsets": [0, end]},
        "marks": {"dtype": "U8", "shape": [tokens], "data_offsets": [end, end + tokens]},
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    save_file(os.fspath(path), [len(text).to_bytes(8, "little"), text, *pieces, *marks])
    return tokens


def _stored(ids: Sequence[int] | Array, vocab: int, where: str) -> Array:
    numbers = np.asarray(ids, np.int64)
    _check(numbers, vocab, where, 0)
    return numbers.astype(np.dtype(token_dtype(vocab)).newbyteorder("<"))


class TokenFile:
    """A file of tokens. Ids are read when they are indexed.

    vocab: all ids must be below it, which is checked on opening. dtype: "uint16" or "uint32"; None: the record's, or
    without a record `token_dtype(vocab)`. record: the record of the file and its tokenizer; None without one. starts:
    the index of each conversation's first token; None for a file of plain ids.

    Raises Error if the file cannot be read, ends within an id or has an id beyond the vocabulary, if its record is
    damaged or of another file, and if its contents look like text, or like uint32 but are read as uint16.
    """

    record: TokenRecord | None
    starts: Array | None
    _marks: Array | None

    def __init__(self, path: str | os.PathLike[str], *, vocab: int, dtype: str | None = None) -> None:
        self.path, self.vocab = Path(path), vocab
        self._where = f"[train.TokenFile] {self.path}"
        if isinstance(vocab, bool) or not isinstance(vocab, int) or vocab < 1:
            raise Error(f"{self._where}: vocab: got {vocab!r}, need an integer from 1 on")
        if dtype is not None and dtype not in DTYPES:
            raise Error(f"{self._where}: dtype: got {dtype!r}, need one of {', '.join(DTYPES)}")
        self._descriptor = open_regular(self.path, self._where, "file of tokens")
        weakref.finalize(self, os.close, self._descriptor)
        size = os.fstat(self._descriptor).st_size
        header = self._header(size)
        if header is None:
            self._plain(size, dtype)
        else:
            self._marked(size, *header)
        for begin in range(0, self._count, BLOCK):
            ids = self[begin : min(begin + BLOCK, self._count)]
            if begin == 0 and self.dtype == "uint16" and size % 4 == 0 and ids.size >= 64 and not ids[1::2].any():
                raise Error(f"{self._where}: got 0 in every second place, need uint16: it looks like dtype='uint32'")

    def __len__(self) -> int:
        """How many tokens there are."""
        return self._count

    def __getitem__(self, part: slice) -> Array:
        """Returns the ids from part.start to part.stop, int32. Raises Error if the file was truncated since opening, or
        an id is beyond the vocabulary."""
        begin, end, stride = part.indices(self._count)
        if stride != 1:
            raise Error(f"{self._where}: got a stride of {stride}, need 1")
        width = self._kind.itemsize
        ids = np.frombuffer(self._bytes(self._first + begin * width, max(end - begin, 0) * width), self._kind)
        _check(ids, self.vocab, self._where, begin)
        return ids.astype(np.int32)

    def learnt(self, part: slice) -> Array:
        """Returns True for each learnt token of this part; all True for a file of plain ids."""
        begin, end, _ = part.indices(self._count)
        if self._marks is None:
            return np.ones(max(end - begin, 0), bool)
        return (self._marks[begin:end] & LEARNT).astype(bool)

    def _plain(self, size: int, dtype: str | None) -> None:
        self.record, self.starts, self._marks, self._first = read_record(self.path), None, None, 0
        known = token_dtype(self.vocab) if self.record is None else self.record.dtype
        self.dtype = known if dtype is None else dtype
        self._kind = np.dtype(self.dtype).newbyteorder("<")
        if size == 0 or size % self._kind.itemsize:
            raise Error(f"{self._where}: got {size} bytes, need ids of {self._kind.itemsize} bytes each")
        if self.record is None and dtype is None and _is_text(self._bytes(0, min(size, TEXT_BYTES))):
            raise Error(f"{self._where}: got a text, need ids: `hexane tokenize` makes them, or give dtype= for ids")
        self._count = size // self._kind.itemsize
        if self.record is not None and (self.dtype, self._count) != (self.record.dtype, self.record.tokens):
            raise Error(
                f"{self._where}: got {self._count} ids in {self.dtype}, need the {self.record.tokens} in"
                f" {self.record.dtype} of {self.path.name}.json; remove that record if it is of another file"
            )

    def _header(self, size: int) -> tuple[Any, int] | None:
        """Returns the header of a file of conversations, and the offset of its end; None for plain ids."""
        if size < 10:
            return None
        start = self._bytes(0, 10)
        length = int.from_bytes(start[:8], "little")
        if start[8:] != b'{"' or not 2 <= length <= HEADER_BYTES:
            return None
        try:
            return json.loads(self._bytes(8, min(length, size - 8))), 8 + length
        except (ValueError, RecursionError) as error:
            raise Error(f"{self._where}: {error}, need an undamaged file of conversations") from None

    def _marked(self, size: int, header: Any, first: int) -> None:
        """Checks an untrusted header, which must be exactly as `save_conversations` writes it."""
        need = "need an undamaged file of conversations, as `hexane tokenize --chat` writes it"
        note = header.get("__metadata__", {}).get(NOTE) if isinstance(header.get("__metadata__"), dict) else None
        if not isinstance(note, str):
            raise Error(f"{self._where}: got a safetensors file without a record of tokens, {need}")
        record = self.record = parsed_record(note, self._where)
        self.dtype, self._count, self._first = record.dtype, record.tokens, first
        self._kind = np.dtype(record.dtype).newbyteorder("<")
        end = record.tokens * self._kind.itemsize
        wanted = {
            "ids": {"dtype": NAMES[record.dtype], "shape": [record.tokens], "data_offsets": [0, end]},
            "marks": {"dtype": "U8", "shape": [record.tokens], "data_offsets": [end, end + record.tokens]},
        }
        if {name: one for name, one in header.items() if name != "__metadata__"} != wanted:
            raise Error(f"{self._where}: got other tensors than ids and marks of {record.tokens} tokens, {need}")
        if size != first + end + record.tokens:
            raise Error(f"{self._where}: got {size} bytes, need {first + end + record.tokens}, {need}")
        marks = self._marks = np.frombuffer(self._bytes(first + end, record.tokens), np.uint8)
        if marks.max() > LEARNT | FIRST or not marks[0] & FIRST:
            raise Error(f"{self._where}: got marks of another kind than 0 to 3, {need}")
        self.starts = np.flatnonzero(marks & FIRST)

    def _bytes(self, first: int, size: int) -> bytes:
        data = b""
        while len(data) < size:
            read = os.pread(self._descriptor, size - len(data), first + len(data))
            if not read:
                raise Error(f"{self._where}: got a file that became shorter, need its {self._count} tokens")
            data += read
        return data


def _is_text(data: bytes) -> bool:
    """True for at least LEAST_TEXT bytes without control characters other than tabs and ends of lines: ids nearly
    always contain some."""
    return len(data) >= LEAST_TEXT and not any(byte < 32 and byte not in b"\t\n\f\r" for byte in data)


def _check(ids: Array, vocab: int, where: str, first: int) -> None:
    """Raises Error for an id beyond the vocabulary. first: the index of ids[0] in the file."""
    if ids.size and (ids.max() >= vocab or ids.min() < 0):
        place = int(np.flatnonzero((ids >= vocab) | (ids < 0))[0])
        raise Error(f"{where}: token {first + place}: got the id {ids[place]}, need 0 to {vocab - 1}: the vocabulary")
