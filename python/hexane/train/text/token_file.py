"""Files of tokens: ids as little-endian uint16 or uint32, nothing else."""

import os
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from hexane._core import save_file
from hexane.errors import Error
from hexane.graph import Array
from hexane.importers.files import open_regular

DTYPES = ("uint16", "uint32")
BLOCK = 1 << 20  # ids that are checked at once


def token_dtype(vocab: int) -> str:
    """What the ids of a vocabulary of this size are stored as: "uint16" where all fit, else "uint32"."""
    return "uint16" if vocab <= 1 << 16 else "uint32"


def save_tokens(path: str | os.PathLike[str], documents: Iterable[Sequence[int] | Array], *, vocab: int) -> int:
    """Writes documents one after the other, atomically, and gives the count of tokens. Raises Error for ids beyond the
    vocabulary, and for a place that cannot be written to."""
    pieces = []
    for number, document in enumerate(documents):
        ids = np.asarray(document, np.int64)
        _check(ids, vocab, f"[train.save_tokens] document {number}", 0)
        pieces.append(ids.astype(np.dtype(token_dtype(vocab)).newbyteorder("<")))
    save_file(os.fspath(path), pieces)
    return sum(piece.size for piece in pieces)


class TokenFile:
    """A file of tokens, read where it is asked for.

    vocab: every id has to be below it, which is checked when the file is opened. dtype: "uint16" or "uint32"; None:
    `token_dtype(vocab)`, as `hexane tokenize` writes it. Raises Error for a file that cannot be read, has half an id at
    its end or an id beyond the vocabulary, and for one that is read as uint16 and looks like uint32.
    """

    def __init__(self, path: str | os.PathLike[str], *, vocab: int, dtype: str | None = None) -> None:
        self.path, self.vocab = Path(path), vocab
        self._where = f"[train.TokenFile] {self.path}"
        if isinstance(vocab, bool) or not isinstance(vocab, int) or vocab < 1:
            raise Error(f"{self._where}: vocab: got {vocab!r}, need an integer from 1 on")
        self.dtype = token_dtype(vocab) if dtype is None else dtype
        if self.dtype not in DTYPES:
            raise Error(f"{self._where}: dtype: got {self.dtype!r}, need one of {', '.join(DTYPES)}")
        self._kind = np.dtype(self.dtype).newbyteorder("<")
        self._descriptor = open_regular(self.path, self._where, "file of tokens")
        weakref.finalize(self, os.close, self._descriptor)
        size = os.fstat(self._descriptor).st_size
        if size == 0 or size % self._kind.itemsize:
            raise Error(f"{self._where}: got {size} bytes, need ids of {self._kind.itemsize} bytes each")
        self._count = size // self._kind.itemsize
        for begin in range(0, self._count, BLOCK):
            ids = self[begin : min(begin + BLOCK, self._count)]
            if begin == 0 and self.dtype == "uint16" and size % 4 == 0 and ids.size >= 64 and not ids[1::2].any():
                raise Error(f"{self._where}: got 0 in every second place, need uint16: it looks like dtype='uint32'")

    def __len__(self) -> int:
        """How many tokens there are."""
        return self._count

    def __getitem__(self, part: slice) -> Array:
        """The ids from part.start to part.stop, int32. Raises Error where the file has become shorter, or an id is
        beyond the vocabulary."""
        begin, end, stride = part.indices(self._count)
        if stride != 1:
            raise Error(f"{self._where}: got a stride of {stride}, need 1")
        size = max(end - begin, 0) * self._kind.itemsize
        data = b""
        while len(data) < size:
            read = os.pread(self._descriptor, size - len(data), begin * self._kind.itemsize + len(data))
            if not read:
                raise Error(f"{self._where}: got a file that became shorter, need its {self._count} tokens")
            data += read
        ids = np.frombuffer(data, self._kind)
        _check(ids, self.vocab, self._where, begin)
        return ids.astype(np.int32)


def _check(ids: Array, vocab: int, where: str, first: int) -> None:
    """first: the place of ids[0], for the error."""
    if ids.size and (ids.max() >= vocab or ids.min() < 0):
        place = int(np.flatnonzero((ids >= vocab) | (ids < 0))[0])
        raise Error(f"{where}: token {first + place}: got the id {ids[place]}, need 0 to {vocab - 1}: the vocabulary")
