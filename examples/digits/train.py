"""Trains the shipped digits classifier with hx.train.Trainer and writes digits.onnx and held_out.npz beside this file.

Needs scikit-learn for the data. The two files are in the repository; equal seeds write equal files.
Data: "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak; UCI, CC BY 4.0), from scikit-learn.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import hexane as hx

HERE = Path(__file__).parent
SEED = 2
EPOCHS = 60
BATCH = 64
HELD_OUT = 360
SHAPES = {
    "conv1.weight": (16, 1, 3, 3),
    "conv1.bias": (16,),
    "conv2.weight": (32, 16, 3, 3),
    "conv2.bias": (32,),
    "fc.weight": (10, 512),
    "fc.bias": (10,),
}


def split() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Stratified (train images, held-out images, train labels, held-out labels); images are uint8 0..16, (n, 8, 8)."""
    digits = load_digits()
    images = digits.images.astype(np.uint8)
    labels = digits.target.astype(np.uint8)
    return tuple(train_test_split(images, labels, test_size=HELD_OUT, stratify=labels, random_state=SEED))


def new_params() -> dict[str, hx.Tensor]:
    found = {}
    for i, (name, shape) in enumerate(SHAPES.items()):
        bias = name.endswith("bias")
        first = np.zeros(shape, np.float32) if bias else hx.train.init.kaiming_normal(shape, seed=SEED + i)
        found[name] = hx.param(name, first)
    return found


def network(image: hx.Tensor, p: dict[str, hx.Tensor]) -> hx.Tensor:
    """Scores (n, 10) of images (n, 1, 8, 8) in 0..1."""
    x = hx.relu(hx.conv(image, p["conv1.weight"], p["conv1.bias"], pad=1))
    x = hx.relu(hx.conv(x, p["conv2.weight"], p["conv2.bias"], pad=1))
    x = hx.flatten(hx.max_pool(x, kernel_sizes=2, strides=2))
    return hx.linear(hx.dropout(x, hx.stream(SEED, "dropout"), p=0.3), p["fc.weight"], p["fc.bias"])


def shifted(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each image shifted at random by at most one pixel in each direction, filled with zeros."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    row, column = rng.integers(0, 3, (2, len(images), 1, 1))
    return padded[np.arange(len(images))[:, None, None], row + np.arange(8)[:, None], column + np.arange(8)]


def batches(images: np.ndarray, labels: np.ndarray) -> Callable[[int], dict[str, np.ndarray]]:
    """A function of i that returns batch i. Each epoch shuffles the images anew, and drops an incomplete last batch."""
    each = len(images) // BATCH

    def batch(number: int) -> dict[str, np.ndarray]:
        epoch, place = divmod(number, each)
        chosen = np.random.default_rng((SEED, epoch)).permutation(len(images))[place * BATCH : (place + 1) * BATCH]
        moved = shifted(images[chosen], np.random.default_rng((SEED, epoch, place)))
        return {"image": moved[:, None].astype(np.float32) / 16, "label": labels[chosen].astype(np.int32)}

    return batch


def new_trainer(steps: int, options: hx.Options | None = None, loss_scale: float = 1.0) -> hx.train.Trainer:
    params = new_params()
    scores = network(hx.input("image", (BATCH, 1, 8, 8)), params)
    loss = hx.cross_entropy(scores, hx.input("label", (BATCH,), "int32"), label_smoothing=0.05)
    optimizer = hx.train.adamw(hx.train.cosine(2e-3, steps), weight_decay=1e-2)
    return hx.train.Trainer(loss, list(params.values()), optimizer, options=options, loss_scale=loss_scale)


def train(images: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    steps = EPOCHS * (len(images) // BATCH)
    trainer = new_trainer(steps)
    entries = trainer.fit(batches(images, labels), steps)
    print(f"{steps} steps, loss {np.mean([e['loss'] for e in entries[-20:]]):.4f}")
    return weights_of(trainer)


def weights_of(trainer: hx.train.Trainer) -> dict[str, np.ndarray]:
    return {name: trainer.net.read_state(name) for name in SHAPES}


def accuracy(weights: dict[str, np.ndarray], images: np.ndarray, labels: np.ndarray) -> float:
    image = hx.input("image", (len(images), 1, 8, 8))
    scores = network(image, {name: hx.const(array) for name, array in weights.items()})
    net = hx.compile(hx.graph(hx.train.evaluating(scores)))
    return float((net(images[:, None].astype(np.float32) / 16).argmax(1) == labels).mean())


def export(weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    """The trained weights as a small ONNX graph with readable node names; softmax turns scores into probabilities."""
    same = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["image", "conv1.weight", "conv1.bias"], ["conv1"], "conv1", **same),
        helper.make_node("Relu", ["conv1"], ["relu1"], "relu1"),
        helper.make_node("Conv", ["relu1", "conv2.weight", "conv2.bias"], ["conv2"], "conv2", **same),
        helper.make_node("Relu", ["conv2"], ["relu2"], "relu2"),
        helper.make_node("MaxPool", ["relu2"], ["pool"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["pool"], ["flat"], "flatten", axis=1),
        helper.make_node("Gemm", ["flat", "fc.weight", "fc.bias"], ["scores"], "fc", transB=1),
        helper.make_node("Softmax", ["scores"], ["probabilities"], "softmax", axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 1, 8, 8])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="hexane")
    onnx.checker.check_model(proto, full_check=True)
    return proto


def main() -> None:
    train_images, held_images, train_labels, held_labels = split()
    weights = train(train_images, train_labels)
    onnx.save(export(weights), HERE / "digits.onnx")
    np.savez_compressed(HERE / "held_out.npz", images=held_images, labels=held_labels)
    print(f"train accuracy {accuracy(weights, train_images, train_labels):.2%}")
    print(f"held-out accuracy {accuracy(weights, held_images, held_labels):.2%} of {len(held_labels)}")


if __name__ == "__main__":
    main()
