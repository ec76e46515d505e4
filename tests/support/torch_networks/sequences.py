"""Transformers, recurrent networks and others on sequences."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

T = torch.Tensor
TOKENS, WIDTH, WORDS = 10, 16, 30


def heads_of(x: T, heads: int) -> T:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, keys: int | None = None, bias: bool = True) -> None:
        super().__init__()
        self.heads, self.keys, each = heads, keys or heads, width // heads
        self.query, self.out = nn.Linear(width, width, bias), nn.Linear(width, width, bias)
        self.key, self.value = nn.Linear(width, self.keys * each, bias), nn.Linear(width, self.keys * each, bias)

    def forward(self, x: T, other: T | None = None, mask: T | None = None, turn: Callable[[T], T] | None = None) -> T:
        other = x if other is None else other
        q, k, v = (
            heads_of(self.query(x), self.heads),
            heads_of(self.key(other), self.keys),
            heads_of(self.value(other), self.keys),
        )
        if turn is not None:
            q, k = turn(q), turn(k)
        if self.keys != self.heads:
            k, v = (t.repeat_interleave(self.heads // self.keys, 1) for t in (k, v))
        return self.out(self.mixed(q, k, v, mask).transpose(1, 2).flatten(2))

    def mixed(self, q: T, k: T, v: T, mask: T | None) -> T:
        return F.scaled_dot_product_attention(q, k, v, mask)


class WrittenAttention(Attention):
    """As Swin's code has it: torch does not export the fused one with a mask that is trained."""

    def mixed(self, q: T, k: T, v: T, mask: T | None) -> T:
        return torch.softmax(q * q.shape[-1] ** -0.5 @ k.mT + mask, -1) @ v


def mlp(width: int, active: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 3 * width), active, nn.Linear(3 * width, width))


class Block(nn.Module):
    """Norms first."""

    def __init__(self, width: int, heads: int, active: nn.Module) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = Attention(width, heads), mlp(width, active)

    def forward(self, x: T, mask: T | None = None) -> T:
        x = x + self.attention(self.norm1(x), mask=mask)
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, WIDTH)), nn.Parameter(torch.randn(1, 17, WIDTH))
        self.blocks, self.norm = nn.Sequential(*(Block(WIDTH, 2, nn.GELU()) for _ in range(2))), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, image: T) -> T:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


class Swin(nn.Module):
    """A block of shifted windows with biases for relative places, and merged patches."""

    def __init__(self, size: int = 8, window: int = 4) -> None:
        super().__init__()
        self.size, self.window, self.shift = size, window, window // 2
        self.norm, self.attention = nn.LayerNorm(WIDTH), WrittenAttention(WIDTH, 2)
        self.table = nn.Parameter(torch.randn((2 * window - 1) ** 2, 2))
        self.mlp, self.norm2 = mlp(WIDTH, nn.GELU()), nn.LayerNorm(WIDTH)
        self.merge = nn.Linear(4 * WIDTH, 2 * WIDTH, bias=False)
        at = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        away = at[:, :, None] - at[:, None] + window - 1
        self.register_buffer("relative_index", away[0] * (2 * window - 1) + away[1])
        region = torch.zeros(size, dtype=torch.long)
        region[-window:], region[-self.shift :] = 1, 2
        regions = self.windows((region[:, None] * 3 + region)[None, :, :, None].float())[..., 0]
        self.register_buffer("apart", torch.where(regions[:, None] == regions[:, :, None], 0.0, -100.0)[:, None])

    def windows(self, x: T) -> T:
        n, h, w = x.shape[0], self.size // self.window, self.window
        return x.reshape(n, h, w, h, w, -1).transpose(2, 3).reshape(n * h * h, w * w, -1)

    def forward(self, x: T) -> T:
        n, h, w = x.shape[0], self.size // self.window, self.window
        bias = self.table[self.relative_index].permute(2, 0, 1)
        y = self.windows(torch.roll(self.norm(x), (-self.shift, -self.shift), (1, 2)))
        y = self.attention(y, mask=self.apart.repeat(n, 1, 1, 1) + bias)
        y = y.reshape(n, h, h, w, w, -1).transpose(2, 3).reshape(n, self.size, self.size, -1)
        x = x + torch.roll(y, (self.shift, self.shift), (1, 2))
        x = x + self.mlp(self.norm2(x))
        return self.merge(torch.cat([x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)], -1))


class Bert(nn.Module):
    """Norms after the sums, tokens that do not count, and a tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.kinds = (
            nn.Embedding(WORDS, WIDTH),
            nn.Embedding(TOKENS, WIDTH),
            nn.Embedding(2, WIDTH),
        )
        self.attention, self.mlp = Attention(WIDTH, 4), mlp(WIDTH, nn.GELU())
        self.norms, self.pooler = (
            nn.ModuleList(nn.LayerNorm(WIDTH, eps=1e-12) for _ in range(3)),
            nn.Linear(WIDTH, WIDTH),
        )

    def forward(self, ids: T, kinds: T, counts: T) -> tuple[T, T]:
        x = self.norms[0](self.words(ids) + self.places(torch.arange(TOKENS)) + self.kinds(kinds))
        mask = (1 - counts)[:, None, None] * -10000.0
        x = self.norms[1](x + self.attention(x, mask=mask))
        x = self.norms[2](x + self.mlp(x))
        return x @ self.words.weight.T, torch.tanh(self.pooler(x[:, 0]))


class GPT2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(TOKENS, WIDTH))
        self.blocks, self.norm = nn.ModuleList(Block(WIDTH, 2, nn.GELU("tanh")) for _ in range(2)), nn.LayerNorm(WIDTH)

    def forward(self, ids: T) -> T:
        x = self.words(ids) + self.places
        mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x) @ self.words.weight.T


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: T) -> T:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


class Llama(nn.Module):
    """RMS norms, rotary embedding, keys that heads share, SwiGLU."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words, self.norm1, self.norm2 = nn.Embedding(WORDS, width), RMSNorm(width), RMSNorm(width)
        self.attention = Attention(width, 4, 2, bias=False)
        self.gate, self.up, self.down = (
            nn.Linear(a, b, bias=False) for a, b in ((width, 48), (width, 48), (48, width))
        )
        self.head = nn.Linear(width, WORDS, bias=False)
        angle = torch.arange(TOKENS)[:, None] * 10000.0 ** (-torch.arange(4) / 4)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def turned(self, x: T) -> T:
        one, two = x.chunk(2, -1)
        return torch.cat([one * self.cos - two * self.sin, two * self.cos + one * self.sin], -1)

    def forward(self, ids: T) -> T:
        x = self.words(ids)
        mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
        x = x + self.attention(self.norm1(x), mask=mask, turn=self.turned)
        y = self.norm2(x)
        return self.head(x + self.down(F.silu(self.gate(y)) * self.up(y)))


class CrossAttention(nn.Module):
    """T5's decoder: a bias on scores, and another sequence's keys."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.other, self.bias = (
            Attention(WIDTH, 2),
            Attention(WIDTH, 2),
            nn.Parameter(torch.randn(1, 2, 6, 6)),
        )
        self.norm = RMSNorm(WIDTH)

    def forward(self, x: T, memory: T) -> T:
        x = x + self.own(self.norm(x), mask=self.bias)
        return x + self.other(self.norm(x), memory)


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm1, self.norm2 = nn.Conv2d(3, WIDTH, 4, 4), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.tokens, self.channels = mlp(16, nn.GELU()), mlp(WIDTH, nn.GELU())

    def forward(self, image: T) -> T:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return (x + self.channels(self.norm2(x))).mean(1)


class Bag(nn.Module):
    """Sums and means of embeddings, with weights, as recommenders have them, and products of all pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.deep = nn.Embedding(WORDS, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, ids: T, share: T) -> T:
        x = self.table(ids)
        together = torch.stack([x.mean(1), (x * share[..., None]).sum(1), x.amax(1), self.deep(x[:, 0])], 1)
        return torch.bmm(together, together.transpose(1, 2)).flatten(1)


class Recurrent(nn.Module):
    def __init__(self, made: nn.Module) -> None:
        super().__init__()
        self.net = made

    def forward(self, x: T) -> tuple[T, ...]:
        every, last = self.net(x)
        return (every, *last) if isinstance(last, tuple) else (every, last)


class TemporalConv(nn.Module):
    """WaveNet's: gated causal convolutions, wider and wider apart."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv1d(6, 12, 2, dilation=d) for d in (1, 2, 4)])
        self.down = nn.Conv1d(6, 4, 5, stride=2, groups=2, padding=2)

    def forward(self, x: T) -> T:
        for conv in self.convs:
            one, two = conv(F.pad(x, (conv.dilation[0], 0))).chunk(2, 1)
            x = x + torch.tanh(one) * torch.sigmoid(two)
        return F.max_pool1d(F.glu(self.down(x), 1), 3, 2)


class Whisper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv1d(8, WIDTH, 3, padding=1), nn.GELU(), nn.Conv1d(WIDTH, WIDTH, 3, 2, 1), nn.GELU()
        )
        self.block = Block(WIDTH, 2, nn.GELU())

    def forward(self, mel: T) -> T:
        return self.block(self.convs(mel).transpose(1, 2))


class Conformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.depthwise = nn.Conv1d(WIDTH, WIDTH, 5, padding=2, groups=WIDTH)
        self.batch, self.out = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: T) -> T:
        y = F.glu(self.inner(self.norm(x))).transpose(1, 2)
        return x + self.out(F.silu(self.batch(self.depthwise(y))).transpose(1, 2))


class LinearAttention(nn.Module):
    """elu(x) + 1 as features, and running sums of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, 8) for _ in range(3))

    def forward(self, x: T) -> T:
        q, k, v = F.elu(self.query(x)) + 1, F.elu(self.key(x)) + 1, self.value(x)
        sums = torch.cumsum(k[..., :, None] * v[..., None, :], 1)
        return torch.einsum("btd,btde->bte", q, sums) / (q * torch.cumsum(k, 1)).sum(-1, keepdim=True)


def ids(*shape: int) -> T:
    return torch.randint(0, WORDS, shape)


NETWORKS: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "vit": lambda: (ViT(), (torch.randn(2, 3, 16, 16),)),
    "swin": lambda: (Swin(), (torch.randn(2, 8, 8, WIDTH),)),
    "bert": lambda: (Bert(), (ids(2, TOKENS), torch.randint(0, 2, (2, TOKENS)), (torch.rand(2, TOKENS) > 0.3).float())),
    "gpt2": lambda: (GPT2(), (ids(2, TOKENS),)),
    "llama": lambda: (Llama(), (ids(2, TOKENS),)),
    "t5_decoder": lambda: (CrossAttention(), (torch.randn(2, 6, WIDTH), torch.randn(2, 9, WIDTH))),
    "encoder_layer": lambda: (nn.TransformerEncoderLayer(WIDTH, 2, 24, batch_first=True), (torch.randn(2, 7, WIDTH),)),
    "mixer": lambda: (Mixer(), (torch.randn(2, 3, 16, 16),)),
    "embedding_bag": lambda: (Bag(), (ids(3, 5), torch.rand(3, 5))),
    "lstm": lambda: (Recurrent(nn.LSTM(6, 8, 2, batch_first=True, bidirectional=True)), (torch.randn(2, 5, 6),)),
    "gru": lambda: (Recurrent(nn.GRU(6, 8, 1, bidirectional=True)), (torch.randn(5, 2, 6),)),
    "rnn": lambda: (Recurrent(nn.RNN(6, 8)), (torch.randn(5, 2, 6),)),
    "wavenet": lambda: (TemporalConv(), (torch.randn(2, 6, 20),)),
    "whisper": lambda: (Whisper(), (torch.randn(2, 8, 20),)),
    "conformer": lambda: (Conformer(), (torch.randn(2, 11, WIDTH),)),
    "linear_attention": lambda: (LinearAttention(), (torch.randn(2, 7, WIDTH),)),
}
