"""Adapters on a base in few bits: a training on the decoded base, and what it takes of memory."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_writer
import hexane as hx
from decoders import decoder_weights, logits_in_numpy
from hexane.emit.plan import emit_plan
from hexane.graph import Array
from hexane.train.decoder.files import read_stored
from hexane.train.decoder.lora import array_of

# Every matrix has at least 4096 numbers.
SIZES: dict[str, Any] = {"vocab": 96, "dim": 64, "hidden": 136, "layers": 2, "heads": 4, "seq": 12}
CONFIGS: dict[str, dict[str, Any]] = {"MHA": {}, "untied": {"tied": False, "rope": "half", "theta": 5e5}}
LORA = hx.train.Lora(3, 12.0)
MODES = [
    "int8", "blockwise4:b32", "blockwise8:b8", "palette2", "palette4", "palette6", "palette8", "palette4:g8",
    "palette6:g16", "palette4:int8",
]  # fmt: skip


def config(name: str = "MHA") -> hx.train.LlamaConfig:
    return hx.train.LlamaConfig(**{**SIZES, **CONFIGS[name]})


def batch(c: hx.train.LlamaConfig) -> dict[str, Array]:
    rng = np.random.default_rng(2)
    return {name: rng.integers(0, c.vocab, (2, c.seq)).astype(np.int32) for name in ("tokens", "labels")}


def adapters(c: hx.train.LlamaConfig) -> dict[str, Array]:
    rng = np.random.default_rng(5)
    return {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in LORA.shapes(c).items()}


def in_few_bits(c: hx.train.LlamaConfig, mode: str, **options: Any) -> hx.train.Llama:
    return hx.train.llama(c, weights=decoder_weights(c), batch=2, lora=LORA, compress=mode, **options)


def of_decoded(c: hx.train.LlamaConfig, model: hx.train.Llama, **options: Any) -> hx.train.Llama:
    """On the decoded base of the model, in fp32."""
    weights = {name: array_of(tensor) for name, tensor in model.frozen.items()}
    return hx.train.llama(c, weights=weights, batch=2, lora=LORA, **options)


def trained(model: hx.train.Llama, threads: int = 1) -> hx.Model:
    step = hx.train.step(model.loss, list(model.params.values()), hx.train.adamw(1e-3), clip=1.0, accumulate=2)
    net = hx.compile(step, threads=threads)
    assert isinstance(net, hx.Model)
    return net


def off(got: Array, want: Array) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def gradients(c: hx.train.LlamaConfig, model: hx.train.Llama) -> dict[str, Array]:
    found = hx.grad(model.loss, list(model.params.values()))
    net = hx.compile(hx.graph(dict(zip(model.params, found, strict=True))), threads=1)
    net.update(**adapters(c))
    got: dict[str, Array] = net(**batch(c))
    return got


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_those_of_the_decoded_base(mode: str, name: str, checkpoints: bool) -> None:
    c = config(name)
    model = in_few_bits(c, mode, checkpoints=checkpoints)
    assert all(len(t.shape) == 1 or t.value.node.op != "const" for t in model.frozen.values())
    got, want = (gradients(c, m) for m in (model, of_decoded(c, model, checkpoints=checkpoints)))
    assert got.keys() == LORA.shapes(c).keys()
    for adapter, array in want.items():
        assert off(got[adapter], array) < 5e-6, adapter


def largest(weight: Array, block: int) -> Array:
    """For each number the largest of its block."""
    blocks = np.abs(weight).reshape(len(weight), -1, block)
    return blocks.max(-1, keepdims=True).repeat(block, -1).reshape(weight.shape)


@pytest.mark.parametrize(("mode", "steps"), [("int8", 127), ("blockwise4:b8", 7)])
def test_gradients_are_the_slopes_of_the_loss_in_numpy(mode: str, steps: int) -> None:
    c, w = config(), decoder_weights(config())
    model, values, fed = in_few_bits(c, mode), adapters(c), batch(c)
    base = {name: array_of(tensor).astype(np.float64) for name, tensor in model.frozen.items()}
    for name, array in base.items():
        error = np.abs(array - w[name])
        assert (array.ndim == 2) == bool(error.any())
        if array.ndim == 2:
            assert (error <= largest(w[name], array.shape[1] if mode == "int8" else 8) / steps).all(), name

    def loss(found: dict[str, Array]) -> float:
        merged = dict(base)
        for name, b in found.items():
            if name.endswith(".lora_B.weight"):
                stem = name.removesuffix(".lora_B.weight")
                merged[f"{stem}.weight"] = merged[f"{stem}.weight"] + LORA.scale * b @ found[f"{stem}.lora_A.weight"]
        logits = logits_in_numpy(c, merged, fed["tokens"])
        logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        return float(-np.take_along_axis(logs, fed["labels"][..., None], -1).mean())

    got, rng = gradients(c, model), np.random.default_rng(6)
    wide = {name: array.astype(np.float64) for name, array in values.items()}
    for part in ("lora_A", "lora_B"):
        way = {n: rng.standard_normal(a.shape) if part in n else np.zeros(a.shape) for n, a in wide.items()}
        ends = [loss({n: a + sign * 1e-5 * way[n] for n, a in wide.items()}) for sign in (1, -1)]
        slope = (ends[0] - ends[1]) / 2e-5
        assert abs(sum(float((got[n] * way[n]).sum()) for n in got) - slope) < 1e-4 * abs(slope) + 5e-5


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("mode", ["int8", "blockwise4:b32", "palette4", "palette6:g16"])
def test_a_training_has_the_losses_and_adapters_of_the_decoded_base(mode: str, threads: int) -> None:
    c, fed = config(), batch(config())
    model = in_few_bits(c, mode)
    net, want = trained(model, threads), trained(of_decoded(c, model), threads)
    # In fp32 the gain of a norm becomes a factor of the next weight, so that gradients have other roundings.
    losses = [(float(net(**fed)["loss"]), float(want(**fed)["loss"])) for _ in range(20)]
    assert losses[0][0] == losses[0][1]
    assert max(abs(one - other) for one, other in losses) < 1e-5
    assert losses[-1][0] < losses[0][0] - 0.01


@pytest.mark.parametrize("mode", MODES)
def test_nothing_in_the_plan_has_the_size_of_a_decoded_weight(mode: str) -> None:
    """Activations have other sizes."""
    c = config("untied")
    assert 2 * c.seq not in {d for shape in c.shapes().values() for d in shape}
    model = in_few_bits(c, mode)
    net, whole = trained(model), trained(of_decoded(c, model))
    sizes = {shape[0] * shape[1] for shape in c.shapes().values() if len(shape) == 2}

    def decoded(made: hx.Model) -> int:
        assert made.program is not None
        rows = emit_plan(made.program)
        kinds = [rows["strings"][place:].split(b"\0")[0] for place in rows["tensors"]["dtype"].tolist()]
        shapes = [tuple(s[:n]) for s, n in zip(rows["tensors"]["shape"], rows["tensors"]["rank"], strict=True)]
        return sum(k == b"fp32" and int(np.prod(s)) in sizes for k, s in zip(kinds, shapes, strict=True))

    assert decoded(whole) > 0
    assert decoded(net) == 0
    numbers = sum(int(np.prod(shape)) for shape in c.shapes().values() if len(shape) == 2)
    bits = 8 if mode in ("int8", "blockwise8:b8", "palette6", "palette8", "palette6:g16") else 4
    assert net.memory["weights"] < 1.5 * numbers * bits // 8 + 60_000
    assert net.memory["arena"] == whole.memory["arena"]


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("palette4:g12", "embed_tokens.weight as palette4:g12, need int8, blockwise4:b32"),
        ("palette4:v2", "got model.embed_tokens.weight as palette4:v2, need int8"),
        ("sparse:0.5", "got 'sparse:0.5', need int8"),
        ("sparse:0.5+palette4", "got 'sparse:0.5.palette4', need int8"),
        ("auto", "got 'auto', need int8"),
        ("int9", "int9"),
    ],
)
def test_encodings_that_would_be_decoded_are_refused(mode: str, told: str) -> None:
    with pytest.raises(hx.Error, match=told):
        in_few_bits(config(), mode)


def test_weights_that_are_trained_stay_in_fp32() -> None:
    c = config()
    with pytest.raises(hx.Error, match="compress: got it without lora"):
        hx.train.llama(c, weights=decoder_weights(c), compress="int8")
    with pytest.raises(hx.Error, match=r"got a tensor without lora, need an array"):
        hx.train.llama(c, weights=in_few_bits(c, "int8").frozen)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_the_few_bits_of_a_gguf_file_stay(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "base.gguf"
    c = hx.train.LlamaConfig(**{**SIZES, "hidden": 160, "tied": False, "rope": "half"})
    listed = gguf_writer.tensors_of("llama", c, decoder_weights(c), kind)
    gguf_writer.write(path, gguf_writer.metadata_of("llama", c), listed)
    model = hx.train.load_llama(path, batch=2, lora=LORA)
    stored = [name for name, t in read_stored(path)[1].items() if isinstance(t, hx.Tensor)]
    assert all(model.frozen[name].value.node.op == "decode_blocks" for name in stored)
    assert "model.layers.0.mlp.down_proj.weight" in stored
    plain = hx.train.llama(model.config, weights=hx.train.read_llama(path)[1], batch=2, lora=LORA)
    got = gradients(model.config, model)
    for name, array in gradients(model.config, plain).items():
        assert off(got[name], array) < 5e-6, name


PEAK = """
import sys
import numpy as np
import hexane as hx

def most_memory():  # of this program: getrusage counts what the parent had when it forked
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024

before = most_memory()
c = hx.train.LlamaConfig(vocab=4096, dim=512, hidden=1408, layers=8, heads=8, kv_heads=8, seq=32)
lora, mode = hx.train.Lora(8), sys.argv[2]
model = hx.train.load_llama(sys.argv[1], seq=32, lora=lora, compress=None if mode == "fp32" else mode)
net = hx.compile(hx.train.step(model.loss, list(model.params.values()), hx.train.adamw(1e-3)), threads=1)
ids = np.arange(32, dtype=np.int32)[None]
net(tokens=ids, labels=ids)
print(most_memory() - before)
"""


def test_a_base_in_few_bits_takes_less_than_half_of_the_memory(tmp_path: Path) -> None:
    c = hx.train.LlamaConfig(vocab=4096, dim=512, hidden=1408, layers=8, heads=8, kv_heads=8, seq=32)
    rng = np.random.default_rng(0)
    w = {n: (rng.standard_normal(s, np.float32) * np.float32(0.02)) for n, s in c.shapes().items()}
    hx.train.save_llama(tmp_path / "base", c, w, format="hugging-face")
    peaks = {}
    for mode in ("fp32", "int8", "blockwise4:b32"):
        run = [sys.executable, "-c", PEAK, str(tmp_path / "base"), mode]
        peaks[mode] = int(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
    assert peaks["int8"] < 0.5 * peaks["fp32"], peaks
    assert peaks["blockwise4:b32"] < 0.5 * peaks["fp32"], peaks
