"""Runs a 6-layer transformer encoder: compiles it from ONNX, compares with onnxruntime where installed, times it."""

import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from make_model import Config, make_model

import hexane as hx

CALLS = 100


def onnxruntime_answer(path: Path, token_ids: np.ndarray) -> np.ndarray | None:
    try:
        import onnxruntime
    except ImportError:
        return None
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"token_ids": token_ids})[0]


def main() -> None:
    config = Config()
    token_ids = np.random.default_rng(1).integers(0, config.vocab, (1, config.tokens), dtype=np.int64)
    hidden_states = np.empty((1, config.tokens, config.dim), np.float32)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "encoder.onnx"
        onnx.save(make_model(config), path)
        start = time.perf_counter()
        net = hx.compile(path)
        seconds = time.perf_counter() - start
        expected = onnxruntime_answer(path, token_ids)

    call = net.bind(token_ids=token_ids, hidden_states=hidden_states)
    call()
    milliseconds = np.empty(CALLS)
    for i in range(CALLS):
        start = time.perf_counter()
        call()
        milliseconds[i] = (time.perf_counter() - start) * 1e3
    median, p90 = np.percentile(milliseconds, [50, 90])

    print(f"encoder     {config.layers} layers, d {config.dim}, {config.tokens} tokens; compiled in {seconds:.2f} s")
    if expected is None:
        print("compared    no: onnxruntime is not installed")
    else:
        difference = np.abs(hidden_states - expected).max() / np.abs(expected).max()
        print(f"compared    largest difference from onnxruntime, over its largest value: {difference:.1e}")
    print(f"latency     median {median:.2f} ms, p90 {p90:.2f} ms per bound call, {CALLS} calls")
    print(f"ran on      {net.device}, threads: {net.threads}")


if __name__ == "__main__":
    main()
