"""Parses requests of OpenAI's API, and checks all fields before anything is computed."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hexane.errors import Error
from hexane.llm.sampling import OPENAI, Sampling

MOST_STOPS = 4
# Roles in requests -> roles that every chat template supports.
ROLES: Mapping[str, str] = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}
# Unsupported fields, with the values at which they have no effect: first OpenAI's fields, then other servers'.
REFUSED: Mapping[str, tuple[Any, ...]] = {
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "logprobs": (None, False, 0),
    "top_logprobs": (None, 0),
    "response_format": (None, {"type": "text"}),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "logit_bias": (None, {}),
    "n": (None, 1),
    "best_of": (None, 1),
    "suffix": (None, ""),
    "echo": (None, False),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "reasoning_effort": (None,),
    "verbosity": (None,),
    "web_search_options": (None,),
    "min_tokens": (None, 0),
    "ignore_eos": (None, False),
    "repeat_penalty": (None, 1),
    "length_penalty": (None, 1),
    "use_beam_search": (None, False),
    "typical_p": (None, 1),
    "mirostat": (None, 0),
    "bad_words": (None, []),
    "stop_token_ids": (None, []),
    "prompt_logprobs": (None, 0),
    "grammar": (None, ""),
    "json_schema": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "structured_outputs": (None,),
    "chat_template": (None,),
    "chat_template_kwargs": (None, {}),
    "add_generation_prompt": (None, True),
    "continue_final_message": (None, False),
}


class BadRequest(Error):
    """A request that cannot be answered. param: the wrong field, or None."""

    def __init__(self, message: str, param: str | None = None, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.param, self.status, self.code = param, status, code


@dataclass(frozen=True, slots=True)
class Request:
    """A request for text. prompt: a text, or messages. options: of `Conversation.generate`. usage: a stream ends with
    counts of tokens."""

    prompt: str | list[dict[str, str]]
    stream: bool
    usage: bool
    options: dict[str, Any] = field(default_factory=dict)


def chat_request(body: Any, model: str, room: int, default: Sampling = OPENAI) -> Request:
    """Parses a body of /v1/chat/completions. default: the sampling for fields that the body lacks. Raises
    BadRequest."""
    fields = _checked(body, model)
    given = fields.get("messages")
    if not isinstance(given, list) or not given:
        raise BadRequest("messages: need a list of messages with role and content", "messages")
    messages = [_message(i, one) for i, one in enumerate(given)]
    tokens = fields.get("max_completion_tokens")
    name = "max_completion_tokens" if tokens is not None else "max_tokens"
    return _request(fields, messages, name, room, default)


def text_request(body: Any, model: str, room: int, default: Sampling = OPENAI) -> Request:
    """Parses a body of /v1/completions. default: the sampling for fields that the body lacks. Raises BadRequest."""
    fields = _checked(body, model)
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise BadRequest("prompt: need one text", "prompt")
    return _request(fields, prompt, "max_tokens", min(16, room), default)


def _checked(body: Any, model: str) -> Mapping[str, Any]:
    if not isinstance(body, dict):
        raise BadRequest(f"got {type(body).__name__}, need an object in JSON")
    asked = body.get("model")
    if asked is not None and asked != model:
        raise BadRequest(f"got the model {_short(asked)}, need {model!r}", "model", 404, "model_not_found")
    for name, harmless in REFUSED.items():
        if name in body and not any(body[name] == value for value in harmless):
            raise BadRequest(f"{name}: got {_short(body[name])}, which is not supported here", name)
    return body


def _message(i: int, given: Any) -> dict[str, str]:
    name = f"messages[{i}]"
    if not isinstance(given, dict) or not isinstance(given.get("role"), str):
        raise BadRequest(f"{name}: need an object with role and content", name)
    role = ROLES.get(given["role"])
    if role is None:
        raise BadRequest(f"{name}.role: got {_short(given['role'])}, need one of {', '.join(ROLES)}", f"{name}.role")
    for calls in ("tool_calls", "function_call"):
        if given.get(calls):
            raise BadRequest(
                f"{name}.{calls}: got {_short(given[calls])}, which is not supported here", f"{name}.{calls}"
            )
    content = given.get("content")
    if isinstance(content, list):  # parts
        if not all(isinstance(p, dict) and p.get("type") == "text" and isinstance(p.get("text"), str) for p in content):
            raise BadRequest(f"{name}.content: need text, or parts of the type text", f"{name}.content")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise BadRequest(f"{name}.content: got {_short(content)}, need text", f"{name}.content")
    return {"role": role, "content": content}


def _request(
    fields: Mapping[str, Any], prompt: str | list[dict[str, str]], most: str, room: int, default: Sampling
) -> Request:
    stop = fields.get("stop")
    stops = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or len(stops) > MOST_STOPS or not all(isinstance(s, str) and s for s in stops):
        raise BadRequest(f"stop: need a text that is not empty, or at most {MOST_STOPS} of them", "stop")
    seed = _integer(fields, "seed", None)
    streams = fields.get("stream_options") or {}
    if not isinstance(streams, dict):
        raise BadRequest("stream_options: need an object", "stream_options")
    options = {
        "steps": _integer(fields, most, room),
        "temperature": _number(fields, "temperature", default.temperature),
        "top_p": _number(fields, "top_p", default.top_p),
        "top_k": _integer(fields, "top_k", default.top_k),
        "min_p": _number(fields, "min_p", default.min_p),
        "repetition_penalty": _number(fields, "repetition_penalty", default.repetition_penalty),
        "seed": secrets.randbelow(1 << 31) if seed is None else seed,
        "stop": stops,
    }
    return Request(prompt, _flag(fields, "stream"), _flag(streams, "include_usage"), options)


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    given = fields.get(name)
    if given is not None and not isinstance(given, bool):
        raise BadRequest(f"{name}: got {_short(given)}, need true or false", name)
    return bool(given)


def _integer(fields: Mapping[str, Any], name: str, default: int | None) -> int | None:
    given = fields.get(name)
    if given is None:
        return default
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < 1 << 63:
        raise BadRequest(f"{name}: got {_short(given)}, need an integer from 0 on", name)
    return given


def _number(fields: Mapping[str, Any], name: str, default: float) -> float:
    given = fields.get(name)
    if given is None:
        return default
    if isinstance(given, bool) or not isinstance(given, (int, float)) or abs(given) > 1e9:
        raise BadRequest(f"{name}: got {_short(given)}, need a number", name)
    return float(given)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}.."
