"""Training batches from a file of tokens: windows at places drawn from the seed and the batch number."""

from math import isfinite

import numpy as np

from hexane.errors import Error
from hexane.graph import Array
from hexane.train.text.token_file import TokenFile


class TokenWindows:
    """Batches for `hx.train.Trainer.fit` and a decoder of `hx.train.llama`: windows(n) is batch n, with `tokens` and
    `labels`, int32 (batch, seq). The label of a token is the next token.

    Windows are drawn uniformly from the training part, from `seed` and the batch number alone: a resumed training sees
    the same batches as an uninterrupted one. validation: this share of the tokens, at the end of the file, is held out
    for `evaluation`. rank, ranks: the rows of a batch are split among `ranks` processes that train together; this one
    gets part `rank`.

    Raises Error if the training or held-out part is shorter than a window of seq + 1 tokens, if `ranks` does not divide
    `batch`, and for a file of conversations.
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
        """Returns at most `limit` batches of consecutive windows of the held-out tokens. An incomplete last batch is
        left out. Raises Error if there is no complete batch."""
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
    """Raises Error for a count that is no integer or too small: seed and rank may be 0, others must be at least 1."""
    for name, value in counts.items():
        least = 0 if name in ("seed", "rank") else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise Error(f"[train.{where}] {name}: got {value!r}, need an integer from {least} on")


def rows_of(batch: int, rank: int, ranks: int) -> slice:
    """Returns the rows of a batch that belong to a rank. Raises Error if `ranks` does not divide `batch`."""
    if batch % ranks or rank >= ranks:
        raise Error(f"[train] batch: got {batch} rows for rank {rank} of {ranks}, need a multiple of the ranks")
    each = batch // ranks
    return slice(rank * each, (rank + 1) * each)


def windows_in_order(
    tokens: TokenFile, *, batch: int, seq: int, first: int = 0, limit: int | None = None
) -> list[dict[str, Array]]:
    """Returns at most `limit` batches of consecutive windows from token `first` on. Raises Error if there is no
    complete batch."""
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
