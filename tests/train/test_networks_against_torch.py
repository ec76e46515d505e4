"""Gradients of all parameters of well-known networks, imported by `hx.from_torch`, against those of torch.autograd."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Array

torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install torch onnxscript")
pytest.importorskip("onnxscript", reason="onnxscript, which torch's ONNX export needs, is not installed")
from torch_networks import NETWORKS  # noqa: E402 - it needs torch

# torch and onnxscript deprecate parts of each other.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

TOLERANCE = 1e-4  # relative L2
ROUNDING = 1e-6  # of the largest gradient's norm: what exact gradients of 0 may be


def in_torch(model: Any, inputs: tuple[Any, ...], seeds: list[Array]) -> dict[str, Array]:
    """In fp64."""
    wide = deepcopy(model).double()
    results = wide(*(x.double() if x.is_floating_point() else x for x in inputs))
    several = results if isinstance(results, tuple) else (results,)
    sum((r * torch.from_numpy(s)).sum() for r, s in zip(several, seeds, strict=True)).backward()
    return {name: p.grad.numpy() for name, p in wide.named_parameters()}


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_of_all_parameters_are_those_of_torch(name: str) -> None:
    torch.manual_seed(3)
    model, inputs = NETWORKS[name]()
    model.eval()
    imported = hx.train.with_params(hx.from_torch(model, inputs, params="*"))
    outputs = list(imported.outputs.values())
    rng = np.random.default_rng(5)
    seeds = [rng.uniform(-1, 1, t.shape).astype(np.float32) for t in outputs]
    want = in_torch(model, inputs, [s.astype(np.float64) for s in seeds])
    assert set(imported.params) == set(want)
    gradients = hx.grad(outputs, list(imported.params.values()), seed=seeds)
    net = hx.compile(hx.graph({f"g{i}": g for i, g in enumerate(gradients)}))
    found = net(dict(zip(imported.inputs, (x.numpy() for x in inputs), strict=True)))
    arrays = list(found.values()) if isinstance(found, dict) else [found]
    largest = max(np.linalg.norm(a) for a in want.values())
    for param, got in zip(imported.params, arrays, strict=True):
        error = np.linalg.norm(got - want[param])
        assert error <= TOLERANCE * np.linalg.norm(want[param]) + ROUNDING * largest, f"{param}: {error}"
