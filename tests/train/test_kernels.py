"""The engine's programs of a training step: their shapes, their numbers, and what chips make of them."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Array, Graph, Value
from hexane.train.kernels import Kernel, Tap

SMALL = {"vocab": 61, "dim": 32, "hidden": 48, "layers": 2, "heads": 4, "seq": 16}
CONFIGS = {"MHA": {}, "GQA": {"kv_heads": 2}, "MQA": {"kv_heads": 1, "tied": False}, "half": {"rope": "half"}}
SIX = ("fwdAttn", "fwdFFN", "ffnBwd", "sdpaBwd1", "sdpaBwd2", "qkvBwd")


def gradients(loss: hx.Tensor, params: Sequence[hx.Tensor]) -> Graph:
    found = hx.grad(loss, list(params))
    return hx.graph({"loss": loss, **{f"d{i}": g for i, g in enumerate(found)}})


def decoder(batch: int = 1, **changes: object) -> Graph:
    config = hx.train.LlamaConfig(**{**SMALL, **changes})
    rng = np.random.default_rng(5)
    weights = {n: rng.normal(0, 0.3, s).astype(np.float32) + (len(s) == 1) for n, s in config.shapes().items()}
    model = hx.train.llama(config, weights=weights, batch=batch)
    return gradients(model.loss, list(model.params.values()))


def true_values(step: Graph, made: Sequence[Kernel]) -> dict[Value, Array]:
    """What the step computes for every tap."""
    values = list(dict.fromkeys(tap.value for k in made for tap in (*k.inputs, *k.outputs)))
    graph = hx.graph({f"v{i}": hx.Tensor(v) for i, v in enumerate(values)})
    rng = np.random.default_rng(6)
    feeds = {}
    for port in graph.inputs:
        kind = port.type
        feeds[str(port.node.attrs["name"])] = (
            rng.normal(0, 1, kind.shape).astype(np.float32)
            if kind.dtype.kind == "float"
            else rng.integers(0, 61, kind.shape).astype(np.int32)
        )
    found = hx.compile(graph)(**feeds)
    return {v: found[f"v{i}"] for i, v in enumerate(values)}


def packed(taps: Sequence[Tap], values: dict[Value, Array]) -> Array:
    return np.concatenate([tap.pack(values[tap.value]) for tap in taps], axis=1)


def off(got: Array, want: Array) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def held_to_the_step(step: Graph, made: Sequence[Kernel]) -> None:
    values = true_values(step, made)
    for k in made:
        got, want = hx.compile(k.graph)(x=packed(k.inputs, values)), packed(k.outputs, values)
        assert off(got, want) < 1e-5, k.name
        start = 0
        for tap in k.outputs:
            part = got[:, start : start + tap.channels]
            assert off(tap.unpack(part), values[tap.value]) < 1e-5, (k.name, tap.name)
            start += tap.channels


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", CONFIGS)
def test_programs_compute_what_the_step_does(name: str, batch: int) -> None:
    step = decoder(batch, **CONFIGS[name])
    made = hx.train.kernels(step)
    assert Counter(k.kind for k in made) == dict.fromkeys(SIX, 2)
    held_to_the_step(step, made)


def test_shapes_are_those_of_the_reference() -> None:
    """The table of the reference's kernels: D channels, H hidden, SC = heads times tokens."""
    d, h, sc = 768, 2048, 12 * 256
    config = hx.train.LlamaConfig(vocab=40, dim=d, hidden=h, layers=1, heads=12, seq=256)
    model = hx.train.llama(config)
    made = {k.kind: k for k in hx.train.kernels(gradients(model.loss, list(model.params.values())))}
    want = {
        "fwdAttn": (d, 6 * d),
        "fwdFFN": (d, 2 * d + 3 * h),
        "ffnBwd": (d + 2 * h, d + 2 * h),
        "sdpaBwd1": (4 * d, d + 2 * sc),
        "sdpaBwd2": (2 * sc + 2 * d, 2 * d),
        "qkvBwd": (3 * d, d),
    }
    for kind, (inside, outside) in want.items():
        (x,), (y,) = made[kind].graph.inputs, made[kind].graph.outputs
        assert x.shape == (1, inside, 1, 256), kind
        assert y.value.shape == (1, outside, 1, 256), kind
    held = {kind: {w.split(".")[-2] for w in k.weights} for kind, k in made.items()}
    assert held["fwdAttn"] == {"input_layernorm", "q_proj", "k_proj", "v_proj", "o_proj"}
    assert held["fwdFFN"] == {"post_attention_layernorm", "gate_proj", "up_proj", "down_proj"}
    assert held["ffnBwd"] == {"gate_proj", "up_proj", "down_proj"}
    assert held["sdpaBwd1"] == {"o_proj"}
    assert held["sdpaBwd2"] == set()
    assert held["qkvBwd"] == {"q_proj", "k_proj", "v_proj"}


def test_twelve_layers_have_sixty_programs_with_weights() -> None:
    made = hx.train.kernels(decoder(layers=12))
    assert len([k for k in made if k.weights]) == 60
    assert Counter(k.kind for k in made if not k.weights) == {"sdpaBwd2": 12}
    assert [k.name for k in made[:2]] == ["layer0.fwdAttn", "layer0.fwdFFN"]
    assert [k.name for k in made[-2:]] == ["layer0.sdpaBwd2", "layer0.qkvBwd"]


def test_with_the_head_on_the_engine_there_are_eighty_six() -> None:
    """As the reference has them: the last norm, the classifier, and 24 gradients of norms more."""
    made = hx.train.kernels(decoder(layers=12), variant="ane-head")
    assert len([k for k in made if k.weights]) == 86
    kinds = Counter(k.kind for k in made)
    assert kinds["normBwdAttn"] == kinds["normBwdFFN"] == 12
    (classifier,) = (k for k in made if k.kind == "classifier")
    assert classifier.name == "head.classifier"
    assert (classifier.graph.inputs[0].shape, classifier.graph.outputs[0].value.shape) == (
        (1, 32, 1, 16),
        (1, 61, 1, 16),
    )
    (softmax,) = (k for k in made if k.kind == "softmax")
    assert softmax.weights == ()
    assert all(k.graph.inputs[0].shape[1] == 2 * 32 for k in made if k.kind.startswith("normBwd"))


def test_a_program_for_each_product_makes_eighty_five() -> None:
    made = hx.train.kernels(decoder(layers=12), variant="linear")
    assert len(made) == 85
    assert Counter(k.layer for k in made) == {-1: 1, **dict.fromkeys(range(12), 7)}
    want = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert {k.kind for k in made if k.layer == 3} == want
    assert all(len(k.weights) == len(k.inputs) == len(k.outputs) == 1 for k in made)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", CONFIGS)
def test_each_product_by_itself_computes_what_the_step_does(name: str, batch: int) -> None:
    step = decoder(batch, **CONFIGS[name])
    held_to_the_step(step, hx.train.kernels(step, variant="linear"))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", CONFIGS)
def test_programs_of_the_head_compute_what_the_step_does(name: str, batch: int) -> None:
    step = decoder(batch, **CONFIGS[name])
    held_to_the_step(step, hx.train.kernels(step, variant="ane-head"))


def test_gradients_of_norms_are_those_of_the_definition() -> None:
    """In fp64, with a weight that is not constant: dx = r (g w - n mean(g w n)), n = x r, r = 1 / sqrt(mean(x^2) + e)."""
    config = hx.train.LlamaConfig(**{**SMALL, "layers": 1})
    rng = np.random.default_rng(8)
    weights = {n: rng.normal(0, 0.3, s).astype(np.float32) + (len(s) == 1) for n, s in config.shapes().items()}
    model = hx.train.llama(config, weights=weights)
    step = gradients(model.loss, list(model.params.values()))
    made = {k.kind: k for k in hx.train.kernels(step, variant="ane-head")}
    for kind, weight in (("normBwdAttn", "input_layernorm"), ("normBwdFFN", "post_attention_layernorm")):
        g, x = (rng.normal(0, 1, (config.dim, config.seq)) for _ in range(2))
        r = 1 / np.sqrt((x * x).mean(0) + config.epsilon)
        gw = g * weights[f"model.layers.0.{weight}.weight"][:, None]
        want = r * (gw - x * r * (gw * x * r).mean(0))
        assert [tap.channels for tap in made[kind].inputs] == [config.dim, config.dim]
        given = np.concatenate([g, x]).astype(np.float32)[None, :, None]
        assert off(hx.compile(made[kind].graph)(x=given)[0, :, 0], want) < 1e-5, kind


class Equations:
    """The programs of one layer by hand, in fp64: channels first, head by head."""

    def __init__(self, config: hx.train.LlamaConfig, weights: dict[str, Array]) -> None:
        self.c = config
        self.w = {n.split(".")[-2]: a.astype(np.float64) for n, a in weights.items() if ".layers.0." in n}

    def norm(self, x: Array, gamma: Array) -> Array:
        return np.asarray(x / np.sqrt((x * x).mean(0) + self.c.epsilon) * gamma[:, None])

    def rotated(self, x: Array, sign: int) -> Array:
        """x (heads * head_dim, tokens), each pair turned by sign times its angle."""
        out, n = np.empty_like(x), self.c.head_dim
        for head in range(x.shape[0] // n):
            for i in range(n // 2):
                a, b = (2 * i, 2 * i + 1) if self.c.rope == "interleaved" else (i, i + n // 2)
                angle = sign * np.arange(self.c.seq) * self.c.theta ** (-2 * i / n)
                turned = np.exp(1j * angle) * (x[head * n + a] + 1j * x[head * n + b])
                out[head * n + a], out[head * n + b] = turned.real, turned.imag
        return out

    def heads(self, x: Array) -> Array:
        return x.reshape(-1, self.c.head_dim, x.shape[-1])

    def of_kv(self, head: int) -> int:
        return head * self.c.kv_heads // self.c.heads

    def shares(self, q: Array, k: Array) -> Array:
        """(heads, queries, keys)"""
        made = []
        for head, one in enumerate(self.heads(q)):
            scores = one.T @ self.heads(k)[self.of_kv(head)] / np.sqrt(self.c.head_dim)
            scores[np.triu_indices(self.c.seq, 1)] = -np.inf
            e = np.exp(scores - scores.max(1, keepdims=True))
            made.append(e / e.sum(1, keepdims=True))
        return np.stack(made)

    def fwd_attn(self, x: Array) -> dict[str, Array]:
        xn = self.norm(x, self.w["input_layernorm"])
        q, k = (self.rotated(self.w[f"{n}_proj"] @ xn, 1) for n in "qk")
        v = self.w["v_proj"] @ xn
        p = self.shares(q, k)
        a = np.concatenate([self.heads(v)[self.of_kv(h)] @ p[h].T for h in range(self.c.heads)])
        return {"o": self.w["o_proj"] @ a, "Q": q, "K": k, "V": v, "attn": a, "xn": xn}

    def fwd_ffn(self, x: Array) -> dict[str, Array]:
        xn = self.norm(x, self.w["post_attention_layernorm"])
        h1, h3 = self.w["gate_proj"] @ xn, self.w["up_proj"] @ xn
        gate = h1 / (1 + np.exp(-h1)) * h3
        return {"y": self.w["down_proj"] @ gate, "h1": h1, "h3": h3, "gate": gate, "xn": xn}

    def ffn_bwd(self, dffn: Array, h1: Array, h3: Array) -> dict[str, Array]:
        s = 1 / (1 + np.exp(-h1))
        dg = self.w["down_proj"].T @ dffn
        dh1, dh3 = dg * h3 * s * (1 + h1 * (1 - s)), dg * h1 * s
        return {"dx": self.w["gate_proj"].T @ dh1 + self.w["up_proj"].T @ dh3, "dh1": dh1, "dh3": dh3}

    def sdpa_bwd1(self, q: Array, k: Array, v: Array, dx2: Array) -> dict[str, Array]:
        p, da = self.shares(q, k), self.heads(self.w["o_proj"].T @ dx2)
        dv = np.zeros_like(self.heads(v))
        dp = np.empty_like(p)
        for head in range(self.c.heads):
            dv[self.of_kv(head)] += da[head] @ p[head]
            dp[head] = da[head].T @ self.heads(v)[self.of_kv(head)]
        return {"dV": dv.reshape(v.shape), "P": p.reshape(-1, self.c.seq), "dP": dp.reshape(-1, self.c.seq)}

    def sdpa_bwd2(self, p: Array, dp: Array, q: Array, k: Array) -> dict[str, Array]:
        p, dp = (m.reshape(self.c.heads, self.c.seq, self.c.seq) for m in (p, dp))
        ds = p * (dp - (p * dp).sum(2, keepdims=True)) / np.sqrt(self.c.head_dim)
        dq, dk = np.empty_like(self.heads(q)), np.zeros_like(self.heads(k))
        for head in range(self.c.heads):
            dq[head] = self.heads(k)[self.of_kv(head)] @ ds[head].T
            dk[self.of_kv(head)] += self.heads(q)[head] @ ds[head]
        return {"dQ": self.rotated(dq.reshape(q.shape), -1), "dK": self.rotated(dk.reshape(k.shape), -1)}

    def qkv_bwd(self, dq: Array, dk: Array, dv: Array) -> dict[str, Array]:
        return {"dx": self.w["q_proj"].T @ dq + self.w["k_proj"].T @ dk + self.w["v_proj"].T @ dv}


@pytest.mark.parametrize("name", CONFIGS)
def test_programs_are_the_equations_of_the_reference(name: str) -> None:
    config = hx.train.LlamaConfig(**{**SMALL, "layers": 1, **CONFIGS[name]})
    rng = np.random.default_rng(7)
    weights = {n: rng.normal(0, 0.3, s).astype(np.float32) + (len(s) == 1) for n, s in config.shapes().items()}
    model = hx.train.llama(config, weights=weights)
    made = {k.kind: k for k in hx.train.kernels(gradients(model.loss, list(model.params.values())))}
    by_hand = Equations(config, weights)
    q, kv, s = config.heads * config.head_dim, config.kv_heads * config.head_dim, config.seq

    def some(channels: int) -> Array:
        return rng.normal(0, 1, (channels, s))

    def run(kind: str, inputs: dict[str, Array], want: dict[str, Array]) -> None:
        """Inputs and results stand in the order of the channels, which is that of the reference's tables."""
        k = made[kind]
        assert [tap.channels for tap in k.inputs] == [len(a) for a in inputs.values()], kind
        x = np.concatenate(list(inputs.values())).astype(np.float32)[None, :, None]
        assert off(hx.compile(k.graph)(x=x)[0, :, 0], np.concatenate(list(want.values()))) < 1e-5, kind

    x, d, h1, h3 = some(config.dim), some(config.dim), some(config.hidden), some(config.hidden)
    forward = by_hand.fwd_attn(x)
    run("fwdAttn", {"x": x}, forward)
    run("fwdFFN", {"x": x}, by_hand.fwd_ffn(x))
    run("ffnBwd", {"dffn": d, "h1": h1, "h3": h3}, by_hand.ffn_bwd(d, h1, h3))
    attention = by_hand.sdpa_bwd1(forward["Q"], forward["K"], forward["V"], d)
    run("sdpaBwd1", {**{n: forward[n] for n in "QKV"}, "dx2": d}, attention)
    p, dp = attention["P"], attention["dP"]
    keys = (forward["Q"], forward["K"])
    run("sdpaBwd2", dict(zip(("P", "dP", "Q", "K"), (p, dp, *keys), strict=True)), by_hand.sdpa_bwd2(p, dp, *keys))
    dq, dk, dv = some(q), some(kv), some(kv)
    run("qkvBwd", {"dQ": dq, "dK": dk, "dV": dv}, by_hand.qkv_bwd(dq, dk, dv))


# Of the reference's table, in its order: the weight whose product a value is, or the op that makes it.
TAPS = {
    "fwdAttn": (["rms_norm"], ["o", "q", "k", "v", "reshape", "rms_norm"]),
    "fwdFFN": (["add"], ["w2", "w1", "w3", "gated", "rms_norm"]),
    "ffnBwd": (["w2'", "w1", "w3"], ["add", "w1'", "w3'"]),
    "sdpaBwd1": (["q", "k", "v", "o'"], ["v'", "softmax", "matmul"]),
    "sdpaBwd2": (["softmax", "matmul", "q", "k"], ["q'", "k'"]),
    "qkvBwd": (["q'", "k'", "v'"], ["add"]),
}


def own_decoder(turned: bool, explicit: bool, adapters: bool) -> Graph:
    """A layer with other orders of its products. adapters: of low rank, in addition to each weight."""
    rng = np.random.default_rng(15)
    params: list[hx.Tensor] = []

    def weight(name: str, *shape: int) -> hx.Tensor:
        params.append(hx.param(name, rng.normal(0, 0.3, shape).astype(np.float32)))
        return params[-1]

    def linear(name: str, x: hx.Tensor, channels: int) -> hx.Tensor:
        y = hx.linear(x, weight(f"{name}.weight", channels, x.shape[-1]))
        if adapters:
            few = hx.linear(x, weight(f"{name}.a.weight", 2, x.shape[-1]))
            y = y + hx.linear(few, weight(f"{name}.b.weight", channels, 2)) * 0.5
        return y

    def heads(y: hx.Tensor) -> hx.Tensor:
        return hx.transpose(hx.reshape(y, shape=(1, 16, 4, 8)), perm=(0, 2, 1, 3))

    x = hx.rms_norm(hx.input("x", (1, 16, 32)), weight("first", 32))
    n = hx.rms_norm(x, weight("n1", 32))
    made = {name: heads(linear(name, n, 32)) for name in ("vkq" if turned else "qkv")}
    if explicit:
        scores = hx.matmul(made["q"], made["k"], transpose_y=True) * 8**-0.5
        a = hx.matmul(hx.softmax(scores + np.triu(np.full((16, 16), -1e4, np.float32), 1)), made["v"])
    else:
        a = hx.scaled_dot_product_attention(made["q"], made["k"], made["v"], causal=True)
    x = x + linear("o", hx.reshape(hx.transpose(a, perm=(0, 2, 1, 3)), shape=(1, 16, 32)), 32)
    n = hx.rms_norm(x, weight("n2", 32))
    if turned:
        up = linear("w3", n, 48)
        gated = up * hx.silu(linear("w1", n, 48))
    else:
        one = linear("w1", n, 48)
        gated = one * hx.sigmoid(one) * linear("w3", n, 48)
    return gradients(hx.mse(x + linear("w2", gated, 32), np.zeros((1, 16, 32), np.float32)), params)


def short(tap: Tap) -> str:
    """The name of a tap as TAPS has it."""
    first, *rest = tap.name.split(".")
    return f"{first}'" if "gradient" in rest else "gated" if rest == ["mul"] else first


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_taps_have_the_reference_s_order_whoever_built_the_graph(turned: bool, explicit: bool) -> None:
    step = own_decoder(turned, explicit, adapters=False)
    made = hx.train.kernels(step)
    assert [k.kind for k in made] == list(TAPS)
    got = {k.kind: ([short(t) for t in k.inputs], [short(t) for t in k.outputs]) for k in made}
    want = dict(TAPS)
    if explicit:  # the shares are not computed again
        want["fwdAttn"] = (want["fwdAttn"][0], [*want["fwdAttn"][1], "softmax"])
        want["sdpaBwd1"] = (["v", "o'", "softmax"], ["v'", "matmul"])
    assert got == want
    held_to_the_step(step, made)


@pytest.mark.parametrize("turned", [False, True])
def test_what_the_reference_s_table_does_not_have_comes_after_it(turned: bool) -> None:
    """Adapters of low rank have values of their own."""
    step = own_decoder(turned, False, adapters=True)
    made = {k.kind: k for k in hx.train.kernels(step)}
    values = true_values(step, list(made.values()))

    def parts(taps: Sequence[Tap]) -> list[Array]:
        return [tap.pack(values[tap.value]).reshape(tap.channels, 16) for tap in taps]

    held_to_the_step(step, list(made.values()))
    _, q, k, v, attention, n, *rest = parts(made["fwdAttn"].outputs)
    assert {len(a) for a in rest} == {2}
    sd = parts(made["sdpaBwd1"].inputs)
    for got, want in zip(sd, (q, k, v), strict=False):
        np.testing.assert_array_equal(got, want)
    dv, shares = parts(made["sdpaBwd1"].outputs)[:2]
    p = shares.reshape(4, 16, 16)
    heads = np.einsum("hqk,hck->hcq", p, v.reshape(4, 8, 16)).reshape(32, 16)
    np.testing.assert_allclose(attention, heads, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose((n * n).mean(0), 1, rtol=1)
    dq, dk = parts(made["sdpaBwd2"].outputs)[:2]
    for got, want in zip(parts(made["qkvBwd"].inputs), (dq, dk, dv), strict=False):
        np.testing.assert_array_equal(got, want)
    _, h1, h3, gated = parts(made["fwdFFN"].outputs)[:4]
    np.testing.assert_allclose(gated, h1 / (1 + np.exp(-h1)) * h3, rtol=1e-4, atol=1e-5)
    dh1, dh3 = parts(made["ffnBwd"].outputs)[1:3]
    assert len(dh1) == len(dh3) == 48


@pytest.mark.parametrize("chip", ["h13", "h14", "h15", "h16", "h17s"])
@pytest.mark.filterwarnings("ignore::hexane.HazardWarning")
def test_each_program_is_one_segment_of_the_engine(chip: str) -> None:
    rng = np.random.default_rng(9)
    for k in hx.train.kernels(decoder(layers=1)):
        assert not hx.preflight(k.graph, chip).rejected, k.name
        net = hx.compile(k.graph, target=chip)
        assert [s.device for s in net.program.segments] == ["ane"], k.name
        x = rng.normal(0, 1, k.graph.inputs[0].shape).astype(np.float32)
        assert off(net(x=x), hx.compile(k.graph)(x=x)) < 1e-2, k.name  # the engine approximates the sigmoid


@pytest.mark.parametrize(("chip", "numerics"), [("h13", "ieee"), ("h16", "engine")])
@pytest.mark.parametrize("size", [1.0, 300.0, 20000.0])
@pytest.mark.filterwarnings("ignore::hexane.HazardWarning")
def test_norms_of_programs_hold_large_numbers(size: float, chip: str, numerics: str) -> None:
    """fp16 holds no square of 256."""
    (k,) = (k for k in hx.train.kernels(decoder(layers=1)) if k.kind == "fwdFFN")
    x = (np.random.default_rng(10).normal(0, size / 3, (32, 16))).astype(np.float16).astype(np.float64)
    got = hx.compile(k.graph, target=chip, numerics=numerics)(x=x[None, :, None].astype(np.float32))[0, -32:, 0]
    gamma = hx.compile(k.graph)(x=np.ones((1, 32, 1, 16), np.float32))[0, -32:, 0, :1]
    assert off(got, x / np.sqrt((x * x).mean(0)) * gamma) < 3e-3


def post_norm_encoder() -> Graph:
    """Without rotation, with biases, GELU, a mask that is an input, and the norm behind the add, as BERT has it."""
    rng = np.random.default_rng(8)
    params: list[hx.Tensor] = []

    def param(*shape: int) -> hx.Tensor:
        params.append(hx.param(f"w{len(params)}", rng.normal(0, 0.3, shape).astype(np.float32)))
        return params[-1]

    x, mask = hx.input("x", (2, 16, 32)), hx.input("mask", (2, 1, 1, 16))

    def heads(y: hx.Tensor) -> hx.Tensor:
        return hx.transpose(hx.reshape(y, shape=(2, 16, 4, 8)), perm=(0, 2, 1, 3))

    y = hx.linear(x, param(32, 32), param(32))
    for _ in range(2):
        q, k, v = (heads(hx.linear(y, param(32, 32), param(32))) for _ in range(3))
        a = hx.scaled_dot_product_attention(q, k, v, mask)
        a = hx.reshape(hx.transpose(a, perm=(0, 2, 1, 3)), shape=(2, 16, 32))
        y = hx.layer_norm(y + hx.linear(a, param(32, 32), param(32)), param(32), param(32))
        inner = hx.gelu(hx.linear(y, param(64, 32), param(64)))
        y = hx.layer_norm(y + hx.linear(inner, param(32, 64), param(32)), param(32), param(32))
    return gradients(hx.mse(y, np.zeros((2, 16, 32), np.float32)), params)


def test_an_encoder_without_marks_is_cut_too() -> None:
    step = post_norm_encoder()
    made = hx.train.kernels(step)
    assert Counter(k.kind for k in made)["fwdFFN"] == 2
    assert Counter(k.kind for k in made)["ffnBwd"] == 2
    held_to_the_step(step, made)


def test_networks_of_images_have_no_such_programs() -> None:
    x, w = hx.input("x", (2, 8, 6, 6)), hx.param("w", np.ones((8, 8, 3, 3), np.float32))
    y = x + hx.relu(hx.conv(hx.relu(x) + 1, w, pad=(1, 1, 1, 1)))
    assert hx.train.kernels(gradients(hx.mse(y + hx.relu(y), x), [w])) == ()


def test_weights_may_be_given() -> None:
    step = decoder(layers=1)
    name = "model.layers.0.self_attn.o_proj.weight"
    zero = np.zeros((32, 32), np.float32)
    (k,) = (k for k in hx.train.kernels(step, {name: zero}) if k.kind == "fwdAttn")
    y = hx.compile(k.graph)(x=np.ones((1, 32, 1, 16), np.float32))
    assert not y[:, : k.outputs[0].channels].any()
    assert y[:, k.outputs[0].channels :].any()
    with pytest.raises(hx.Error, match=rf"\[train.kernels\] {name}: got shape \(3,\), need \(32, 32\)"):
        hx.train.kernels(step, {name: np.zeros(3, np.float32)})


def test_another_variant_is_refused() -> None:
    with pytest.raises(hx.Error, match=r"variant: got 'gpu-head', need one of 'cpu-head', 'ane-head', 'linear'"):
        hx.train.kernels(decoder(layers=1), variant="gpu-head")  # type: ignore[arg-type]


def test_a_graph_without_a_loss_is_refused() -> None:
    x = hx.input("x", (2, 3))
    with pytest.raises(hx.Error, match=r"got a graph with the outputs relu, need one that is named 'loss'"):
        hx.train.kernels(hx.graph(hx.relu(x)))
