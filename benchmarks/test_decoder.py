"""Tokens of the 110M decoder next to onnxruntime on the same weights. Hexane and onnxruntime step in place, and their
logits are compared."""

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peers import onnxruntime_session

import hexane as hx

FOLDER = Path(__file__).parents[1] / "examples" / "decoder"
sys.path.append(str(FOLDER))
from model import build  # noqa: E402
from onnx_peer import make_peer  # noqa: E402
from reference import Config, make_weights  # noqa: E402

CONFIG = Config()
CACHED = 32  # tokens before the timed one
Step = Callable[[int, int], np.ndarray[Any, Any]]


@cache
def weights() -> dict[str, np.ndarray[Any, Any]]:
    return make_weights(CONFIG)


@cache
def peer_model() -> bytes:
    return bytes(make_peer(CONFIG, weights()).SerializeToString())


def hexane_step(threads: int, compress: str | None = None) -> Step:
    token, position = np.zeros(1, np.int32), np.zeros(1, np.int32)
    logits = np.empty((1, CONFIG.vocab), np.float32)
    net = hx.compile(build(CONFIG, weights()), threads=threads, compress=compress)
    call = net.bind(token=token, position=position, logits=logits)

    def step(new: int, at: int) -> np.ndarray[Any, Any]:
        token[0], position[0] = new, at
        call()
        return logits[0]

    return step


def onnxruntime_step(threads: int) -> Step:
    session = onnxruntime_session(peer_model(), threads)
    token, position = np.zeros(1, np.int64), np.zeros(1, np.int64)
    logits = np.empty((1, CONFIG.vocab), np.float32)
    caches = np.zeros((2, CONFIG.layers, CONFIG.heads, CONFIG.max_seq, CONFIG.head_dim), np.float32)
    binding = session.io_binding()
    for name, array in {"token": token, "pos": position, "past_k": caches[0], "past_v": caches[1]}.items():
        binding.bind_cpu_input(name, array)
    for name, array in {"logits": logits, "k": caches[0], "v": caches[1]}.items():
        binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def step(new: int, at: int) -> np.ndarray[Any, Any]:
        token[0], position[0] = new, at
        session.run_with_iobinding(binding)
        return logits[0]

    return step


@cache
def reference_logits() -> list[np.ndarray[Any, Any]]:
    """The logits of Hexane on one thread, which all other logits are compared with."""
    step = hexane_step(1)
    return [step(token, at).copy() for at, token in enumerate(tokens())]


def tokens() -> list[int]:
    return [int(t) for t in np.random.default_rng(0).integers(0, CONFIG.vocab, CACHED + 1)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("contestant", ["hexane", "onnxruntime"])
def test_token(contestant: str, threads: int, contest: Callable[..., None]) -> None:
    step = (hexane_step if contestant == "hexane" else onnxruntime_step)(threads)
    for at, (token, want) in enumerate(zip(tokens(), reference_logits(), strict=True)):
        assert np.abs(step(token, at) - want).max() <= 1e-5 * np.abs(want).max()
    contest(f"110M decoder, one token | {threads} | -", contestant, lambda: step(tokens()[-1], CACHED))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("mode", [None, "int8", "palette4:g16", "palette6", "blockwise4:b32"])
def test_token_of_compressed_weights(mode: str | None, threads: int, contest: Callable[..., None]) -> None:
    step = hexane_step(threads, mode)
    for at, token in enumerate(tokens()):
        step(token, at)
    name = f"110M decoder, {mode or 'fp32'}, one token | {threads} | -"
    contest(name, "hexane", lambda: step(tokens()[-1], CACHED))


FASTER = {"int8": "1.67", "palette4:g16": "2.5", "blockwise4:b32": "2.5", "palette6": "-", "palette8": "-"}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("contestant", ["hexane", "hexane, fp32"])
@pytest.mark.parametrize("mode", FASTER)
def test_products_of_a_token(contestant: str, mode: str, threads: int, contest: Callable[..., None]) -> None:
    """All products of a token with stored weights, next to the same products with whole weights."""
    matrices = [w for w in weights().values() if w.ndim == 2]
    inputs = {n: hx.input(f"x{n}", (1, n)) for n in sorted({w.shape[1] for w in matrices})}
    graph = hx.graph({f"y{i}": hx.linear(inputs[w.shape[1]], w) for i, w in enumerate(matrices)})
    net = hx.compile(graph, threads=threads, compress=mode if contestant == "hexane" else None)
    assert isinstance(net, hx.Model)
    rng = np.random.default_rng(0)
    call = net.bind(**{f"x{n}": rng.standard_normal((1, n)).astype(np.float32) for n in inputs})
    contest(f"products of a 110M token, {mode} | {threads} | {FASTER[mode]}", contestant, call)


@pytest.mark.parametrize("threads", [1, 2])
def test_sum_of_as_many_numbers(threads: int, contest: Callable[..., None]) -> None:
    """A lower bound for a token: reads as many numbers from memory as the decoder has weights."""
    rows = sum(w.size for w in weights().values()) // 4096
    net = hx.compile(hx.reduce_sum(hx.input("x", (rows, 4096)), axes=1), threads=threads)
    call = net.bind(x=np.ones((rows, 4096), np.float32))
    contest(f"sum of {rows * 4096 / 1e6:.0f}M numbers | {threads} | -", "hexane", call)
