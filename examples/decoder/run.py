"""Generates tokens with a 110M decoder on seeded weights, and checks the first ones against NumPy."""

import time

import numpy as np
from model import build
from reference import Config, Decoder, make_weights

import hexane as hx

TOKENS = 64
CHECKED = 4


def main() -> None:
    config = Config()
    weights = make_weights(config)
    start = time.perf_counter()
    net = hx.compile(build(config, weights))
    seconds = time.perf_counter() - start

    token, position = np.ones(1, np.int32), np.zeros(1, np.int32)
    logits = np.empty((1, config.vocab), np.float32)
    call = net.bind(token=token, position=position, logits=logits)
    reference = Decoder(config, weights)
    generated, milliseconds, worst = [], [], 0.0
    for i in range(TOKENS):
        position[0] = i
        before = time.perf_counter()
        call()
        milliseconds.append((time.perf_counter() - before) * 1e3)
        if i < CHECKED:
            expected = reference.step(int(token[0]), i)
            worst = max(worst, float(np.abs(logits[0] - expected).max() / np.abs(expected).max()))
        token[0] = logits[0].argmax()
        generated.append(int(token[0]))

    median, p90 = np.percentile(milliseconds, [50, 90])
    parameters = sum(w.size for w in weights.values())
    print(f"decoder     {parameters / 1e6:.1f} M parameters, {config.layers} layers; compiled in {seconds:.2f} s")
    print(f"tokens      {' '.join(map(str, generated[:16]))} ...")
    print(f"compared    largest difference from NumPy in {CHECKED} steps, over its largest value: {worst:.1e}")
    print(f"latency     median {median:.2f} ms, p90 {p90:.2f} ms per token, {1000 / median:.0f} tokens/s")
    print(f"cache       {net.memory['state'] / 1e6:.1f} MB of state, written in place")
    print(f"ran on      {net.device}, threads: {net.threads}")


if __name__ == "__main__":
    main()
