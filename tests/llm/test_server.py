"""`hexane serve`: OpenAI's API, called through its application as a web server calls it."""

import asyncio
import http.client
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import hexane as hx
import tiny_llm

pytest.importorskip("starlette", reason="starlette is not installed: pip install 'hexane[serve]'")
pytest.importorskip("jinja2", reason="jinja2 is not installed: pip install 'hexane[chat]'")
from hexane.llm.server import application

CHAT = [{"role": "user", "content": "What is a tide?"}]
CHATS, TEXTS = "/v1/chat/completions", "/v1/completions"
Answered = tuple[int, Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> hx.llm.LanguageModel:
    return hx.llm.load(tiny_llm.write(tmp_path_factory.mktemp("llm") / "tiny"), threads=1)


@pytest.fixture(scope="module")
def app(model: hx.llm.LanguageModel) -> Any:
    return application(model, "tiny", contexts=2, waiting=8)


async def one(app: Any, path: str, body: bytes | None, leave_after: int | None = None) -> tuple[int, bytes]:
    """Status and body of an answer. leave_after: events after which the caller goes away."""
    sent: list[dict[str, Any]] = []
    gone = asyncio.Event()
    pending = [{"type": "http.request", "body": body or b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        if pending:
            return pending.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if leave_after is not None and len(sent) > leave_after:
            gone.set()

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
        "method": "GET" if body is None else "POST", "scheme": "http", "path": path, "raw_path": path.encode(),
        "query_string": b"", "root_path": "", "headers": [], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    await app(scope, receive, send)
    return sent[0]["status"], b"".join(m.get("body", b"") for m in sent[1:])


def several(app: Any, requests: Sequence[tuple[str, dict[str, Any]]]) -> list[Answered]:
    async def run() -> list[tuple[int, bytes]]:
        return await asyncio.gather(*(one(app, path, json.dumps(body).encode()) for path, body in requests))

    return [(status, json.loads(body)) for status, body in asyncio.run(run())]


def ask(app: Any, path: str, **body: Any) -> Answered:
    return several(app, [(path, body)])[0]


def events(app: Any, path: str, **body: Any) -> list[Any]:
    status, data = asyncio.run(one(app, path, json.dumps({**body, "stream": True}).encode()))
    assert status == 200
    lines = data.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def test_the_model_is_listed(app: Any) -> None:
    status, body = asyncio.run(one(app, "/v1/models", None))
    assert status == 200
    assert [row["id"] for row in json.loads(body)["data"]] == ["tiny"]
    assert asyncio.run(one(app, "/health", None)) == (200, b"ok")


def test_one_model_is_named(app: Any) -> None:
    """`client.models.retrieve(name)` of OpenAI's package."""
    status, body = asyncio.run(one(app, "/v1/models/tiny", None))
    assert (status, json.loads(body)["id"]) == (200, "tiny")
    status, body = asyncio.run(one(app, "/v1/models/org/other", None))
    assert (status, json.loads(body)["error"]["code"]) == (404, "model_not_found")


def test_a_message_of_the_developer_is_one_of_the_system(app: Any) -> None:
    """OpenAI's newer name of the role, of which published templates know nothing: many leave such a message out."""
    asked = {"temperature": 0, "max_tokens": 8}
    found = [
        ask(app, CHATS, messages=[{"role": role, "content": "Be brief."}, *CHAT], **asked)[1]
        for role in ("system", "developer")
    ]
    assert found[0]["choices"] == found[1]["choices"]
    assert found[0]["usage"]["prompt_tokens"] == found[1]["usage"]["prompt_tokens"]


def test_fields_that_change_nothing_are_taken(app: Any) -> None:
    neutral = {"tool_choice": "none", "top_logprobs": 0, "modalities": ["text"], "ignore_eos": False, "user": "u"}
    assert ask(app, CHATS, messages=CHAT, max_tokens=1, metadata={}, store=False, **neutral)[0] == 200


def test_a_caller_that_goes_away_before_its_request_ends_is_no_failure(app: Any) -> None:
    sent = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "POST",
        "scheme": "http", "path": CHATS, "raw_path": CHATS.encode(), "query_string": b"", "root_path": "",
        "headers": [], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 400


def test_an_answer_is_that_of_the_model(app: Any, model: hx.llm.LanguageModel) -> None:
    want = model.generate(CHAT, temperature=0, steps=12)
    status, found = ask(app, CHATS, model="tiny", messages=CHAT, temperature=0, max_tokens=12)
    assert status == 200
    text = want.text()
    assert found["object"] == "chat.completion"
    assert found["choices"][0]["message"] == {"role": "assistant", "content": text}
    assert found["choices"][0]["finish_reason"] == ("length" if len(want.tokens) == 12 else "stop")
    assert found["usage"]["prompt_tokens"] == len(want.prompt)
    assert found["usage"]["completion_tokens"] == len(want.tokens)
    parts = [{"role": "user", "content": [{"type": "text", "text": CHAT[0]["content"]}]}]
    again = ask(app, CHATS, messages=parts, temperature=0, max_completion_tokens=12)[1]
    assert again["choices"] == found["choices"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == len(want.prompt) - 1


def test_a_stream_has_the_same_text_in_pieces(app: Any, model: hx.llm.LanguageModel) -> None:
    asked = {"temperature": 1.5, "seed": 5, "max_tokens": 20}
    whole = ask(app, CHATS, messages=CHAT, **asked)[1]
    found = events(app, CHATS, messages=CHAT, stream_options={"include_usage": True}, **asked)
    deltas = [one["choices"][0]["delta"] for one in found[:-1]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    text = "".join(delta.get("content", "") for delta in deltas)
    assert text == whole["choices"][0]["message"]["content"]
    assert found[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert found[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert {one["object"] for one in found} == {"chat.completion.chunk"}
    assert len({one["id"] for one in found}) == 1
    want = model.generate("tide", temperature=1.5, top_p=1.0, seed=5, steps=20).text()
    texts = events(app, TEXTS, prompt="tide", **asked)
    assert "".join(one["choices"][0]["text"] for one in texts) == want
    assert ask(app, TEXTS, prompt=["tide"], **asked)[1]["choices"][0]["text"] == want


def test_more_conversations_than_contexts_wait_for_their_turn(app: Any, model: hx.llm.LanguageModel) -> None:
    prompts = [f"{i} is a number " * (2 + i) for i in range(6)]
    want = [model.generate(prompt, temperature=0, steps=10).text() for prompt in prompts]
    asked = [(TEXTS, {"prompt": prompt, "temperature": 0, "max_tokens": 10}) for prompt in prompts]
    assert [body["choices"][0]["text"] for _, body in several(app, asked)] == want


def test_requests_that_cannot_wait_are_refused(model: hx.llm.LanguageModel) -> None:
    small = application(model, "tiny", contexts=1, waiting=1)
    body = (TEXTS, {"prompt": "a", "max_tokens": 30, "temperature": 0})
    found = several(small, [body] * 4)
    assert sorted(status for status, _ in found) == [200, 200, 503, 503]
    refused = next(body for status, body in found if status == 503)
    assert refused["error"]["type"] == "server_error"
    assert several(small, [body])[0][0] == 200


def test_a_caller_that_goes_away_leaves_its_place(model: hx.llm.LanguageModel) -> None:
    small = application(model, "tiny", contexts=1, waiting=0)
    body = json.dumps({"prompt": "a", "max_tokens": 250, "temperature": 1.5, "seed": 1, "stream": True}).encode()

    async def run() -> None:
        for events in (0, 1, 4):
            await one(small, TEXTS, body, leave_after=events)

    asyncio.run(run())
    want = model.generate("b", temperature=0, steps=4).text()
    status, found = ask(small, TEXTS, prompt="b", max_tokens=4, temperature=0)
    assert (status, found["choices"][0]["text"]) == (200, want)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHATS, {}, "messages"),
        (CHATS, {"messages": []}, "messages"),
        (CHATS, {"messages": ["x"]}, "messages[0]"),
        (CHATS, {"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        (CHATS, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        (CHATS, {"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        (CHATS, {"messages": [*CHAT, {"role": "tool", "content": "x"}]}, "messages[1].role"),
        (CHATS, {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
        (CHATS, {"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
        (TEXTS, {"prompt": "a\udcff"}, "prompt"),
        (CHATS, {"messages": CHAT, "tool_choice": "required"}, "tool_choice"),
        (CHATS, {"messages": CHAT, "top_logprobs": 3}, "top_logprobs"),
        (CHATS, {"messages": CHAT, "ignore_eos": True}, "ignore_eos"),
        (CHATS, {"messages": CHAT, "repeat_penalty": 1.1}, "repeat_penalty"),
        (CHATS, {"messages": CHAT, "chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
        (CHATS, {"messages": CHAT, "temperature": "hot"}, "temperature"),
        (CHATS, {"messages": CHAT, "temperature": -1}, None),
        (CHATS, {"messages": CHAT, "top_p": 0}, None),
        (CHATS, {"messages": CHAT, "max_tokens": -1}, "max_tokens"),
        (CHATS, {"messages": CHAT, "seed": 1.5}, "seed"),
        (CHATS, {"messages": CHAT, "stop": [""]}, "stop"),
        (CHATS, {"messages": CHAT, "stop": list("abcde")}, "stop"),
        (CHATS, {"messages": CHAT, "stream": 1}, "stream"),
        (CHATS, {"messages": CHAT, "n": 2}, "n"),
        (CHATS, {"messages": CHAT, "tools": [{}]}, "tools"),
        (CHATS, {"messages": CHAT, "logprobs": True}, "logprobs"),
        (TEXTS, {"prompt": ["a", "b"]}, "prompt"),
        (TEXTS, {"prompt": 5}, "prompt"),
        (TEXTS, {"prompt": ""}, "prompt"),
    ],
)
def test_bad_requests_are_400_in_the_api_s_shape(app: Any, path: str, body: dict[str, Any], param: str | None) -> None:
    status, found = ask(app, path, **body)
    assert status == 400, found
    assert found["error"]["type"] == "invalid_request_error"
    assert found["error"]["param"] == param
    assert found["error"]["message"]


def test_what_is_no_request_is_told(app: Any) -> None:
    for data in (b"{", b"[1]", b"\xff", b"[" * 100_000):
        status, body = asyncio.run(one(app, CHATS, data))
        assert (status, json.loads(body)["error"]["type"]) == (400, "invalid_request_error")
    assert asyncio.run(one(app, CHATS, b" " * ((16 << 20) + 1)))[0] == 413
    status, found = ask(app, CHATS, messages=CHAT, model="other")
    assert (status, found["error"]["code"]) == (404, "model_not_found")
    assert asyncio.run(one(app, "/v1/none", None))[0] == 404
    assert "error" in json.loads(asyncio.run(one(app, CHATS, None))[1])  # GET
    status, found = ask(app, TEXTS, prompt="a" * 400)
    assert (status, found["error"]["code"]) == (400, "context_length_exceeded")


def test_missing_fields_of_sampling_come_from_the_folder(tmp_path: Path) -> None:
    """As in vLLM: a model is served with the sampling that its authors recommend."""
    folder = tiny_llm.write(tmp_path / "tiny")
    fields = {"do_sample": True, "temperature": 1.7, "top_k": 3, "repetition_penalty": 1.3}
    (folder / "generation_config.json").write_text(json.dumps(fields))
    app = application(hx.llm.load(folder, threads=1), "tiny", contexts=1)
    body = {"prompt": "What is", "max_tokens": 24, "seed": 5}
    neutral = {"temperature": 1.0, "top_k": 0, "repetition_penalty": 1.0}

    def text(**given: float) -> str:
        status, answer = ask(app, TEXTS, **body, **given)
        assert status == 200
        return str(answer["choices"][0]["text"])

    assert text() == text(temperature=1.7, top_k=3, repetition_penalty=1.3)
    assert text(temperature=1.0) == text(temperature=1.0, top_k=3, repetition_penalty=1.3)
    assert text() != text(**neutral)
    (folder / "generation_config.json").unlink()
    app = application(hx.llm.load(folder, threads=1), "tiny", contexts=1)
    assert text() == text(**neutral)


def test_the_command_answers_over_http(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'hexane[serve]'")
    folder = tiny_llm.write(tmp_path / "tiny")
    command = [sys.executable, "-m", "hexane", "serve", str(folder), "--port", "0", "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            assert address.endswith("/v1")
            connection = http.client.HTTPConnection(address.split("/")[2], timeout=30)
            body = json.dumps({"model": "tiny", "messages": CHAT, "max_tokens": 3})
            connection.request("POST", CHATS, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            assert response.status == 200
            assert json.loads(response.read())["usage"]["completion_tokens"] <= 3
            connection.close()
        finally:
            server.terminate()
