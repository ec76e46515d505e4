"""Text generation with a decoder, token by token."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache
from math import isfinite
from threading import Lock

import numpy as np

from hexane._core import give_back_free_memory
from hexane.build import Tensor
from hexane.compression import Weight
from hexane.compression.fit import Fitted
from hexane.errors import Error
from hexane.graph import Array, Graph
from hexane.options import Options
from hexane.runtime import Context, Model, compile
from hexane.runtime.compiler import target_of
from hexane.runtime.functions import Functions, FunctionsContext
from hexane.runtime.shared_weights import SharedWeights
from hexane.train.decoder.adapter_files import read_adapter
from hexane.train.decoder.config import LlamaConfig
from hexane.train.decoder.encoded import encoded_weights
from hexane.train.decoder.files import read_llama
from hexane.train.decoder.fitted import fit_to_text, text_graph
from hexane.train.decoder.formats import end_ids
from hexane.train.decoder.lora import merge_adapters
from hexane.train.decoder.one_token import block, one_token


class Generator:
    """A decoder from a file. Keys and values of the previous tokens are states of its program.

    path: see `hx.train.read_llama`. lora: adapters to merge into the weights, see `hx.train.read_adapter`. options: of
    `hx.compile`; None: the host, on all cores. context: positions in the cache, at most the model's; None: the model's.

    Raises Error as `read_llama`, `read_adapter` and `compile` do.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        lora: str | os.PathLike[str] | None = None,
        options: Options | None = None,
        context: int | None = None,
    ) -> None:
        config, weights = read_llama(path)
        if context is not None:
            if isinstance(context, bool) or not isinstance(context, int) or not 1 <= context <= config.seq:
                raise Error(f"[train.generate] context: got {context!r}, need 1 to the {config.seq} of the model")
            config = replace(config, seq=context)
        if lora is not None:
            weights = merge_adapters(config, weights, *read_adapter(lora, config, weights))
        self._begin(config, Steps(config, weights, options), end_ids(path))

    @classmethod
    def of_weights(
        cls, config: LlamaConfig, weights: Mapping[str, Array] | None = None, *, options: Options | None = None
    ) -> Generator:
        """Returns a decoder whose weights can be replaced between two texts with `net.update`. weights: by the names of
        `config.shapes()`; None: zeros.

        Raises Error if the weights do not fit the config.
        """
        if weights is None:
            weights = {name: np.zeros(shape, np.float32) for name, shape in config.shapes().items()}
        generator = cls.__new__(cls)
        generator._begin(config, Steps(config, weights, options, replaceable=True))
        return generator

    def _begin(self, config: LlamaConfig, steps: Steps, ends: frozenset[int] = frozenset()) -> None:
        self.config, self._steps, self.ends, self._text = config, steps, ends, 0

    @property
    def net(self) -> Model:
        """The compiled step of one token, which owns the states."""
        return self._steps.net

    def __call__(
        self,
        prompt: Sequence[int],
        *,
        steps: int = 256,
        temperature: float = 0.8,
        top_p: float = 0.9,
        seed: int = 0,
        stop: Collection[int] | None = None,
        vocab: int | None = None,
        top_k: int = 0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
    ) -> Iterator[int]:
        """Yields the generated tokens one by one: at most `steps`, and at most `seq` together with the prompt.

        temperature: 0: always the likeliest token. Above 0, logits are divided by it, and a token is drawn from the
        likeliest ones whose probabilities sum to `top_p`. Equal seeds give equal tokens. stop: ids that end the
        text and are not yielded; None: `ends`, the end tokens of the model's files. vocab: only ids below it are
        generated; None: all. top_k: choose among this many likeliest tokens; 0: all. min_p: choose among tokens with at
        least this fraction of the likeliest token's probability. repetition_penalty: positive logits of tokens already
        in the text are divided by it and negative ones multiplied, also at temperature 0; 1: no change. The order is
        penalty, temperature, top_k, top_p, min_p, as in transformers. Each call begins a new text.

        Raises Error for a prompt that is empty, does not fit into the model, or has ids beyond the vocabulary, and for
        numbers out of range.
        """
        ids, limit = list(prompt), self.config.vocab if vocab is None else vocab
        check_request(self.config, ids, steps, temperature, top_p, seed, limit)
        ends = self.ends if stop is None else frozenset(stop)
        draw = Sampler(temperature, top_p, seed, top_k=top_k, min_p=min_p, repetition_penalty=repetition_penalty)
        return self._tokens(ids, steps, draw, ends, limit)

    def logits(self, tokens: Sequence[int]) -> Iterator[Array]:
        """Yields the logits (vocab,) after each of the tokens, which begin a new text."""
        text = self._new_text()
        for position, token in enumerate(tokens):
            yield self._step(token, position, text)

    def _new_text(self) -> int:
        self._text += 1
        self.net.reset_state()
        return self._text

    def _tokens(self, ids: list[int], steps: int, draw: Sampler, stop: frozenset[int], limit: int) -> Iterator[int]:
        end = min(len(ids) + steps, self.config.seq)
        if len(ids) == end:
            return
        text = self._new_text()
        logits, seen = self._steps.prompt(ids), set(ids)
        for position in range(len(ids), end):
            token = draw(logits[:limit], seen)
            if token in stop:
                return
            seen.add(token)
            yield token
            if position + 1 < end:
                logits = self._step(token, position, text)

    def _step(self, token: int, position: int, text: int) -> Array:
        """Returns the logits after a token. text: its number; the states belong to the last text begun."""
        if text != self._text:
            raise Error(
                "[train.generate] got a step of an older text, need the newest: a newer generation reset this cache"
            )
        return self._steps.one(token, position)


BLOCKS = (256, 192, 128, 96, 64, 48, 32, 24, 16, 8)  # Tokens of a prompt in one call.
PASS = 6  # Reading all weights takes a call about as long as this many tokens' products.
MOST_ROWS = 64  # Tokens in one call that returns the logits after each of them.
FITTED = 64  # Tokens, in one call, of a text to which scales are fitted.
WINDOWS = (256, 1024, 4096, 16384)  # Cache positions that a program reads; a call uses the smallest sufficient number.


class Steps:
    """The programs of a decoder over one cache. The host has a program of one token and programs of a block of tokens.

    A program reads only the first positions of the cache, at least as many as the text has tokens. Programs are
    compiled when first needed, and share the weights. Chips, and decoders with replaceable weights, have the program of
    one token only.

    With `compress` in the options, weights are encoded once for all programs of the host. encodings: of weights whose
    name matches a pattern; text: tokens to whose activations block scales are fitted. Raises Error for modes that must
    run the network, such as "auto".
    """

    def __init__(
        self,
        config: LlamaConfig,
        weights: Mapping[str, Array | Tensor],
        options: Options | None = None,
        *,
        replaceable: bool = False,
        encodings: Mapping[str, str] | None = None,
        text: Sequence[int] = (),
    ) -> None:
        options = options or Options(target="host")
        self._config, self._weights = config, weights
        self._made: Functions | None = None
        self._shared: SharedWeights | None = None
        self._callers: Mapping[str, Context] = {}
        self._making = Lock()
        if replaceable or target_of(options).name != "host":
            self.net = program(config, weights, options, replaceable=replaceable)
            self._one: Context = self.net
            return
        if options.compression is not None:
            self._weights = encoded(config, weights, options, encodings, text)
            options = replace(options, compress=None)
        self._shared = SharedWeights(self._weights)
        self._weights = self._shared.arrays
        self._made = Functions(options, self._shared)
        self.net = self._compiled("one token", lambda constants: one_token(config, constants))
        self._callers = self._made
        self._one = self.net

    @property
    def weights(self) -> Mapping[str, Array | Tensor]:
        """The file's weights: in fp32, as matrices in the file's 16 bits, or encoded. Raises Error if the file has
        changed."""
        self._check_unchanged()
        return self._weights

    def context(self) -> Steps:
        """Returns an object with the same programs and weights, and its own cache."""
        other = copy(self)
        if self._made is None:
            other._one = self.net.context()
        else:
            other._callers = self._made.context()
            other._one = other._callers["one token"]
        return other

    def close(self) -> None:
        """Frees the cache of a context."""
        if isinstance(self._callers, FunctionsContext):
            self._callers.close()
        elif self._one is not self.net:
            self._one.close()

    def reset(self) -> None:
        """Sets the whole cache to 0."""
        self._one.reset_state()

    def one(self, token: int, position: int) -> Array:
        """Returns the logits (vocab,) after one token. Raises Error if a mapped file has changed."""
        self._check_unchanged()
        net, window = self._one, self._window(position + 1)
        if self._made is not None and window < self._config.seq:
            net = self._program(1, window)
        row: Array = _rows(net(token=np.array([token], np.int32), position=np.array([position], np.int32)))[0]
        return row

    def prompt(self, ids: Sequence[int], begin: int = 0) -> Array:
        """Returns the logits after the last of these tokens. The first `begin` tokens are already in the cache."""
        logits = None
        for place, part, count in self._blocks(ids, begin, BLOCKS[0]):
            if count == 1:
                logits = self.one(part[0], place)
                continue
            net = self._program(count, self._window(place + count))
            last = np.array([len(part) - 1], np.int32)
            logits = _rows(net(tokens=_padded(part, count), position=np.array([place], np.int32), last=last))[0]
        assert logits is not None
        return logits

    def rows(self, ids: Sequence[int]) -> Iterator[Array]:
        """Yields the logits (vocab,) after each of these tokens, which begin a text."""
        for begin, part, count in self._blocks(ids, 0, MOST_ROWS):
            if count == 1:
                yield self.one(part[0], begin)
                continue
            net = self._program(count, self._window(begin + count), every=True)
            yield from _rows(net(tokens=_padded(part, count), position=np.array([begin], np.int32)))[: len(part)]

    def _blocks(self, ids: Sequence[int], begin: int, most: int) -> Iterator[tuple[int, Sequence[int], int]]:
        """Yields parts of ids[begin:] that run in one call, each with its position and the size of its block, at most
        `most` tokens. A target without block programs runs each token alone."""
        while begin < len(ids):
            count = 1
            if self._made is not None:
                count = block_sizes(min(len(ids) - begin, most), min(self._config.seq - begin, 2 * most), most)[0]
            part = ids[begin : begin + count]
            yield begin, part, count
            begin += len(part)

    def _check_unchanged(self) -> None:
        if self._shared is not None:
            self._shared.check_unchanged()

    def _window(self, needed: int) -> int:
        return next((w for w in WINDOWS if needed <= w < self._config.seq), self._config.seq)

    def _program(self, count: int, window: int, every: bool = False) -> Context:
        assert self._made is not None
        assert self._shared is not None
        self._check_unchanged()
        name = f"{count} tokens of {window}{', every one' if every else ''}"
        with self._making:
            if name not in self._made:
                self._compiled(name, lambda given: block(self._config, given, count, window, every=every))
        return self._callers[name]

    def _compiled(self, name: str, graph: Callable[[Mapping[str, Tensor]], Graph]) -> Model:
        """Compiles the graph of these constants as one more function."""
        assert self._made is not None
        assert self._shared is not None
        model = self._made.add(name, graph(self._shared.constants))
        if self._shared.packed_only:
            give_back_free_memory()  # of the decoded weights, whose graph is gone
        return model


@lru_cache(maxsize=4096)
def block_sizes(tokens: int, room: int, most: int) -> tuple[int, ...]:
    """Returns the sizes of the blocks that run `tokens` tokens of a text fastest: the sum of their sizes, and `PASS`
    for each block, is the least. The last block may have padding, for which the cache has room. A block of one token
    is the program of one token. room: positions left in the cache, at least `tokens`; most: tokens of a block."""
    ways: list[tuple[int, ...]] = [(1,) * tokens]
    for size in BLOCKS:
        if size <= min(most, room):
            ways.append((size, *(block_sizes(tokens - size, room - size, most) if size < tokens else ())))
    return min(ways, key=lambda sizes: (sum(sizes) + PASS * len(sizes), len(sizes)))


def encoded(
    config: LlamaConfig,
    weights: Mapping[str, Array | Tensor],
    options: Options,
    encodings: Mapping[str, str] | None = None,
    text: Sequence[int] = (),
) -> Mapping[str, Array | Tensor]:
    """Returns the weights in the encoding of the options, as `Steps` encodes them. Raises Error as `Steps` does."""
    asked = options.compression
    assert asked is not None
    count = min(FITTED, config.seq, len(text))
    graph = text_graph(config, weights, count) if count else one_token(config, weights)

    def fit(chosen: Mapping[Weight, str]) -> Mapping[Weight, Fitted]:
        return fit_to_text(graph, chosen, text, options) if count else {}

    return encoded_weights(graph, weights, asked, target_of(options), options.num_threads, encodings, fit)


def _padded(part: Sequence[int], count: int) -> Array:
    padded = np.zeros(count, np.int32)
    padded[: len(part)] = part
    return padded


def _rows(logits: object) -> Array:
    assert isinstance(logits, np.ndarray)
    rows: Array = logits
    return rows


class NotFinite(Error):
    """Raised for logits that are not finite: no next token can be chosen."""


class Sampler:
    """Draws the next token from logits; for the arguments see `Generator`."""

    def __init__(
        self,
        temperature: float,
        top_p: float,
        seed: int,
        *,
        top_k: int = 0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
    ) -> None:
        where = "[train.generate]"
        if isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 0:
            raise Error(f"{where} top_k: got {top_k!r}, need an integer from 0 on")
        if not 0 <= min_p <= 1:
            raise Error(f"{where} min_p: got {min_p!r}, need a number from 0 to 1")
        if not (isfinite(repetition_penalty) and repetition_penalty > 0):
            raise Error(f"{where} repetition_penalty: got {repetition_penalty!r}, need a number above 0")
        self._temperature, self._top_p = temperature, top_p
        self._top_k, self._min_p, self._penalty = top_k, min_p, repetition_penalty
        self._random = np.random.Generator(np.random.PCG64(seed))

    def __call__(self, logits: Array, seen: Collection[int] = ()) -> int:
        """Returns the next token. seen: the tokens of the text so far. Raises NotFinite for logits that are not
        finite."""
        if not np.all(np.isfinite(logits)):
            raise NotFinite(
                "[train.generate] got logits that are not finite, need weights with finite logits:"
                " a training may have diverged"
            )
        if self._penalty != 1 and seen:
            known = np.array([one for one in seen if one < len(logits)], np.int64)
            logits = logits.copy()
            logits[known] = _penalised(logits[known], self._penalty)
        if self._temperature == 0:
            return int(np.argmax(logits))
        below = logits.astype(np.float64) - logits.max()
        with np.errstate(over="ignore"):  # a temperature near 0 gives -inf, whose share is 0
            shares = np.exp(below / self._temperature)
        if 0 < self._top_k < len(shares):
            shares[logits < np.partition(logits, -self._top_k)[-self._top_k]] = 0
        shares /= shares.sum()
        # Find the last token to keep. Likelier tokens sum to less than top_p, so the tail, from the last token to keep
        # on, sums to more than 1 - top_p. The last token to keep has the tail's largest share, at least the tail's
        # mean. Smaller shares need no sorting.
        likely = np.flatnonzero(shares >= (1 - self._top_p) / max(len(shares) - 1, 1) * (1 - 1e-9))
        order = likely[np.argsort(-shares[likely], kind="stable")]
        sums = np.cumsum(shares[order])
        kept = sums[: int(np.searchsorted(sums, self._top_p)) + 1]
        if self._min_p:
            kept = kept[: max(int((shares[order[: len(kept)]] >= self._min_p * shares[order[0]]).sum()), 1)]
        place = int(np.searchsorted(kept, self._random.random() * kept[-1], side="right"))
        return int(order[min(place, len(kept) - 1)])  # the product may round up to the last sum


def _penalised(logits: Array, penalty: float) -> Array:
    """Returns the penalised logits, clipped to the range of the dtype."""
    most = np.finfo(logits.dtype).max
    up, down = (min(factor, float(most)) for factor in (1 / max(penalty, 1 / float(most)), penalty))
    with np.errstate(over="ignore"):
        result: Array = np.clip(logits * np.where(logits > 0, up, down).astype(logits.dtype), -most, most)
    return result


def program(
    config: LlamaConfig,
    weights: Mapping[str, Array | Tensor],
    options: Options | None = None,
    *,
    replaceable: bool = False,
) -> Model:
    """The compiled step of one token; for the arguments see `one_token`."""
    model = compile(one_token(config, weights, replaceable=replaceable), options or Options(target="host"))
    assert isinstance(model, Model)
    return model


def generate(
    path: str | os.PathLike[str],
    prompt: Sequence[int],
    *,
    steps: int = 256,
    temperature: float = 0.8,
    top_p: float = 0.9,
    seed: int = 0,
    stop: Collection[int] | None = None,
) -> list[int]:
    """Returns the tokens that a decoder in a file generates after a prompt. `Generator` yields them one by one, and
    explains the arguments; `Tokenizer.encode` and `decode` convert between text and tokens."""
    ids = Generator(path)(prompt, steps=steps, temperature=temperature, top_p=top_p, seed=seed, stop=stop)
    return list(ids)


def check_request(
    config: LlamaConfig, ids: list[int], steps: int, temperature: float, top_p: float, seed: int, vocab: int
) -> None:
    """Raises Error for a prompt that is empty, too long or outside the vocabulary, and for numbers out of range."""
    where = "[train.generate]"
    if not ids:
        raise Error(f"{where} prompt: got no tokens, need at least one, such as the mark that begins a text")
    if len(ids) > config.seq:
        raise Error(f"{where} prompt: got {len(ids)} tokens, need at most the {config.seq} of the context")
    for one in ids:
        if not 0 <= one < config.vocab:
            raise Error(f"{where} prompt: got the id {one}, need 0 to {config.vocab - 1}: the model's vocabulary")
    for name, value, least in (("steps", steps, 0), ("seed", seed, 0), ("vocab", vocab, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise Error(f"{where} {name}: got {value!r}, need an integer from {least} on")
    if not (isfinite(temperature) and temperature >= 0):
        raise Error(f"{where} temperature: got {temperature!r}, need 0 or more")
    if not 0 < top_p <= 1:
        raise Error(f"{where} top_p: got {top_p!r}, need a number above 0, at most 1")
