"""Puts a bounded load on the server of app.py, and prints the answers per second and the time of an answer.

    python examples/server/load.py http://127.0.0.1:8000 [--clients 8] [--seconds 5]

Each client sends its next request when the last one is answered, over one connection. Inputs are zeros; free dims
are 1.
"""

import argparse
import http.client
import io
import json
import socket
import threading
import time
from collections import Counter
from urllib.parse import urlsplit

import numpy as np

KINDS = {"fp32": "float32", "fp16": "float16", "fp64": "float64"}


def request_body(address: str) -> bytes:
    """An .npz of zeros for the inputs of the model."""
    connection = http.client.HTTPConnection(address)
    connection.request("GET", "/model")
    inputs = json.loads(connection.getresponse().read())["inputs"]
    file = io.BytesIO()
    shapes = {p["name"]: [d if isinstance(d, int) else 1 for d in p["shape"]] for p in inputs}
    np.savez(file, **{p["name"]: np.zeros(shapes[p["name"]], KINDS.get(p["dtype"], p["dtype"])) for p in inputs})
    return file.getvalue()


def client(address: str, body: bytes, end: float, times: list[float], answers: "Counter[int]") -> None:
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # no wait between head and body
    headers = {"Content-Type": "application/octet-stream"}
    while (begin := time.perf_counter()) < end:
        connection.request("POST", "/predict", body, headers)
        response = connection.getresponse()
        response.read()
        answers[response.status] += 1
        if response.status == 200:
            times.append(time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    address = urlsplit(options.url).netloc
    body, times, answers = request_body(address), list[float](), Counter[int]()
    begin = time.perf_counter()
    running = [
        threading.Thread(target=client, args=(address, body, begin + options.seconds, times, answers))
        for _ in range(options.clients)
    ]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    took = time.perf_counter() - begin
    p50, p99 = np.percentile(np.array(times or [np.nan]) * 1000, [50, 99])
    print(f"{options.clients} clients: {len(times) / took:.0f} answers a second, median {p50:.2f} ms, p99 {p99:.2f} ms")
    print("status", ", ".join(f"{status}: {count}" for status, count in sorted(answers.items())))


if __name__ == "__main__":
    main()
