"""LiteRT's reference kernels."""

import numpy as np
import pytest


def reference(data: bytes, *feeds: np.ndarray) -> list[np.ndarray]:
    litert = pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")
    made = litert.Interpreter(model_content=data, experimental_op_resolver_type=litert.OpResolverType.BUILTIN_REF)
    made.allocate_tensors()
    for port, array in zip(made.get_input_details(), feeds, strict=True):
        made.set_tensor(port["index"], array)
    made.invoke()
    return [made.get_tensor(port["index"]) for port in made.get_output_details()]
