"""Chat templates of models' folders, in Jinja's sandbox."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import hexane as hx
from hexane.train.text import ChatTemplate, load_chat_template

# Of Qwen2.5 without its tools, and of Llama 2 with its refusal.
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
STRICT = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% generation %}[INST] {{ m.content | trim }} [/INST]{% endgeneration %}{% if loop.first %}{% continue %}{% endif %}"
    "{{ eos_token }}{% endfor %}"
)
ASKED = [{"role": "user", "content": " What is a <tide>? "}]
CHATML_TEXT = "<|im_start|>user\n What is a <tide>? <|im_end|>\n<|im_start|>assistant\n"


def folder(tmp_path: Path, template: Any, **more: Any) -> Path:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, **more}))
    return tmp_path


def test_a_template_is_found_in_each_of_its_places(tmp_path: Path) -> None:
    pytest.importorskip("jinja2", reason="jinja2 is not installed: pip install 'hexane[chat]'")
    assert load_chat_template(folder(tmp_path, CHATML))(ASKED) == CHATML_TEXT
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHATML}]
    assert load_chat_template(folder(tmp_path, named))(ASKED) == CHATML_TEXT
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content | tojson }}")
    assert load_chat_template(folder(tmp_path, CHATML))(ASKED) == '" What is a <tide>? "'


def test_marks_and_the_words_of_transformers_are_there(tmp_path: Path) -> None:
    pytest.importorskip("jinja2", reason="jinja2 is not installed: pip install 'hexane[chat]'")
    made = load_chat_template(folder(tmp_path, STRICT, bos_token={"content": "<s>", "lstrip": False}, eos_token="</s>"))
    assert made(ASKED) == "<s>[INST] What is a <tide>? [/INST]"
    with pytest.raises(hx.Error, match="no system role, need messages that the template takes"):
        made([{"role": "system", "content": "x"}])
    assert len(ChatTemplate("{{ strftime_now('%Y') }}", {})(ASKED)) == 4


def test_a_template_that_asks_for_tools_by_none_gets_none(tmp_path: Path) -> None:
    """As Mistral's and Command R's do; transformers gives both names to each template."""
    pytest.importorskip("jinja2", reason="jinja2 is not installed: pip install 'hexane[chat]'")
    asks = "{% if tools is not none %}TOOLS{% endif %}{% if documents is not none %}DOCUMENTS{% endif %}x"
    assert load_chat_template(folder(tmp_path, asks))(ASKED) == "x"


def test_special_tokens_of_a_file_of_their_own_are_there(tmp_path: Path) -> None:
    """transformers 4 writes them into both files, other programs into one; tokenizer_config.json counts first."""
    pytest.importorskip("jinja2", reason="jinja2 is not installed: pip install 'hexane[chat]'")
    marks = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(marks))
    text = "{{ bos_token + messages[0].content + eos_token }}"
    assert load_chat_template(folder(tmp_path, text))([{"role": "user", "content": "a"}]) == "<s>a</s>"
    made = load_chat_template(folder(tmp_path, text, eos_token="<|im_end|>"))
    assert made([{"role": "user", "content": "a"}]) == "<s>a<|im_end|>"
    (tmp_path / "special_tokens_map.json").write_text("[]")
    with pytest.raises(hx.Error, match=r"special_tokens_map\.json: got list, need an object"):
        load_chat_template(tmp_path)


@pytest.mark.parametrize("text", ["{{ ''.__class__.__mro__[1].__subclasses__() }}", "{% set _ = messages.append(1) %}"])
def test_a_template_cannot_leave_its_sandbox(text: str) -> None:
    pytest.importorskip("jinja2", reason="jinja2 is not installed: pip install 'hexane[chat]'")
    with pytest.raises(hx.Error, match="need messages that the template takes"):
        ChatTemplate(text, {})(ASKED)


def test_what_is_no_template_is_named(tmp_path: Path) -> None:
    pytest.importorskip("jinja2", reason="jinja2 is not installed: pip install 'hexane[chat]'")
    with pytest.raises(hx.Error, match="need a Jinja template"):
        ChatTemplate("{% for %}", {})


def test_a_folder_without_a_template_is_named(tmp_path: Path) -> None:
    with pytest.raises(hx.Error, match=r"got no chat template, need chat_template.jinja, or chat_template in"):
        load_chat_template(tmp_path)


def test_the_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(hx.Error, match=r"got no package jinja2, need: pip install 'hexane\[chat\]'"):
        load_chat_template(folder(tmp_path, CHATML))
