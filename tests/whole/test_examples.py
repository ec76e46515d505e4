"""The encoder and decoder examples: the models they make are valid, hexane runs the encoder and the
decoder, and three ways to compute the decoder agree."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest

import hexane as hx
from compare import assert_close

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL_ENCODER = {"layers": 2, "dim": 24, "heads": 3, "hidden": 48, "tokens": 10, "vocab": 50}


def load(path: str) -> ModuleType:
    name = "example_" + path.replace("/", "_")
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{path}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def encoder() -> ModuleType:
    return load("encoder/make_model")


@pytest.fixture(scope="module")
def decoder() -> ModuleType:
    return load("decoder/reference")


@pytest.fixture(scope="module")
def peer() -> ModuleType:
    return load("decoder/onnx_peer")


@pytest.fixture(scope="module")
def small(decoder):
    config = decoder.Config(dim=32, layers=3, heads=4, hidden=56, vocab=70, max_seq=12)
    return config, decoder.make_weights(config, seed=3)


def test_encoder_is_the_same_for_the_same_seed(encoder):
    config = encoder.Config(**SMALL_ENCODER)
    assert encoder.make_model(config).SerializeToString() == encoder.make_model(config).SerializeToString()


def test_encoder_output_depends_on_every_token(encoder):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = encoder.make_model(encoder.Config(**SMALL_ENCODER))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    token_ids = np.arange(10, dtype=np.int64)[None]
    before = session.run(None, {"token_ids": token_ids})[0]
    assert before.shape == (1, 10, 24)
    for i in range(10):
        changed = token_ids.copy()
        changed[0, i] += 20
        assert np.abs(session.run(None, {"token_ids": changed})[0] - before)[0, 0].max() > 1e-3


@pytest.mark.parametrize("options", [SMALL_ENCODER, {}], ids=["small", "full"])
def test_encoder_on_hexane_equals_onnxruntime(encoder, options, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    config = encoder.Config(**options)
    path = tmp_path / "encoder.onnx"
    onnx.save(encoder.make_model(config), path)
    token_ids = np.random.default_rng(1).integers(0, config.vocab, (1, config.tokens), dtype=np.int64)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    expected = session.run(None, {"token_ids": token_ids})[0]
    assert_close(hx.compile(path)(token_ids), expected)


def test_encoder_refuses_heads_that_do_not_divide_dim(encoder):
    with pytest.raises(ValueError, match="got 5, need a divisor of dim 24"):
        encoder.make_model(encoder.Config(**{**SMALL_ENCODER, "heads": 5}))


def test_encoder_script_writes_a_valid_file(tmp_path):
    out = tmp_path / "small.onnx"
    options = [f"--{name}={value}" for name, value in SMALL_ENCODER.items()]
    subprocess.run([sys.executable, EXAMPLES / "encoder/make_model.py", "--out", out, *options], check=True)
    onnx.checker.check_model(onnx.load(out), full_check=True)


def test_decoder_has_110_million_parameters(decoder):
    c = decoder.Config()
    per_layer = 4 * c.dim**2 + 3 * c.dim * c.hidden + 2 * c.dim
    assert round((c.vocab * c.dim + c.layers * per_layer + c.dim) / 1e6) == 110


def test_decoder_with_a_cache_equals_attention_over_the_whole_sequence(decoder, small):
    """The last step's logits, recomputed for all positions at once in fp64 with a causal mask."""
    config, weights = small
    tokens = [5, 61, 0, 33, 5, 69, 12]
    cached = decoder.Decoder(config, weights)
    logits = np.stack([cached.step(token, pos) for pos, token in enumerate(tokens)])
    assert_close(logits, whole_sequence_logits(config, weights, tokens).astype(np.float32))


def whole_sequence_logits(config, weights, tokens):
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    length, half = len(tokens), config.head_dim // 2
    turn = np.exp(1j * np.outer(np.arange(length), config.rotary_base ** (-np.arange(half) / half)))

    def norm(x, gain):
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + config.rms_epsilon) * gain

    def heads(x):
        return x.reshape(length, config.heads, config.head_dim).swapaxes(0, 1)

    def rotate(x):
        pairs = heads(x).reshape(config.heads, length, half, 2)
        turned = (pairs[..., 0] + 1j * pairs[..., 1]) * turn
        return np.stack([turned.real, turned.imag], axis=-1).reshape(config.heads, length, -1)

    x = w["embedding"][tokens]
    for i in range(config.layers):
        h = norm(x, w[f"layer{i}.attention_norm"])
        query, key, value = (h @ w[f"layer{i}.{name}"].T for name in ("query", "key", "value"))
        scores = rotate(query) @ rotate(key).swapaxes(1, 2) / np.sqrt(config.head_dim)
        scores = np.exp(np.where(np.tri(length, dtype=bool), scores, -np.inf))
        context = scores / scores.sum(axis=-1, keepdims=True) @ heads(value)
        x = x + context.swapaxes(0, 1).reshape(length, -1) @ w[f"layer{i}.output"].T
        h = norm(x, w[f"layer{i}.mlp_norm"])
        gate = h @ w[f"layer{i}.gate"].T
        x = x + gate / (1 + np.exp(-gate)) * (h @ w[f"layer{i}.up"].T) @ w[f"layer{i}.down"].T
    return norm(x, w["norm"]) @ w["embedding"].T


def test_decoder_refuses_a_position_beyond_its_cache(decoder, small):
    with pytest.raises(ValueError, match="got 12, need 0 <= pos < 12"):
        decoder.Decoder(*small).step(0, 12)


@pytest.mark.parametrize("threads", [1, 2])
def test_decoder_on_hexane_equals_the_reference_token_by_token(decoder, small, threads, monkeypatch):
    monkeypatch.setitem(sys.modules, "reference", decoder)
    config, weights = small
    net = hx.compile(load("decoder/model").build(config, weights), threads=threads)
    reference = decoder.Decoder(config, weights)
    token = 7
    for pos in range(config.max_seq):
        expected = reference.step(token, pos)
        logits = net(token=np.array([token], np.int32), position=np.array([pos], np.int32))
        assert_close(logits[0], expected)
        token = int(expected.argmax())


def test_onnx_peer_is_valid(peer, small):
    onnx.checker.check_model(peer.make_peer(*small), full_check=True)


def test_onnx_peer_equals_the_reference_token_by_token(decoder, peer, small):
    onnxruntime = pytest.importorskip("onnxruntime")
    config, weights = small
    session = onnxruntime.InferenceSession(
        peer.make_peer(config, weights).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    reference = decoder.Decoder(config, weights)
    keys, values = np.zeros_like(reference.keys), np.zeros_like(reference.values)
    token = 7
    for pos in range(config.max_seq):
        expected = reference.step(token, pos)
        feed = {"token": np.array([token]), "pos": np.array([pos]), "past_k": keys, "past_v": values}
        logits, keys, values = session.run(["logits", "k", "v"], feed)
        assert_close(logits[0], expected)
        assert_close(keys, reference.keys)
        assert_close(values, reference.values)
        token = int(expected.argmax())


@pytest.mark.parametrize("threads", [1, 2])
def test_decoder_on_hexane_equals_onnxruntime_token_by_token(decoder, peer, small, threads, monkeypatch):
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.setitem(sys.modules, "reference", decoder)
    config, weights = small
    net = hx.compile(load("decoder/model").build(config, weights), threads=threads)
    session = onnxruntime.InferenceSession(
        peer.make_peer(config, weights).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    keys = np.zeros((config.layers, config.heads, config.max_seq, config.head_dim), np.float32)
    values, token = np.zeros_like(keys), 7
    for pos in range(config.max_seq):
        feed = {"token": np.array([token]), "pos": np.array([pos]), "past_k": keys, "past_v": values}
        expected, keys, values = session.run(["logits", "k", "v"], feed)
        assert_close(net(token=np.array([token], np.int32), position=np.array([pos], np.int32)), expected)
        token = int(expected.argmax())
    for i in range(config.layers):
        assert_close(net.read_state(f"layer{i}.keys"), keys[i])
        assert_close(net.read_state(f"layer{i}.values"), values[i])
