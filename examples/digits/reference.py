"""The digits network in plain fp32 NumPy, with the weights of the ONNX file, to check Hexane's results."""

from pathlib import Path

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from onnx import numpy_helper


def load_weights(path: str | Path) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


def conv3x3(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """(n, c, h, w) -> (n, k, h, w), one pixel of zero padding; weight (k, c, 3, 3)."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = sliding_window_view(padded, (3, 3), axis=(2, 3))  # (n, c, h, w, 3, 3)
    return np.einsum("nchwij,kcij->nkhw", windows, weight, optimize=True) + bias[:, None, None]


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def max_pool2x2(x: np.ndarray) -> np.ndarray:
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 2, 2, w // 2, 2).max(axis=(3, 5))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def probabilities(images: np.ndarray, weights: dict[str, np.ndarray]) -> np.ndarray:
    """(n, 1, 8, 8) float32 in 0..1 -> (n, 10) float32."""
    x = relu(conv3x3(images, weights["conv1.weight"], weights["conv1.bias"]))
    x = relu(conv3x3(x, weights["conv2.weight"], weights["conv2.bias"]))
    x = max_pool2x2(x).reshape(len(images), -1)
    return softmax(x @ weights["fc.weight"].T + weights["fc.bias"])


def held_out(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 1, 8, 8) float32 in 0..1 and labels (n,) from held_out.npz, which stores grey levels 0..16."""
    with np.load(path) as data:
        return data["images"][:, None].astype(np.float32) / 16, data["labels"]
