"""A training step of llama2.c's decoders: milliseconds of a row of 256 tokens (forward, backward, and a tenth of the
update that follows ten rows), and the growth of the process's memory. PyTorch's eager step is measured in turns with
Hexane's, each in a process of its own.

Hexane and PyTorch train in fp32 with AdamW. Needs torch, here or in another environment (--torch PYTHON).
"""

import resource
import sys
import time
from typing import Any

import numpy as np

from train import Step, compare

SEQ, ACCUMULATE = 256, 10
NETWORKS = ("stories15M", "stories42M", "stories110M")
SIZES = {  # vocab, dim, hidden, layers, heads
    "stories15M": (32000, 288, 768, 6, 6),
    "stories42M": (32000, 512, 1376, 8, 8),
    "stories110M": (32000, 768, 2048, 12, 12),
}
LR, EPSILON, THETA = 3e-4, 1e-5, 10000.0


def main() -> int:
    return compare(__file__, __doc__, NETWORKS, {"hexane": hexane_step, "torch": torch_step}, calls=ACCUMULATE)


def feeds(rng: np.random.Generator) -> tuple[Any, Any]:
    tokens = rng.integers(0, 32000, (1, SEQ + 1)).astype(np.int32)
    return np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])


def hexane_step(name: str, threads: int, rng: np.random.Generator) -> tuple[Step, float, float]:
    import hexane as hx

    model = hx.train.llama(hx.train.LlamaConfig.named(name, seq=SEQ))
    tokens, labels = feeds(rng)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    step = hx.train.step(model.loss, list(model.params.values()), hx.train.adamw(LR), accumulate=ACCUMULATE)
    net = hx.compile(step, threads=threads)
    compile_ms = (time.perf_counter() - begin) * 1e3
    assert isinstance(net, hx.Model)
    del model, step
    net.drop_initial_states()  # PyTorch has no second copy of the weights either
    return net.bind(tokens=tokens, labels=labels), before, compile_ms


def torch_step(name: str, threads: int, rng: np.random.Generator) -> tuple[Step, float, float]:
    import torch
    from torch import nn
    from torch.nn import functional as f

    torch.set_num_threads(threads)
    vocab, dim, hidden, layers, heads = SIZES[name]
    rates = 1 / THETA ** (torch.arange(0, dim // heads, 2) / (dim // heads))
    angles = torch.outer(torch.arange(SEQ), rates)
    cos, sin = angles.cos(), angles.sin()

    def rotated(x: Any) -> Any:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.RMSNorm(dim, EPSILON) for _ in range(2))
            self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))
            self.gate, self.up = (nn.Linear(dim, hidden, bias=False) for _ in range(2))
            self.down = nn.Linear(hidden, dim, bias=False)

        def forward(self, x: Any) -> Any:
            h = self.norms[0](x)
            q, k, v = (p(h).unflatten(-1, (heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
            a = f.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
            x = x + self.o(a.transpose(1, 2).flatten(2))
            h = self.norms[1](x)
            return x + self.down(f.silu(self.gate(h)) * self.up(h))

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(vocab, dim)
            self.layers = nn.Sequential(*(Layer() for _ in range(layers)))
            self.norm = nn.RMSNorm(dim, EPSILON)

        def forward(self, tokens: Any) -> Any:
            return f.linear(self.norm(self.layers(self.embedding(tokens))), self.embedding.weight)

    net = Decoder()
    with torch.no_grad():
        for p in net.parameters():
            if p.dim() > 1:
                p.normal_(0, 0.02)
    tokens, labels = (torch.from_numpy(a.astype(np.int64)) for a in feeds(rng))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    optimizer = torch.optim.AdamW(net.parameters(), lr=LR)
    calls = 0

    def step() -> None:
        nonlocal calls
        (f.cross_entropy(net(tokens).flatten(0, 1), labels.flatten()) / ACCUMULATE).backward()
        calls += 1
        if calls % ACCUMULATE == 0:
            optimizer.step()
            optimizer.zero_grad()

    return step, before, 0.0


if __name__ == "__main__":
    sys.exit(main())
