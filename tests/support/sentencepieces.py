"""A small tokenizer.bin as it is published, and its tokens by joining pieces one pair at a time."""

import struct
from collections import Counter
from itertools import pairwise

MARKERS = ["<unk>", "\n<s>\n", "\n</s>\n"]
TEXT = (
    "the cat sat on the mat. The cat saw the other cat, and then they sat there together. aaaa  bababa naïve café "
    "héhé 日本 日本語 "
) * 3


def vocabulary(size: int = 60, text: str = TEXT) -> tuple[list[str], list[float]]:
    """Pieces and scores: markers, bytes, what pairs of the text join to (score -0, -1, ..), then its characters."""
    tokens, joined = list(text), []
    while len(joined) < size:
        pair = Counter(pairwise(tokens)).most_common(1)[0][0]
        piece, out, i = "".join(pair), [], 0
        if piece not in joined:
            joined.append(piece)
        while i < len(tokens):
            step = 2 if tuple(tokens[i : i + 2]) == pair else 1
            out.append("".join(tokens[i : i + step]))
            i += step
        tokens = out
    pieces = [*MARKERS, *(f"<0x{byte:02X}>" for byte in range(256)), *joined, *sorted(set(text) - {"語"})]
    scores = [0.0] * 259 + [-float(i) for i in range(len(pieces) - 259)]
    return pieces, scores


def tokenizer_bin(pieces: list[str], scores: list[float]) -> bytes:
    data = [piece.encode() for piece in pieces]
    body = b"".join(struct.pack("<fi", s, len(d)) + d for d, s in zip(data, scores, strict=True))
    return struct.pack("<i", max(map(len, data))) + body


def joined_by_score(text: str, pieces: list[str], scores: list[float]) -> list[int]:
    """The ids of a text: characters, or their bytes, then the pair of the best score is joined, the leftmost of
    equals."""
    ids = {piece: i for i, piece in enumerate(pieces) if i >= 259}
    tokens: list[int] = []
    for character in f" {text}" if text else "":
        tokens += [ids[character]] if character in ids else [3 + byte for byte in character.encode()]
    while True:
        best: tuple[float, int, int] | None = None
        for i in range(len(tokens) - 1):
            made = ids.get(pieces[tokens[i]] + pieces[tokens[i + 1]])
            if min(tokens[i], tokens[i + 1]) >= 259 and made is not None and (best is None or scores[made] > best[0]):
                best = scores[made], i, made
        if best is None:
            return tokens
        tokens[best[1] : best[1] + 2] = [best[2]]
