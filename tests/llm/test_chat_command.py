"""`hexane chat`: messages from stdin, answers on stdout."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hexane as hx
import tiny_llm
from command import Cli, Ended, in_this_process
from hexane.llm.answer import Answer

pytest.importorskip("jinja2", reason="jinja2 is not installed: pip install 'hexane[chat]'")
Talk = Callable[..., Ended]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llm.write(tmp_path_factory.mktemp("llm") / "tiny")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return in_this_process(capsys)


@pytest.fixture
def talk(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Talk:
    def run(text: str, *options: object) -> Ended:
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        return cli("chat", folder, "--temperature", 0, "--steps", 6, "--threads", 1, *options)

    return run


def answers(folder: Path, *lines: str, system: str = "", steps: int = 6) -> list[str]:
    """Each computed of the whole history anew."""
    model, found = hx.llm.load(folder, threads=1), list[str]()
    messages = [{"role": "system", "content": system}] if system else []
    for line in lines:
        messages.append({"role": "user", "content": line})
        found.append(model.context().generate(messages, temperature=0, steps=steps).text())
        messages.append({"role": "assistant", "content": found[-1]})
    return found


def test_messages_are_answered_with_their_history(talk: Talk, folder: Path) -> None:
    ended = talk("What is a tide?\n\nAnd on the moon?\nWhy")
    assert ended.code == 0, ended.err
    first, second, third = answers(folder, "What is a tide?", "And on the moon?", "Why")
    assert ended.out == f"{first}\n{second}\n{third}\n"


def test_a_reset_forgets_the_history_but_not_the_system(talk: Talk, folder: Path) -> None:
    ended = talk("one\n/reset\ntwo\n/quit\nthree\n", "--system", "Be short.")
    want = [*answers(folder, "one", system="Be short."), *answers(folder, "two", system="Be short.")]
    assert ended.out == "".join(f"{text}\n" for text in want)


def test_an_interrupt_stops_the_answer_alone(talk: Talk, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, count = Answer.__next__, 0

    def interrupted(self: Any) -> str:
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        return plain(self)

    monkeypatch.setattr(Answer, "__next__", interrupted)
    ended = talk("What is a tide?\n/reset\nWhy\n")
    monkeypatch.setattr(Answer, "__next__", plain)
    assert ended.code == 0, ended.err
    stopped, why = ended.out.splitlines()
    assert answers(folder, "What is a tide?")[0].startswith(stopped)
    assert why == answers(folder, "Why")[0]


def test_a_message_that_has_no_room_leaves_the_chat_as_it_was(talk: Talk, folder: Path) -> None:
    ended = talk("one\n" + "a" * 400 + "\ntwo\n")
    assert ended.code == 0, ended.err
    assert "need at most the 320 of the context; /reset begins anew" in " ".join(ended.err.split())
    assert ended.out == "".join(f"{text}\n" for text in answers(folder, "one", "two"))
    full = talk("one\n", "--context", 50)
    assert full.code == 0, full.err
    assert talk("a" * 400).code == 1


def test_commands_keep_the_room_of_a_context_in_bounds(cli: Cli, tmp_path: Path) -> None:
    """Llama 3.2 of 1B takes 131,072 tokens: a cache of so many has 8.6 GB, and each token would attend to all of it."""
    path = tiny_llm.write(tmp_path / "long", seq=8192)
    asked = ("generate", path, "--prompt", "a" * 4200, "--steps", 0, "--threads", 1)
    ended = cli(*asked)
    assert ended.code == 1
    said = "need at most the 4096 of the context, or a larger --context: the model takes 8192"
    assert said in " ".join(ended.err.split())
    assert cli(*asked, "--context", 8192).code == 0


def test_a_model_without_a_template_says_so_at_once(cli: Cli, tmp_path: Path) -> None:
    ended = cli("chat", tiny_llm.write(tmp_path / "plain", template=None), "--threads", 1)
    assert (ended.code, "got no chat template" in ended.err) == (1, True)
