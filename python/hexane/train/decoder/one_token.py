"""A decoder's step for one token or a block of tokens. Keys and values of the previous tokens are states of the
program."""

from collections.abc import Mapping

import numpy as np

from hexane import build as hx
from hexane.build import Tensor
from hexane.graph import Array, Graph
from hexane.importers.weights import as_tensor
from hexane.train.decoder.config import POSITIONS, LlamaConfig
from hexane.train.decoder.layers import Layers
from hexane.train.decoder.model import checked_weights
from hexane.train.decoder.rotary import rotary_angles

HIDDEN, HIDDEN_AFTER = "hidden", "hidden_after"
NEW = "new_"  # begins the names of outputs that are new rows of a cache


def one_token(
    config: LlamaConfig,
    weights: Mapping[str, Array | Tensor],
    *,
    replaceable: bool = False,
    layers: range | None = None,
) -> Graph:
    """Returns the graph token, position (1,) int32 -> logits (1, vocab). Steps of all earlier positions must have run
    before.

    Each layer has two states (kv_heads, seq, head_dim). The step writes one row of each state. Weights, by the names of
    `config.shapes()`, are constants, or params if `replaceable`. layers: the range of layers to run. If `layers` omits
    the first layer, the input `hidden` (1, dim) fp16 replaces the token; if it omits the last layer, the output
    `hidden_after` replaces the logits. Raises Error if the weights do not fit the config.
    """
    step = _Step(config, checked_weights(config, weights, in_16_bits=True), replaceable)
    run = range(config.layers) if layers is None else layers
    x = step.run(run)
    outputs = {"logits": step.logits(x)} if run.stop == config.layers else _handed_on(x)
    return hx.graph(outputs, name="one_token")


def block(
    config: LlamaConfig,
    weights: Mapping[str, Array | Tensor],
    count: int,
    window: int,
    *,
    every: bool = False,
    layers: range | None = None,
) -> Graph:
    """Returns the graph tokens (count,), position (1,), last (1,) int32 -> logits (1, vocab) after the token with the
    index `last`; with `every`, the graph tokens, position -> logits (count, vocab) after each token. A block of one
    token has the input `token` and no `last`.

    position: of the first token; `position + count` is at most `window`. The step writes `count` rows of the states of
    `one_token`, and reads the first `window` rows. Rows of tokens after `last` are padding: later steps overwrite them.
    layers: see `one_token`. Raises Error if the weights do not fit the config.
    """
    step = _Block(config, checked_weights(config, weights, in_16_bits=True), count, window)
    run = range(config.layers) if layers is None else layers
    x = step.run(run)
    if run.stop < config.layers:
        return hx.graph(_handed_on(x), name=f"block_{count}_{window}")
    x = x if count == 1 or every else hx.gather(x, hx.input("last", (1,), "int32"))
    return hx.graph({"logits": step.logits(x)}, name=f"block_{count}_{window}{'_every' if every else ''}")


def block_with_ports(
    config: LlamaConfig, weights: Mapping[str, Array | Tensor], count: int, *, layers: range | None = None
) -> Graph:
    """Returns the graph of `block` for all rows of the cache, with the cache as inputs and outputs in place of states.

    Inputs `keys_0`, `values_0` and so on, (kv_heads, seq, head_dim) fp16, are the rows of earlier tokens; outputs
    `new_keys_0`, `new_values_0`, (kv_heads, count, head_dim) fp16, are the rows of this block. The caller writes them
    to the cache from `position` on. The graph never reads rows from `position` on, so they may have any finite
    contents. layers: see `one_token`. Raises Error if the weights do not fit the config.
    """
    step = _BlockWithPorts(config, checked_weights(config, weights, in_16_bits=True), count)
    run = range(config.layers) if layers is None else layers
    x = step.run(run)
    if run.stop < config.layers:
        outputs = _handed_on(x)
    else:
        outputs = {"logits": step.logits(x if count == 1 else hx.gather(x, hx.input("last", (1,), "int32")))}
    return hx.graph({**outputs, **step.new_rows}, name=f"block_{count}_with_ports")


def cache_ports(config: LlamaConfig, layers: range) -> dict[str, tuple[int, int, int]]:
    """Returns the names and shapes of the cache's inputs for these layers."""
    shape = (config.kv_heads, config.seq, config.head_dim)
    return {f"{name}_{i}": shape for i in layers for name in ("keys", "values")}


def _handed_on(x: Tensor) -> dict[str, Tensor]:
    """Returns the output for the next layers, in fp16 as Core ML packages have it."""
    return {HIDDEN_AFTER: hx.cast(x, dtype="fp16")}


class _Step(Layers):
    """The layers for one token at one position."""

    def __init__(self, config: LlamaConfig, weights: Mapping[str, Array | Tensor], replaceable: bool) -> None:
        super().__init__(
            config,
            {name: hx.param(name, given) if replaceable else as_tensor(given) for name, given in weights.items()},
        )
        self.count, self.window = 1, config.seq
        self.token = hx.input("token", (1,), "int32")
        self.position = hx.input("position", (1,), "int32")
        self.places = self.position
        self._begin()

    def _begin(self) -> None:
        c = self.config
        self.angles = {
            local: self._rows(*rotary_angles(c, local)) for local in ((False, True) if c.local else (False,))
        }
        keys = hx.const(np.arange(self.window, dtype=np.int32))
        last = self.places if self.count == 1 else hx.reshape(self.places, shape=(self.count, 1))
        seen = keys <= last  # (window,) or (count, window)
        self.masks = {False: seen, True: seen}
        if c.local and c.window < self.window:
            self.masks[True] = hx.logical_and(seen, keys > last - c.window)

    def _rows(self, cos: Array, sin: Array) -> tuple[Tensor, Tensor]:
        of = [hx.const(np.ascontiguousarray(table[: self.window])) for table in (cos, sin)]
        return hx.gather(of[0], self.places), hx.gather(of[1], self.places)

    def mask(self, local: bool) -> Tensor | None:
        return self.masks[local]

    def begun(self) -> Tensor:
        """Returns the embeddings of the tokens, (count, dim)."""
        table = self.weights.get(POSITIONS)
        return self.embedded(self.token, None if table is None else hx.gather(table, self.places))

    def run(self, layers: range) -> Tensor:
        """Returns the result of these layers, (count, dim)."""
        if layers.start:
            x = hx.cast(hx.input(HIDDEN, (self.count, self.config.dim), "fp16"), dtype="fp32")
        else:
            x = self.begun()
        for i in layers:
            x = self.layer(i, x)
        return x

    def attention(self, i: int, x: Tensor) -> Tensor:
        """Query heads that share a key head are rows of one matrix product: (kv_heads, queries per kv head,
        head_dim)."""
        c = self.config

        def heads(name: str, count: int) -> Tensor:
            return hx.reshape(self.projected(i, name, x), shape=(count, 1, c.head_dim))

        def cached(name: str, new: Tensor) -> Tensor:
            cache = hx.state(f"layers.{i}.{name}", (c.kv_heads, c.seq, c.head_dim))
            return hx.write_state(cache, new, self.position, axis=1)

        query = self.placed(i, "q_norm", heads("q_proj", c.heads))
        query = hx.reshape(query, shape=(c.kv_heads, c.heads // c.kv_heads, c.head_dim))
        keys = cached("keys", self.placed(i, "k_norm", heads("k_proj", c.kv_heads)))
        values = cached("values", heads("v_proj", c.kv_heads))
        y = self.attend(i, query, keys, values)
        return self.product(i, "self_attn.o_proj", hx.reshape(y, shape=(1, c.heads * c.head_dim)))


class _Block(_Step):
    """The layers for a block of consecutive tokens, which read only the first positions of the cache."""

    def __init__(self, config: LlamaConfig, weights: Mapping[str, Array | Tensor], count: int, window: int) -> None:
        Layers.__init__(self, config, {name: as_tensor(given) for name, given in weights.items()})
        self.count, self.window = count, window
        self.token = hx.input("token" if count == 1 else "tokens", (count,), "int32")
        self.position = hx.input("position", (1,), "int32")
        self.places = self.position + hx.const(np.arange(count, dtype=np.int32))
        self._begin()

    def attention(self, i: int, x: Tensor) -> Tensor:
        """Queries have the axes (kv_heads, queries of each, count, head_dim), keys (kv_heads, 1, window, head_dim)."""
        c, count = self.config, self.count
        shared = c.heads // c.kv_heads

        def heads(name: str, of_each: int) -> Tensor:
            y = hx.reshape(self.projected(i, name, x), shape=(count, c.kv_heads, of_each, c.head_dim))
            return hx.transpose(y, perm=(1, 2, 0, 3))

        def cached(name: str, new: Tensor) -> Tensor:
            seen = self.cached(i, name, hx.reshape(new, shape=(c.kv_heads, count, c.head_dim)))
            return hx.reshape(seen, shape=(c.kv_heads, 1, seen.shape[1], c.head_dim))

        query = self.placed(i, "q_norm", heads("q_proj", shared))
        keys = cached("keys", self.placed(i, "k_norm", heads("k_proj", 1)))
        values = cached("values", heads("v_proj", 1))
        y = hx.transpose(self.attend(i, query, keys, values), perm=(2, 0, 1, 3))
        return self.product(i, "self_attn.o_proj", hx.reshape(y, shape=(count, c.heads * c.head_dim)))

    def cached(self, i: int, name: str, new: Tensor) -> Tensor:
        """Writes the new rows (kv_heads, count, head_dim) of a cache, and returns the rows that queries may see."""
        c = self.config
        cache = hx.state(f"layers.{i}.{name}", (c.kv_heads, c.seq, c.head_dim))
        whole = hx.write_state(cache, new, self.position, axis=1)
        return whole if self.window == c.seq else whole[:, : self.window]


class _BlockWithPorts(_Block):
    """The layers for a block of consecutive tokens, which see the rows of an input and their own rows."""

    def __init__(self, config: LlamaConfig, weights: Mapping[str, Array | Tensor], count: int) -> None:
        super().__init__(config, weights, count, config.seq)
        self.new_rows: dict[str, Tensor] = {}

    def _begin(self) -> None:
        """Masks are true where a key of the cache is before `position`, and where a key of the block is not after the
        query. `flags` is 1 for keys of the cache, so that one comparison decides both."""
        super()._begin()
        c, count = self.config, self.count
        query, old, new = np.arange(count)[:, None], np.arange(c.seq)[None], np.arange(count)[None]
        flags = hx.const(np.array([1] * c.seq + [0] * count, np.int32)) * self.position

        def distances(of_old: Array, of_new: Array) -> Tensor:
            shape = (count, c.seq), (count, count)
            parts = [np.broadcast_to(one, to) for one, to in zip((of_old, of_new), shape, strict=True)]
            table = np.concatenate(parts, axis=1).astype(np.int32)
            return hx.const(table[0] if count == 1 else table) - flags

        seen = distances(old, new - query - 1) < hx.const(np.int32(0))
        self.masks = {False: seen, True: seen}
        if c.local and c.window < c.seq + count:
            near = distances(old - query + c.window, new - query + c.window) > hx.const(np.int32(0))
            self.masks[True] = hx.logical_and(seen, near)

    def cached(self, i: int, name: str, new: Tensor) -> Tensor:
        port = f"{name}_{i}"
        cache = hx.input(port, cache_ports(self.config, range(i, i + 1))[port], "fp16")
        self.new_rows[f"{NEW}{port}"] = hx.cast(new, dtype="fp16")
        return hx.concat(hx.cast(cache, dtype="fp32"), new, axis=1)
