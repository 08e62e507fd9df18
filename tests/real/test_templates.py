"""Chat templates that fail, never end or fill the memory, and model folders of another kind."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

import real.problems.prompts as templates
from lab.errors import UserError
from real.model.folder import check_folder
from real.problems.problem import Problem
from real.problems.prompts import encode


def tokenizer(template: str) -> Any:
    backend = Tokenizer(WordLevel({"<unk>": 0}, unk_token="<unk>"))
    made = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    made.chat_template = template
    return made


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ 1/0 }}", "fails .ZeroDivisionError: division by zero"),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "fails .RecursionError"),
        ("{% for i in range(10**9) %}{% endfor %}", "fails .OverflowError: Range too big"),
        ("{{ messages.append(1) }}", "refuses its messages"),
        ("{{ messages[0].role * 10**10 }}", "fails .needs more than 1024 MiB"),
        ("{{ messages[0].role * 10**7 }}", "fails .writes 40000000 characters"),
    ],
)
def test_a_template_that_fails_is_one_line(template: str, reason: str):
    with pytest.raises(UserError, match=rf"^problem 'p': the chat template {reason}") as caught:
        encode(tokenizer(template), Problem("p", "1+1?", "2"), "", True)
    assert "\n" not in str(caught.value) and "--chat-template off" in str(caught.value)


def test_a_template_without_end_is_stopped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(templates, "SECONDS", 0.3)
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    start = time.monotonic()
    with pytest.raises(UserError, match="takes longer than"):
        templates.chat_text(tokenizer(loop), [{"role": "user", "content": "1+1?"}])
    assert time.monotonic() - start < 60


def test_another_thread_renders_too():
    written: list[str] = []
    turns = [{"role": "user", "content": "1+1?"}]
    made = tokenizer("{{ messages[0].content }}")
    thread = threading.Thread(target=lambda: written.append(templates.chat_text(made, turns)))
    thread.start()
    thread.join()
    assert written == ["1+1?"]


@pytest.mark.parametrize("given", ["folder", "folder/small.q8.gguf"])
def test_gguf_files_are_named(given: str, tmp_path: Path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "small.q8.gguf").touch()
    with pytest.raises(UserError, match=r"small.q8.gguf is a GGUF file, .* convert"):
        check_folder(tmp_path / given)
