"""A decoder of the Llama family written in PyTorch."""

from typing import Any

import numpy as np
import torch

import hexane as hx
from hexane.graph import Array


def torch_loss(c: hx.train.LlamaConfig, p: dict[str, Any], fed: dict[str, Array]) -> Any:
    """Of torch's tensors."""
    logits = torch_logits(c, p, fed["tokens"])
    labels = torch.tensor(fed["labels"].astype(np.int64))
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def torch_logits(c: hx.train.LlamaConfig, p: dict[str, Any], tokens: Array) -> Any:
    """With torch's own norm and attention, in the dtype of its tensors."""
    f, dtype = torch.nn.functional, p["model.norm.weight"].dtype

    def rotated(x: Any) -> Any:
        if c.rope == "none":
            return x
        rates = 1 / c.theta ** (torch.arange(0, c.head_dim, 2, dtype=torch.float64) / c.head_dim)
        turn = torch.polar(torch.ones(()).double(), torch.outer(torch.arange(c.seq).double(), rates))
        pairs = x.unflatten(-1, (-1, 2)) if c.rope == "interleaved" else x.unflatten(-1, (2, -1)).transpose(-1, -2)
        out = torch.view_as_real(torch.view_as_complex(pairs.double().contiguous()) * turn).to(dtype)
        return out.flatten(-2) if c.rope == "interleaved" else out.transpose(-1, -2).flatten(-2)

    x = p["model.embed_tokens.weight"][torch.tensor(tokens.astype(np.int64))]
    for i in range(c.layers):

        def own(name: str, i: int = i) -> Any:
            return p[f"model.layers.{i}.{name}.weight"]

        def heads(y: Any) -> Any:
            return y.unflatten(-1, (-1, c.head_dim)).transpose(1, 2)

        h = f.rms_norm(x, (c.dim,), own("input_layernorm"), c.epsilon)
        q, k, v = (heads(h @ own(f"self_attn.{name}_proj").T) for name in "qkv")
        q, k = rotated(q), rotated(k)
        a = f.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + c.residual * a.transpose(1, 2).flatten(2) @ own("self_attn.o_proj").T
        h = f.rms_norm(x, (c.dim,), own("post_attention_layernorm"), c.epsilon)
        x = x + c.residual * (f.silu(h @ own("mlp.gate_proj").T) * (h @ own("mlp.up_proj").T)) @ own("mlp.down_proj").T
    x = f.rms_norm(x, (c.dim,), p["model.norm.weight"], c.epsilon)
    return x @ p["model.embed_tokens.weight" if c.tied else "lm_head.weight"].T
