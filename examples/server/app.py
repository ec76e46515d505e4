"""Serves a model over HTTP: a POST of the inputs by name is answered by the outputs by name.

    pip install fastapi uvicorn
    python examples/server/run.py examples/digits/digits.onnx --workers 2

    POST /predict  {"inputs": {"image": [[..]]}} -> {"outputs": {"probabilities": [[..]]}};
                   an .npz (content type application/octet-stream) is answered by an .npz
    GET  /model    names, shapes and dtypes of inputs and outputs
    GET  /health   "ok" once calls are answered

Environment variables: MODEL is a file that `hx.compile` opens. CONTEXTS is the number of calls that run at the same
time in a worker (default: its cores). WAITING is the number of calls that may wait (default 32); a further call gets
503 at once. HEXANE_THREADS is the number of cores for one call.
"""

import io
import json
import os
import zipfile
from collections.abc import Mapping
from threading import BoundedSemaphore
from typing import Any

import numpy as np
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool

import hexane as hx

NPZ = "application/octet-stream"
MOST_BYTES = 64 << 20  # largest request

contexts = int(os.environ.get("CONTEXTS", 0)) or os.cpu_count() or 1
admitted = BoundedSemaphore(contexts + int(os.environ.get("WAITING", 32)))
net: Any = hx.compile(os.environ["MODEL"], contexts=contexts, memory=hx.Memory(call="1G"))
dtypes = {port.name: port.dtype.numpy for port in net.inputs}
app = FastAPI(title="Hexane")


def read(body: bytes, kind: str) -> Mapping[str, Any]:
    if kind == NPZ:
        with np.load(io.BytesIO(body), allow_pickle=False) as arrays:
            return dict(arrays)
    return json.loads(body)["inputs"]


def written(outputs: Mapping[str, np.ndarray], kind: str) -> Response:
    if kind == NPZ:
        file = io.BytesIO()
        np.savez(file, **outputs)
        return Response(file.getvalue(), media_type=NPZ)
    text = json.dumps({"outputs": {name: value.tolist() for name, value in outputs.items()}})
    return Response(text, media_type="application/json")


def answer(body: bytes, kind: str) -> Response:
    """Answers a request in a thread of its own; up to CONTEXTS calls of the model run at the same time."""
    try:
        given = read(body, kind).items()
        feeds = {name: np.asarray(v, None if kind == NPZ else dtypes.get(name)) for name, v in given}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, OSError, zipfile.BadZipFile) as error:
        raise HTTPException(400, f"cannot read the inputs: {error}") from None
    try:
        made = net(feeds)
    except hx.InputError as error:
        raise HTTPException(400, str(error)) from None
    outputs = made if isinstance(made, Mapping) else {net.outputs[0].name: made}
    return written({name: np.asarray(value) for name, value in outputs.items()}, kind)


@app.post("/predict")
async def predict(request: Request) -> Response:
    if int(request.headers.get("content-length", 0)) > MOST_BYTES:
        raise HTTPException(413, f"a request has at most {MOST_BYTES} bytes")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BYTES:
            raise HTTPException(413, f"a request has at most {MOST_BYTES} bytes")
    if not admitted.acquire(blocking=False):
        raise HTTPException(503, "too many calls wait", {"Retry-After": "1"})
    try:
        return await run_in_threadpool(answer, bytes(body), request.headers.get("content-type", ""))
    finally:
        admitted.release()


@app.get("/model")
def model() -> dict[str, Any]:
    def ports(several: Any) -> list[dict[str, Any]]:
        return [{"name": p.name, "shape": list(p.shape), "dtype": str(p.dtype)} for p in several]

    return {"inputs": ports(net.inputs), "outputs": ports(net.outputs), "device": net.device}


@app.get("/health")
def health() -> str:
    return "ok"
