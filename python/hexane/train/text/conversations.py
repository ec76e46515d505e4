"""Training batches of conversations: each row is one conversation, and only its answers are learnt."""

import numpy as np

from hexane.errors import Error
from hexane.graph import Array
from hexane.train.text.token_file import TokenFile
from hexane.train.text.windows import checked_counts, rows_of

IGNORED = -100  # the label of a token that is not learnt


class Conversations:
    """Batches for `hx.train.Trainer.fit` and a decoder of `hx.train.llama`, over a file of conversations:
    conversations(n) is batch n, with `tokens` and `labels`, int32 (batch, seq).

    A row is a conversation from its first token on. A label is the next token if that is learnt, or else -100, which
    the loss ignores. Shorter conversations are padded with the id 0; longer ones are truncated. In each pass all
    conversations come once, in an order drawn from `seed`. Batch n depends only on the seed and n. rank, ranks: see
    `TokenWindows`.

    cut: how many used conversations are longer than a row; left_out: how many have no learnt token in their row, and
    are in no batch. Raises Error for a file of plain ids, and if all conversations are left out.
    """

    def __init__(
        self, tokens: TokenFile, *, batch: int, seq: int, seed: int = 0, rank: int = 0, ranks: int = 1
    ) -> None:
        checked_counts("Conversations", batch=batch, seq=seq, seed=seed, rank=rank, ranks=ranks)
        where = f"[train.Conversations] {tokens.path}"
        if tokens.starts is None:
            raise Error(
                f"{where}: got plain ids, need conversations: `hexane tokenize --chat`, or hx.train.TokenWindows"
            )
        self.tokens, self.batch, self.seq, self.seed = tokens, batch, seq, seed
        self.rows = rows_of(batch, rank, ranks)
        ends = np.append(tokens.starts[1:], len(tokens))
        counts = np.concatenate([[0], np.cumsum(tokens.learnt(slice(None)))])
        last = np.minimum(ends, tokens.starts + seq + 1)
        used = counts[last] > counts[np.minimum(tokens.starts + 1, last)]  # the first token is never a label
        self._places = np.stack([tokens.starts, last], 1)[used]
        self.cut, self.left_out = int((ends > last)[used].sum()), int((~used).sum())
        if not len(self._places):
            raise Error(f"{where}: got no conversation with an answer in its first {seq + 1} tokens, need a larger seq")
        self._order: tuple[int, Array] | None = None

    def __len__(self) -> int:
        """The number of conversations used."""
        return len(self._places)

    def __call__(self, number: int) -> dict[str, Array]:
        """Batch `number`, from 0 on."""
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise Error(f"[train.Conversations] got batch {number!r}, need an integer from 0 on")
        return self._batch([self._drawn(number * self.batch + row) for row in range(self.batch)[self.rows]])

    def in_order(self, limit: int | None = None) -> list[dict[str, Array]]:
        """Returns at most `limit` batches of conversations in file order. An incomplete last batch is left out. Raises
        Error if there is no complete batch."""
        whole = len(self) // self.batch
        if not whole:
            raise Error(
                f"[train.Conversations] {self.tokens.path}: got {len(self)} conversations to evaluate on, need at least"
                f" a batch of {self.batch}"
            )
        batches = range(whole if limit is None else min(whole, limit))
        return [self._batch(list(range(n * self.batch, (n + 1) * self.batch)[self.rows])) for n in batches]

    def _drawn(self, number: int) -> int:
        """Returns the index of a conversation. number: its place in the endless sequence of passes over all of them."""
        turn, place = divmod(number, len(self))
        if self._order is None or self._order[0] != turn:
            keys = np.random.SeedSequence((self.seed, turn)).generate_state(len(self), np.uint64)
            self._order = turn, np.argsort(keys, kind="stable")
        return int(self._order[1][place])

    def _batch(self, chosen: list[int]) -> dict[str, Array]:
        tokens = np.zeros((len(chosen), self.seq), np.int32)
        labels = np.full((len(chosen), self.seq), IGNORED, np.int32)
        for row, one in enumerate(chosen):
            begin, end = (int(place) for place in self._places[one])
            ids, learnt = self.tokens[begin:end], self.tokens.learnt(slice(begin, end))
            count = min(len(ids), self.seq)
            tokens[row, :count] = ids[:count]
            labels[row, : len(ids) - 1] = np.where(learnt[1:], ids[1:], IGNORED)
        return {"tokens": tokens, "labels": labels}
