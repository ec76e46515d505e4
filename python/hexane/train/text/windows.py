"""The batches of a training over a file of tokens: windows that the seed and the number of the batch choose."""

from math import isfinite

import numpy as np

from hexane.errors import Error
from hexane.graph import Array
from hexane.train.text.token_file import TokenFile


class TokenWindows:
    """Batches for `hx.train.Trainer.fit` and a decoder of `hx.train.llama`: windows(n) is batch n, with `tokens` and
    `labels`, int32 (batch, seq); labels are the tokens that follow.

    Every place of the part that is trained on is as likely as any other. The draw depends on `seed` and the number of
    the batch alone: a resumed training sees the same batches as an uninterrupted one. validation: this share of the
    tokens, at the end of the file, is held out, for `evaluation`. rank, ranks: of the rows of each batch only part
    `rank` of so many is given, to one of several processes that train together.

    Raises Error for parts that are too short for one window of seq + 1 tokens, for a batch that does not divide, and
    for a file of conversations.
    """

    def __init__(
        self,
        tokens: TokenFile,
        *,
        batch: int,
        seq: int,
        seed: int = 0,
        validation: float = 0.0,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        checked_counts("TokenWindows", batch=batch, seq=seq, seed=seed, rank=rank, ranks=ranks)
        if not (isfinite(validation) and 0 <= validation < 1):
            raise Error(f"[train.TokenWindows] validation: got {validation!r}, need a share from 0 to below 1")
        if tokens.starts is not None:
            raise Error(
                f"[train.TokenWindows] {tokens.path}: got conversations, need plain ids, or hx.train.Conversations:"
                " windows would learn the prompts, too"
            )
        self.tokens, self.batch, self.seq, self.seed = tokens, batch, seq, seed
        self.rows = rows_of(batch, rank, ranks)
        self.held_out = int(len(tokens) * validation)
        self.trained = len(tokens) - self.held_out
        self._need("of training", self.trained, seq + 1)
        if validation:
            self._need("held out", self.held_out, seq + 1)

    def __call__(self, number: int) -> dict[str, Array]:
        """Batch `number`, from 0 on."""
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise Error(f"[train.TokenWindows] got batch {number!r}, need an integer from 0 on")
        places = self.trained - self.seq
        drawn = np.random.SeedSequence((self.seed, number)).generate_state(self.batch, np.uint64)
        return _at(self.tokens, self.seq, [int(one) * places >> 64 for one in drawn[self.rows]])

    def evaluation(self, limit: int | None = None) -> list[dict[str, Array]]:
        """The held-out tokens as batches of windows one after the other, at most `limit`. What does not fill a batch is
        left out. Raises Error where the held-out part has not one."""
        self._need("held out", self.held_out, self.batch * self.seq + 1)
        batches = windows_in_order(self.tokens, batch=self.batch, seq=self.seq, first=self.trained, limit=limit)
        return [{name: array[self.rows] for name, array in one.items()} for one in batches]

    def _need(self, what: str, count: int, need: int) -> None:
        if count < need:
            raise Error(
                f"[train.TokenWindows] {self.tokens.path}: got {count} tokens {what}, need at least {need}:"
                f" more text, a shorter seq than {self.seq}, or another share of validation"
            )


def checked_counts(where: str, **counts: int) -> None:
    """Raises Error for a count that is no integer, or below its least: 0 for seed and rank, 1 for others."""
    for name, value in counts.items():
        least = 0 if name in ("seed", "rank") else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise Error(f"[train.{where}] {name}: got {value!r}, need an integer from {least} on")


def rows_of(batch: int, rank: int, ranks: int) -> slice:
    """The rows of a batch that one of several ranks has. Raises Error for a batch that does not divide."""
    if batch % ranks or rank >= ranks:
        raise Error(f"[train] batch: got {batch} rows for rank {rank} of {ranks}, need a multiple of the ranks")
    each = batch // ranks
    return slice(rank * each, (rank + 1) * each)


def windows_in_order(
    tokens: TokenFile, *, batch: int, seq: int, first: int = 0, limit: int | None = None
) -> list[dict[str, Array]]:
    """The tokens from `first` on as batches of windows one after the other, at most `limit`. What does not fill a batch
    is left out. Raises Error where there is not one batch."""
    count = len(tokens) - first
    if count <= batch * seq:
        raise Error(
            f"[train.TokenWindows] {tokens.path}: got {count} tokens to evaluate on, need at least {batch * seq + 1}:"
            f" a batch of {batch} x {seq}, and the token after it"
        )
    whole = (count - 1) // (batch * seq)
    rows = np.arange(min(whole, whole if limit is None else limit) * batch).reshape(-1, batch)
    return [_at(tokens, seq, [first + int(row) * seq for row in one]) for one in rows]


def _at(tokens: TokenFile, seq: int, places: list[int]) -> dict[str, Array]:
    windows = np.stack([tokens[place : place + seq + 1] for place in places])
    return {"tokens": np.ascontiguousarray(windows[:, :-1]), "labels": np.ascontiguousarray(windows[:, 1:])}
