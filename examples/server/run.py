"""Runs app.py in several processes.

    pip install fastapi uvicorn
    python examples/server/run.py MODEL [--workers 2] [--port 8000] [--host 127.0.0.1]

Each worker compiles the model and uses its share of the cores. `uvicorn app:app` does the same in one process. (Its
`--workers` answers 40 ms late: the sockets that it hands to workers wait for the client's acknowledgement.)
"""

import argparse
import multiprocessing.connection
import os
import signal
import socket
import sys

import uvicorn


def work(listening: socket.socket) -> None:
    uvicorn.Server(uvicorn.Config("app:app", log_level="warning")).run(sockets=[listening])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    os.environ["MODEL"] = options.model
    cores = str(max(1, (os.cpu_count() or 1) // options.workers))
    os.environ.setdefault("CONTEXTS", cores)
    os.environ.setdefault("HEXANE_THREADS", cores)
    listening = socket.create_server((options.host, options.port), backlog=512)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work, args=(listening,), daemon=True) for _ in range(options.workers)]
    for worker in workers:
        worker.start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # exit() ends the workers
    print(f"http://{options.host}:{listening.getsockname()[1]}", flush=True)
    multiprocessing.connection.wait([worker.sentinel for worker in workers])


if __name__ == "__main__":
    main()
