"""Trains the shipped digits classifier and writes digits.onnx and held_out.npz beside this file.

Needs torch and scikit-learn, at development time only: the outputs are committed. Same seed, same files.
Data: "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak; UCI, CC BY 4.0), from scikit-learn.
"""

from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

HERE = Path(__file__).parent
SEED = 2
EPOCHS = 60
BATCH = 64
HELD_OUT = 360


def split() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Stratified (train images, held-out images, train labels, held-out labels); images are uint8 0..16, (n, 8, 8)."""
    digits = load_digits()
    images = digits.images.astype(np.uint8)
    labels = digits.target.astype(np.uint8)
    return tuple(train_test_split(images, labels, test_size=HELD_OUT, stratify=labels, random_state=SEED))


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(32 * 4 * 4, 10),
    )


def shifted(images: torch.Tensor) -> torch.Tensor:
    """Each image moved by at most one pixel each way, zeros coming in: handwriting is not centred to the pixel."""
    padded = nn.functional.pad(images, (1, 1, 1, 1))
    row, column = torch.randint(0, 3, (2, len(images), 1, 1))
    rows = row + torch.arange(8).view(1, 8, 1)
    columns = column + torch.arange(8).view(1, 1, 8)
    return padded[torch.arange(len(images)).view(-1, 1, 1), 0, rows, columns].unsqueeze(1)


def train(images: np.ndarray, labels: np.ndarray) -> nn.Sequential:
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    x = torch.from_numpy(images).float().unsqueeze(1) / 16
    y = torch.from_numpy(labels).long()
    model = network().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for epoch in range(EPOCHS):
        losses = []
        for batch in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(shifted(x[batch])), y[batch], label_smoothing=0.05)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        schedule.step()
        print(f"epoch {epoch + 1:2}/{EPOCHS}  loss {np.mean(losses):.4f}")
    return model.eval()


def accuracy(model: nn.Sequential, images: np.ndarray, labels: np.ndarray) -> float:
    with torch.no_grad():
        scores = model(torch.from_numpy(images).float().unsqueeze(1) / 16)
    return float((scores.argmax(1).numpy() == labels).mean())


def export(model: nn.Sequential) -> onnx.ModelProto:
    """The trained weights as a small ONNX graph, one readable name per node; softmax turns scores to probabilities."""
    conv1, _, conv2, _, _, _, _, fc = model
    weights = {
        "conv1.weight": conv1.weight,
        "conv1.bias": conv1.bias,
        "conv2.weight": conv2.weight,
        "conv2.bias": conv2.bias,
        "fc.weight": fc.weight,
        "fc.bias": fc.bias,
    }
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
        [numpy_helper.from_array(tensor.detach().numpy(), name) for name, tensor in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="hexane")
    onnx.checker.check_model(proto, full_check=True)
    return proto


def main() -> None:
    train_images, held_images, train_labels, held_labels = split()
    model = train(train_images, train_labels)
    onnx.save(export(model), HERE / "digits.onnx")
    np.savez_compressed(HERE / "held_out.npz", images=held_images, labels=held_labels)
    print(f"train accuracy {accuracy(model, train_images, train_labels):.2%}")
    print(f"held-out accuracy {accuracy(model, held_images, held_labels):.2%} of {len(held_labels)}")


if __name__ == "__main__":
    main()
