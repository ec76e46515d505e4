"""The server of examples/server, called through its application as a web server calls it."""

import asyncio
import importlib
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("fastapi", reason="FastAPI is not installed")


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MODEL", str(ROOT / "examples/digits/digits.onnx"))
        patch.setenv("WAITING", "0")
        patch.setenv("CONTEXTS", "2")
        patch.syspath_prepend(str(ROOT / "examples/server"))
        yield importlib.import_module("app")


def answered(server: Any, path: str, body: bytes = b"", kind: str = "application/json") -> tuple[int, bytes]:
    """Status and body of an answer; a body makes the request a POST."""
    sent: list[dict[str, Any]] = []
    requests = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> dict[str, Any]:
        return next(requests, {"type": "http.disconnect"})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST" if body else "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    asyncio.run(server.app(scope, receive, send))
    return sent[0]["status"], b"".join(m.get("body", b"") for m in sent[1:])


def images() -> np.ndarray[Any, Any]:
    with np.load(ROOT / "examples/digits/held_out.npz") as arrays:
        found: np.ndarray[Any, Any] = arrays["images"][:1].astype(np.float32).reshape(1, 1, 8, 8)
        return found


def test_json_and_npz_get_the_numbers_of_the_model(server: Any) -> None:
    x = images()
    (need,) = [np.asarray(server.net(x))]
    status, text = answered(server, "/predict", json.dumps({"inputs": {"image": x.tolist()}}).encode())
    assert status == 200
    assert np.array_equal(np.float32(json.loads(text)["outputs"]["probabilities"]), need)
    file = io.BytesIO()
    np.savez(file, image=x)
    status, data = answered(server, "/predict", file.getvalue(), "application/octet-stream")
    assert status == 200
    with np.load(io.BytesIO(data)) as arrays:
        assert np.array_equal(arrays["probabilities"], need)


@pytest.mark.parametrize(
    "body",
    [
        b"no json",
        b"[]",
        b'{"inputs": 3}',
        b'{"inputs": {"image": [1, 2]}}',
        b'{"inputs": {"image": [[1], [2, 3]]}}',
        b'{"inputs": {"picture": [1]}}',
        b'{"inputs": {}}',
    ],
)
def test_a_request_that_does_not_fit_is_answered_by_400(server: Any, body: bytes) -> None:
    status, text = answered(server, "/predict", body)
    assert status == 400, text
    assert json.loads(text)["detail"]


def test_arrays_that_are_none_are_answered_by_400(server: Any) -> None:
    assert answered(server, "/predict", b"PK no zip", "application/octet-stream")[0] == 400


def test_a_call_too_many_is_answered_by_503(server: Any) -> None:
    body = json.dumps({"inputs": {"image": images().tolist()}}).encode()
    with server.admitted, server.admitted:
        assert answered(server, "/predict", body)[0] == 503
    assert answered(server, "/predict", body)[0] == 200


def test_the_server_says_what_it_takes(server: Any) -> None:
    status, text = answered(server, "/model")
    assert status == 200
    assert json.loads(text)["inputs"] == [{"name": "image", "shape": [1, 1, 8, 8], "dtype": "fp32"}]
    assert answered(server, "/health") == (200, b'"ok"')


def test_workers_answer_under_load_and_end_when_they_are_asked_to() -> None:
    pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    folder = ROOT / "examples/server"
    command = [sys.executable, folder / "run.py", ROOT / "examples/digits/digits.onnx", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        load = [sys.executable, folder / "load.py", url, "--clients", "3", "--seconds", "0.3"]
        done = subprocess.run(load, capture_output=True, text=True, timeout=120)
        server.terminate()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].startswith("status 200: ")
    assert server.returncode == 0
