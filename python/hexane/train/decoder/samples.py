"""Short texts that a decoder generates during training, to show its progress."""

from collections.abc import Callable

from hexane.errors import Error
from hexane.graph import Array
from hexane.options import Options
from hexane.train.decoder.config import LlamaConfig
from hexane.train.decoder.generate import Generator, NotFinite
from hexane.train.text.tokenizer import Tokenizer

TOKENS = 64  # most tokens of a text


class Samples:
    """Generates texts of at most 64 tokens, in fp32 on the host, with a program of its own that is compiled once. The
    program is separate from the training, so sampling does not change the training's bits.

    prompt: the start of each text. seed: the sampling is seeded with `seed + step`. Texts differ between steps, and a
    resumed run repeats them.

    Raises Error for a tokenizer of more tokens than the model, for a prompt that leaves no room for a text, and for an
    empty prompt if the tokenizer has no BOS token.
    """

    def __init__(
        self, config: LlamaConfig, tokenizer: Tokenizer, prompt: str = "", *, seed: int = 0, threads: int | None = None
    ) -> None:
        if not tokenizer.fits(config.vocab):
            raise Error(f"[train] the tokenizer: got {tokenizer.vocab} tokens, need at most the model's {config.vocab}")
        self._ids = tokenizer.encode(prompt)
        if not self._ids:
            raise Error("[train] --prompt: got an empty prompt, need some text: this tokenizer has no BOS token")
        if len(self._ids) >= config.seq:
            raise Error(f"[train] --prompt: got {len(self._ids)} tokens, need fewer than the {config.seq} of a row")
        self._tokenizer, self._seed = tokenizer, seed
        self._generator = Generator.of_weights(config, options=Options(target="host", threads=threads))
        self._generator.net.program = None  # frees the program's graph, which holds a copy of the initial zeros

    def __call__(self, read: Callable[[str], Array], step: int) -> str | None:
        """Returns the prompt and its continuation, or None if logits are not finite. read: returns a current weight by
        name; step: the number of the finished step."""
        net = self._generator.net
        for name in self._generator.config.shapes():  # weights are read one at a time, so that memory holds one copy
            net.update(**{name: read(name)})
        try:
            ids = list(
                self._generator(
                    self._ids,
                    steps=TOKENS,
                    seed=self._seed + step,
                    stop=self._tokenizer.stops,
                    vocab=min(self._tokenizer.vocab, self._generator.config.vocab),
                )
            )
        except NotFinite:
            return None
        return self._tokenizer.decode([*self._ids, *ids])
