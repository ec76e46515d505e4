"""An OpenAI-compatible server for a language model: an ASGI application on Starlette."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from hexane.errors import Error
from hexane.llm.answer import Answer
from hexane.llm.conversation import Conversation
from hexane.llm.model import LanguageModel
from hexane.llm.requests import BadRequest, Request, chat_request, text_request

MOST_BYTES = 16 << 20  # largest request
FINISHED = {"end": "stop", "stop": "stop", "steps": "length", "seq": "length"}
NEEDED = "[llm.serve] got no package {}, need: pip install 'hexane[serve]'"


class Pool:
    """Conversations for requests, each with a cache. A request gets the free conversation whose cache has most of its
    prompt. If no free cache has any of it, and fewer than `contexts` conversations exist, the request gets a new
    one."""

    def __init__(self, model: LanguageModel, contexts: int, waiting: int) -> None:
        self._model, self._contexts = model, contexts
        self._free: list[Conversation] = []
        self._made = 0
        self._turns = asyncio.Semaphore(contexts)
        self._left = contexts + waiting

    async def take(self, ids: list[int]) -> Conversation:
        """Waits for a conversation. Raises BadRequest if too many requests are waiting."""
        if self._left == 0:
            raise BadRequest("too many requests wait; try again later", status=503, code="overloaded")
        self._left -= 1
        try:
            await self._turns.acquire()
        except BaseException:
            self._left += 1
            raise
        known = max(self._free, key=lambda one: one.known_of(ids), default=None)
        if known is None or (self._made < self._contexts and known.known_of(ids) == 0):
            self._made += 1
            return self._model.context()
        self._free.remove(known)
        return known

    def give(self, conversation: Conversation) -> None:
        self._free.append(conversation)
        self._left += 1
        self._turns.release()


def application(model: LanguageModel, name: str, *, contexts: int = 4, waiting: int = 32) -> Any:
    """Returns an application with GET /v1/models, /v1/models/NAME and /health, and POST /v1/chat/completions and
    /v1/completions, also with streams.

    name: of the model in requests and answers; contexts: conversations that run at the same time, each with a cache;
    waiting: how many further requests may wait; others get status 503. `model.served_sampling` supplies the sampling
    fields that a request lacks. Raises Error without the package starlette.
    """
    try:
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse, PlainTextResponse
        from starlette.routing import Route
    except ImportError:
        raise Error(NEEDED.format("starlette")) from None
    pool, created, default = Pool(model, contexts, waiting), int(time.time()), model.served_sampling

    row = {"id": name, "object": "model", "created": created, "owned_by": "hexane"}

    async def models(_: Any) -> Any:
        return JSONResponse({"object": "list", "data": [row]})

    async def of_name(request: Any) -> Any:
        asked = request.path_params["name"]
        if asked == name:
            return JSONResponse(row)
        return JSONResponse(
            problem(f"got the model {asked!r}, need {name!r}", "model", "model_not_found"), status_code=404
        )

    async def health(_: Any) -> Any:
        return PlainTextResponse("ok")

    async def refused(_: Any, error: Exception) -> Any:
        status = getattr(error, "status_code", 500)
        text = str(getattr(error, "detail", "")) or "the server failed"
        return JSONResponse(problem(text, server=status >= 500), status_code=status)

    def endpoint(is_chat: bool) -> Callable[[Any], Any]:
        async def answered(request: Any) -> Any:
            try:
                body = await _body(request)
                asked = (chat_request if is_chat else text_request)(body, name, model.config.seq, default)
                return await _answered(pool, model, asked, _Written(name, is_chat))
            except BadRequest as error:
                headers = {"Retry-After": "1"} if error.status == 503 else None
                answer = problem(str(error), error.param, error.code, server=error.status >= 500)
                return JSONResponse(answer, status_code=error.status, headers=headers)

        return answered

    routes = [
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", of_name),
        Route("/v1/chat/completions", endpoint(True), methods=["POST"]),
        Route("/v1/completions", endpoint(False), methods=["POST"]),
        Route("/health", health),
    ]
    from starlette.exceptions import HTTPException

    return Starlette(routes=routes, exception_handlers={HTTPException: refused, Exception: refused})


def problem(message: str, param: str | None = None, code: str | None = None, *, server: bool = False) -> dict[str, Any]:
    """Returns an error object of the API."""
    kind = "server_error" if server else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


async def _body(request: Any) -> Any:
    from starlette.requests import ClientDisconnect

    data = bytearray()
    try:
        async for piece in request.stream():
            data += piece
            if len(data) > MOST_BYTES:
                raise BadRequest(f"got more than {MOST_BYTES} bytes, need fewer", status=413)
    except ClientDisconnect:
        raise BadRequest("the caller went away") from None
    try:
        return json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"got no JSON: {error}") from None


async def _answered(pool: Pool, model: LanguageModel, asked: Request, written: _Written) -> Any:
    from starlette.responses import JSONResponse, StreamingResponse

    try:
        ids = await asyncio.to_thread(model.encode, asked.prompt)
    except Error as error:
        raise BadRequest(str(error), "messages" if written.is_chat else "prompt") from None
    conversation = await pool.take(ids)
    given = False
    try:
        try:
            answer = conversation.generate(ids, **asked.options)
        except Error as error:
            code = "context_length_exceeded" if len(ids) > model.config.seq else None
            raise BadRequest(str(error), code=code) from None
        if asked.stream:
            given = True
            events = _events(answer, asked, written)
            headers = {"Cache-Control": "no-cache"}
            response = StreamingResponse(events, media_type="text/event-stream", headers=headers)
            return _Released(response, events, partial(pool.give, conversation))
        pieces = [piece async for piece in _pieces(answer)]
        return JSONResponse(written.whole("".join(pieces), answer))
    except BadRequest:
        raise
    except Error as error:
        raise BadRequest(str(error), status=500) from None
    finally:
        if not given:
            pool.give(conversation)


class _Released:
    """A stream that frees its conversation for other requests when it ends, for whatever reason."""

    def __init__(self, response: Any, events: AsyncGenerator[str, None], give: Callable[[], None]) -> None:
        self._response, self._events, self._give = response, events, give

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self._response(scope, receive, send)
        finally:
            try:
                await self._events.aclose()
            finally:
                self._give()


async def _pieces(answer: Answer) -> AsyncIterator[str]:
    """Yields pieces, each computed in a thread. Ending the iteration waits for the current token."""
    while (piece := await _ended(partial(next, answer, None))) is not None:
        yield piece


async def _ended(call: Callable[[], str | None]) -> str | None:
    """Runs a call in a thread and always waits for its end: until then, no other request may use the conversation."""
    running = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):  # the task may be cancelled again while it waits
                await asyncio.wait([running])
        raise


async def _events(answer: Answer, asked: Request, written: _Written) -> AsyncGenerator[str, None]:
    """Yields the answer as server-sent events."""
    try:
        if written.is_chat:
            yield _event(written.chunk({"role": "assistant", "content": ""}))
        async for piece in _pieces(answer):
            yield _event(written.chunk({"content": piece} if written.is_chat else piece))
        yield _event(written.chunk({} if written.is_chat else "", FINISHED[answer.ended_by]))
        if asked.usage:
            yield _event({**written.head(chunk=True), "choices": [], "usage": usage(answer)})
        yield "data: [DONE]\n\n"
    except Error as error:
        yield _event(problem(str(error), server=True))


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


def usage(answer: Answer) -> dict[str, Any]:
    """Returns the counts of tokens in the API's form."""
    prompt, completion = len(answer.prompt), len(answer.tokens)
    details = {"cached_tokens": answer.reused}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": details,
    }


class _Written:
    """Makes the JSON objects of one answer."""

    def __init__(self, model: str, is_chat: bool) -> None:
        self.is_chat, self._model, self._created = is_chat, model, int(time.time())
        self._id = f"{'chatcmpl' if is_chat else 'cmpl'}-{secrets.token_hex(12)}"

    def head(self, chunk: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if self.is_chat else "text_completion"
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def whole(self, text: str, answer: Answer) -> dict[str, Any]:
        said = {"message": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": FINISHED[answer.ended_by]}
        return {**self.head(False), "choices": [choice], "usage": usage(answer)}

    def chunk(self, said: dict[str, str] | str, finished: str | None = None) -> dict[str, Any]:
        part = {"delta": said} if self.is_chat else {"text": said}
        return {
            **self.head(True),
            "choices": [{"index": 0, **part, "logprobs": None, "finish_reason": finished}],
        }
