"""The scratch that kernels say their steps need is what a program of these steps takes when it runs."""

import numpy as np
import pytest

import hexane as hx
from hexane import _core
from hexane.emit.plan import emit_plan
from hexane.planning.extra_memory import ExtraBytes
from hexane.program import Program
from networks import small_networks

THREADS = (1, 2, 3, 8)


def attention_with_a_state() -> hx.Graph:
    """Products of two tensors that change, of a state that is written, and of one that none writes."""
    rng = np.random.default_rng(3)
    q = hx.input("q", (1, 4, 96, 64))
    kept = hx.state("kept", rng.standard_normal((1, 4, 96, 64)).astype(np.float32))
    cache = hx.state("cache", np.zeros((1, 4, 96, 64), np.float32))
    y = hx.scaled_dot_product_attention(q, hx.write_state(cache, q * 0.5, 0), kept)
    weight = hx.param("w", rng.standard_normal((64, 512)).astype(np.float32))
    return hx.graph({"y": hx.softmax(y @ weight, axis=-1)})


def conv_with_a_weight_that_changes() -> hx.Graph:
    rng = np.random.default_rng(4)
    x, w = hx.input("x", (1, 16, 64, 64)), hx.input("w", (32, 16, 3, 3))
    weight = rng.standard_normal((48, 32, 3, 3)).astype(np.float32)
    return hx.graph({"y": hx.conv(hx.relu(hx.conv(x, w, pad=1)), weight, pad=1)})


GRAPHS = {
    "states": attention_with_a_state,
    "weights that change": conv_with_a_weight_that_changes,
    **{name: model.SerializeToString for name, model in small_networks().items()},
}


def program(name: str, dtype: str, rows: int) -> Program:
    net = hx.compile(GRAPHS[name](), target="host", threads=1, dtype=dtype, memory=hx.Memory(rows=rows))
    assert isinstance(net, hx.Model)
    assert net.program is not None
    return net.program


@pytest.mark.parametrize("rows", [0, 1, 4])
@pytest.mark.parametrize("dtype", ["", "fp16"])
@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_say_the_scratch_that_a_program_takes(name: str, dtype: str, rows: int) -> None:
    made = program(name, dtype, rows)
    sections = emit_plan(made)
    want = {threads: _core.Program(sections, threads).scratch_bytes for threads in THREADS}
    assert {threads: ExtraBytes(threads).scratch(made) for threads in THREADS} == want
