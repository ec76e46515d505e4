"""Damaged MIL: thousands of mutants of whole programs, of their characters, words and lines. None crashes, and Error
alone comes out."""

import random
import re

import numpy as np
import pytest

import hexane as hx
from hexane.emit.mil import Mil
from hexane.errors import Error
from hexane.graph import Graph
from hexane.importers.mil import load_mil
from mil_programs import program

WORDS = [
    "tensor", "fp16", "fp32", "int32", "bool", "string", "uint64", "const", "conv", "concat", "split", "reshape", "slice_by_index", "tile", "pad",
    "reduce_sum", "layer_norm", "cast", "matmul", "true", "false", "BLOBFILE", "state", "func", "x", "y", "inf", "nan", "uint4", "int64",
    "0", "1", "-1", "2", "7", "16384", "1000000", "999999999999999", "9999999999999999999999", "0x1p-3", "0x7e00", "1e999", "0x1p99999", "64", "65",
    "18446744073709551615", "(", ")", "[", "]", "{", "}", "<", ">", "=", ",", ";", "->", '"', '"valid"', '"same"', '"custom"', '"fp16"', "\\", "\0", "é",
    "dict", "program", "name", "val", "[]", "[[[[[[[[[", "((((((((", "-", "0x", ".", "_",
]  # fmt: skip


def sources() -> list[Mil]:
    """Programs with most ops between them."""
    rng = np.random.default_rng(0)

    def w(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float16)

    x = hx.input("x", (1, 4, 6, 6), "fp16")
    y = hx.max_pool(hx.gelu(hx.conv(x, w(8, 2, 3, 3), w(8), groups=2, pad=1)), kernel_sizes=2, strides=2)
    y = hx.avg_pool(hx.conv_transpose(hx.prelu(y, w(8, 1, 1)), w(8, 4, 2, 2), strides=2), kernel_sizes=3, pad=1)
    parts = hx.split(hx.pad(y, begin=(0, 0, 1, 0), end=(0, 0, 1, 0)), axis=1, split_sizes=(1, 3))
    z = hx.concat(hx.tile(parts[0], reps=(1, 3, 1, 1)), parts[1], axis=1)[:, 1:5:2]
    flat = hx.layer_norm(hx.reshape(hx.transpose(z, perm=(0, 2, 3, 1)), shape=(4, -1)), w(24), w(24))
    image = hx.graph({"flat": hx.softmax(hx.linear(flat, w(5, 24), w(5))), "z": hx.clip(z, alpha=-1.0, beta=2.0)})
    q = hx.input("q", (2, 3, 4), "fp16")
    scores = hx.softmax(hx.matmul(q, q, transpose_y=True) * 0.5)
    other = hx.select(hx.greater(scores, 0.3), hx.rsqrt(scores), hx.leaky_relu(scores))
    top = hx.expand_dims(hx.reduce_max(other, axes=(2,), keep_dims=False), axes=(2,))
    more = hx.squeeze(hx.stack(hx.reduce_mean(other, axes=(2,)), top, axis=0), axes=(3,))
    attention = hx.graph(
        {"more": hx.cumsum(hx.reverse(more, axes=(1,)), axis=1), "other": hx.log(hx.exp2(other) + 1.0)}
    )
    return [program(graph) for graph in (image, attention)]


def mutant(text: str, draw: random.Random) -> str:
    for _ in range(draw.choice((1, 1, 1, 2, 3, 8))):
        kind = draw.randrange(7)
        if kind == 0:
            at = draw.randrange(len(text))
            text = text[:at] + draw.choice(WORDS) + text[at + draw.randrange(3) :]
        elif kind == 1:
            at = draw.randrange(len(text))
            text = text[:at] + text[at + draw.choice((1, 1, 5, 200)) :]
        elif kind in (2, 3):  # a word or number for another
            found = list(re.finditer(r"[\w.]+", text)) or [re.match("", text)]
            place, other = draw.choice(found), draw.choice(found)
            text = text[: place.start()] + (draw.choice(WORDS) if kind == 2 else other[0]) + text[place.end() :]
        elif kind == 4:  # lines: exchanged, dropped, twice
            lines = text.splitlines() or [""]
            a, b = draw.randrange(len(lines)), draw.randrange(len(lines))
            lines[a : a + 1] = draw.choice(([lines[b]], [], [lines[a], lines[a]], [lines[a], lines[b]]))
            text = "\n".join(lines)
        elif kind == 5:
            found = list(re.finditer(r"\d+", text)) or [re.match("", text)]
            place = draw.choice(found)
            text = (
                text[: place.start()]
                + str(draw.choice((0, 1, 2, 3, 8, 31, 1 << 16, 1 << 31, 1 << 63)))
                + text[place.end() :]
            )
        else:
            text = text[: draw.randrange(len(text))]
        if not text:
            return text
    return text


@pytest.mark.parametrize("count", [600, pytest.param(20_000, marks=pytest.mark.slow)])
def test_mutants_are_read_or_refused(count: int) -> None:
    draw, good = random.Random(11), sources()
    num_read = unplaced = 0
    for i in range(count):
        mil = good[i % len(good)]
        text = mutant(mil.text, draw)
        try:
            graph = load_mil(text, mil.weights)
        except Error as error:
            unplaced += not str(error).startswith("[MIL")
            continue
        num_read += 1
        assert isinstance(graph, Graph)
    assert 0 < num_read < count
    assert unplaced == 0


def test_long_text_takes_linear_time_and_no_stack() -> None:
    """Nesting without end, and tokens without end."""
    for text in (
        "(" * 100_000,
        "[" * 100_000,
        "program(1.3){" * 1000,
        "x" * 1_000_000,
        '"' + "a" * 1_000_000,
        "1" * 1_000_000,
        " " * 1_000_000,
    ):
        with pytest.raises(Error):
            load_mil(text)
        with pytest.raises(Error):
            load_mil(f"program(1.3) {{ func f<ios18>() {{ fp16 c = const()[val = fp16({text}")
