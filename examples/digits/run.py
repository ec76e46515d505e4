"""Runs the shipped digits classifier on its held-out images: prints pictures, accuracy next to plain NumPy, latency,
and the device."""

import time
from pathlib import Path

import numpy as np
from picture import show
from reference import held_out, load_weights, probabilities

import hexane as hx

HERE = Path(__file__).parent
SHOWN = 5
ROUNDS = 10  # times through the held-out images when timing


def main() -> None:
    images, labels = held_out(HERE / "held_out.npz")
    net = hx.compile(HERE / "digits.onnx")

    image = np.empty((1, 1, 8, 8), np.float32)
    answer = np.empty((1, 10), np.float32)
    call = net.bind(image=image, probabilities=answer)

    answers = np.empty((len(images), 10), np.float32)
    nanoseconds = np.empty((ROUNDS, len(images)))
    for lap in range(ROUNDS):
        for i in range(len(images)):
            image[0] = images[i]
            start = time.perf_counter_ns()
            call()
            nanoseconds[lap, i] = time.perf_counter_ns() - start
            answers[i] = answer[0]

    predicted = answers.argmax(axis=1)
    expected = probabilities(images, load_weights(HERE / "digits.onnx"))
    numpy_predicted = expected.argmax(axis=1)
    difference = np.abs(answers - expected).max()
    median, p90 = np.percentile(nanoseconds, [50, 90]) / 1000

    shown = np.argsort(predicted == labels, kind="stable")[:SHOWN]  # mistakes first
    show(images[shown, 0], {"predicted": predicted[shown], "label": labels[shown]})
    print()
    print(f"accuracy    hexane {np.mean(predicted == labels):.2%} of {len(labels)} held-out images,", end=" ")
    print(f"fp32 NumPy {np.mean(numpy_predicted == labels):.2%}")
    print(f"disagree    on {np.sum(predicted != numpy_predicted)} images; probabilities by {difference:.1e} at most")
    print(f"latency     median {median:.2f} us, p90 {p90:.2f} us per bound call, {nanoseconds.size} calls")
    print(f"ran on      {net.device}, threads: {net.threads}")


if __name__ == "__main__":
    main()
