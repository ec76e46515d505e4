"""Trains the digits classifier for 300 steps in the arithmetic of several chips, and prints the held-out accuracies.

Products of the forward and backward pass are in each chip's arithmetic, updates in fp32 on the host. Needs
scikit-learn.
"""

import warnings

import numpy as np

import hexane as hx
from train import accuracy, batches, new_trainer, split, weights_of

STEPS = 300
LOSS_SCALE = 1024.0
CHIPS = ("h13", "h14", "h16", "h17s")


def main() -> None:
    warnings.simplefilter("ignore", hx.FallbackWarning)
    train_images, held_images, train_labels, held_labels = split()
    print("| arithmetic | loss of the last 20 steps | held-out accuracy |")
    print("|---|---|---|")
    cases: list[tuple[str, hx.Options]] = [("host, fp32", hx.Options())]
    for chip in CHIPS:
        for numerics in ("ieee", "engine"):
            cases.append((f"{chip}, {numerics}", hx.Options(target=chip, numerics=numerics, device="cpu")))
    for name, options in cases:
        trainer = new_trainer(STEPS, options, loss_scale=LOSS_SCALE)
        entries = trainer.fit(batches(train_images, train_labels), STEPS, progress=False)
        right = accuracy(weights_of(trainer), held_images, held_labels)
        print(f"| {name} | {np.mean([e['loss'] for e in entries[-20:]]):.4f} | {right:.2%} |", flush=True)


if __name__ == "__main__":
    main()
