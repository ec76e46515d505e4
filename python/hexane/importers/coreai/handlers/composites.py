"""Functions whose description names their computation: the importer writes one op of the catalogue in place of the
body."""

from typing import Any

import numpy as np

from hexane.importers.coreai.attributes import Other
from hexane.importers.coreai.registry import Context, Found, composite


def _number(given: dict[str, Any], name: str, default: float) -> float:
    """Returns a number in a function's description, or the default. A float is stored as its width and bits."""
    value = given.get(name, default)
    if isinstance(value, tuple) and len(value) == 2:
        width, bits = value
        kind = {16: np.float16, 32: np.float32, 64: np.float64}.get(width)
        if kind is None:
            return default
        return float(np.frombuffer(int(bits).to_bytes(width // 8, "little"), kind)[0])
    return float(value) if isinstance(value, (int, float)) else default


def _one_dtype(c: Context) -> bool:
    """True if all operands have one dtype, as the catalogue's ops need. A body computes in the widest dtype of its
    operands."""
    return len({v.dtype for v in c.values()}) == 1


def _known(given: dict[str, Any], *names: str) -> bool:
    return all(name in given and not isinstance(given[name], Other) for name in names)


@composite("layer_norm")
def _layer_norm(c: Context, given: dict[str, Any]) -> Found:
    if not _known(given, "axes", "eps") or len(c.operands) != 3 or not _one_dtype(c):
        return None
    x, gamma, beta = c.values()
    axes = [int(a) % x.type.rank for a in given["axes"]]
    if axes != list(range(x.type.rank - len(axes), x.type.rank)) or gamma.shape != tuple(x.shape[a] for a in axes):
        return None
    return c.b.layer_norm(x, gamma, beta, axes=axes, epsilon=_number(given, "eps", 1e-5))


@composite("batch_norm")
def _batch_norm(c: Context, given: dict[str, Any]) -> Found:
    if not _known(given, "eps") or len(c.operands) != 5 or not _one_dtype(c):
        return None
    x, gamma, beta, mean, variance = c.values()
    if any(v.shape != (x.shape[1],) for v in (gamma, beta, mean, variance)):
        return None
    return c.b.batch_norm(x, mean, variance, gamma, beta, epsilon=_number(given, "eps", 1e-5), axis=1)


@composite("group_norm")
def _group_norm(c: Context, given: dict[str, Any]) -> Found:
    if not _known(given, "eps", "num_groups") or len(c.operands) != 3 or not _one_dtype(c):
        return None
    x, weight, bias = c.values()
    if weight.shape != (x.shape[1],):
        return None
    return c.b.group_norm(x, weight, bias, num_groups=int(given["num_groups"]), epsilon=_number(given, "eps", 1e-5))


@composite("log_softmax")
def _log_softmax(c: Context, given: dict[str, Any]) -> Found:
    return c.b.log_softmax(c.value(0), axis=int(given["axis"])) if _known(given, "axis") else None


@composite("pixel_shuffle")
def _pixel_shuffle(c: Context, given: dict[str, Any]) -> Found:
    if not _known(given, "upscale_factor"):
        return None
    return c.b.pixel_shuffle(c.value(0), upscale_factor=int(given["upscale_factor"]))
