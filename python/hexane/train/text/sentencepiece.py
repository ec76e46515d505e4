"""tokenizer.bin of llama2.c: the pieces of a SentencePiece model with their scores.

    32 bits: bytes of the longest piece; then for each id a score (fp32), the piece's number of bytes (32 bits), and the
    piece in UTF-8

Ids 0, 1 and 2 are the unknown token, the beginning and the end of a document; 3 to 258 are the 256 bytes, if the model
has byte tokens. Source: llama2.c's tokenizer.py and run.c.
"""

import struct
from dataclasses import dataclass
from math import isfinite

from hexane.errors import Error

MARKERS = ("<unk>", "<s>", "</s>")
BYTES = range(len(MARKERS), len(MARKERS) + 256)
MOST_PIECES = 1 << 22


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces by id: markers and bytes under names such as <s> and <0x0A>, others as their text. scores: the pair whose
    joined piece has the highest score is joined first."""

    pieces: list[str]
    scores: list[float]
    has_bytes: bool

    def merges(self) -> list[tuple[str, str]]:
        """Returns all pairs of pieces whose join is a piece, in the order of joining."""
        first = BYTES.stop if self.has_bytes else len(MARKERS)
        ids = {self.pieces[i]: i for i in range(first, len(self.pieces))}
        pairs = [
            (-self.scores[i], i, ids[piece[:cut]], ids[piece[cut:]])
            for piece, i in ids.items()
            for cut in range(1, len(piece))
            if piece[:cut] in ids and piece[cut:] in ids
        ]
        pairs.sort()
        return [(self.pieces[left], self.pieces[right]) for _, _, left, right in pairs]


def read_pieces(data: bytes, where: str) -> Pieces:
    """Returns the pieces in a file. Raises Error, beginning with `where`, for a damaged file."""
    if len(data) < 4:
        raise Error(f"{where}: got {len(data)} bytes, need a tokenizer.bin")
    (longest,) = struct.unpack_from("<I", data)
    texts: list[str] = []
    scores: list[float] = []
    offset = 4
    while offset < len(data):
        place = f"{where}: token {len(texts)}"
        if offset + 8 > len(data):
            raise Error(f"{place}: got {len(data) - offset} bytes, need a score and a length in 8")
        score, size = struct.unpack_from("<fI", data, offset)
        offset += 8
        if not 0 < size <= longest or offset + size > len(data):
            most = min(longest, len(data) - offset)
            raise Error(f"{place}: got {size} bytes of text, need 1 to {most}")
        if not isfinite(score):
            raise Error(f"{place}: got the score {score}, need a finite one")
        if len(texts) == MOST_PIECES:
            raise Error(f"{where}: got more than {MOST_PIECES} tokens, need at most that many")
        try:
            texts.append(data[offset : offset + size].decode())
        except UnicodeDecodeError:
            raise Error(f"{place}: got {data[offset : offset + min(size, 20)]!r}, need UTF-8") from None
        scores.append(score)
        offset += size
    if len(texts) <= len(MARKERS):
        raise Error(f"{where}: got {len(texts)} tokens, need more than the {len(MARKERS)} markers")
    return _named(texts, scores, where)


def _named(texts: list[str], scores: list[float], where: str) -> Pieces:
    pieces = [*MARKERS, *texts[len(MARKERS) :]]
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    in_place = texts[BYTES.start : BYTES.stop]
    # Older files have the byte's character where newer ones have a name such as <0x0A>.
    has_bytes = in_place in (names, [chr(byte) for byte in range(256)])
    if has_bytes:
        pieces[BYTES.start : BYTES.stop] = names
    seen: dict[str, int] = {}
    for i, piece in enumerate(pieces):
        if seen.setdefault(piece, i) != i:
            raise Error(f"{where}: tokens {seen[piece]} and {i}: got {piece!r} twice, need distinct pieces")
    return Pieces(pieces, scores, has_bytes)
