"""Prompts as token ids: in the tokenizer's chat template, or as plain text for a base model."""

from __future__ import annotations

from typing import Any

from jinja2 import TemplateError

from lab.errors import UserError
from real.problems import Problem
from real.settings.config import ChatTemplate

FIXED_DATE = "26 Jul 2024"
"""Given to templates that write today's date into the prompt, as Llama 3.2's does by default:
prompts must be the same on every day. It is the date that this template itself falls back to."""


def uses_template(tokenizer: Any, wanted: ChatTemplate) -> bool:
    """Whether prompts are wrapped in the chat template.

    Raises:
        UserError: a template is required and the tokenizer has none.
    """
    if wanted == "off":
        return False
    if tokenizer.chat_template:
        return True
    if wanted == "require":
        raise UserError(
            "chat_template = 'require': the model's tokenizer has none; give an instruction-tuned "
            "model, or use auto for plain text prompts"
        )
    return False


def encode(tokenizer: Any, problem: Problem, suffix: str, in_template: bool) -> list[int]:
    """Token ids of one problem's prompt.

    It says nothing of prompts beyond the model's length: those are counted later.

    Args:
        tokenizer: of the model.
        problem: its earlier messages come first.
        suffix: put behind the prompt.
        in_template: as a chat that the model goes on with, else as plain text, messages apart by a
            blank line.

    Raises:
        UserError: the template refuses the messages, or no tokens come out.
    """
    if in_template:
        # The template has written the special tokens already.
        text = _chat(tokenizer, problem, suffix)
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    else:
        contents = [turn.content for turn in problem.before]
        text = "\n\n".join([*contents, problem.prompt + suffix])
        ids = tokenizer(text, verbose=False)["input_ids"]
    if not ids:
        raise UserError(f"problem {problem.id!r}: the tokenizer makes no tokens of its prompt")
    return ids


def _chat(tokenizer: Any, problem: Problem, suffix: str) -> str:
    turns = [{"role": turn.role, "content": turn.content} for turn in problem.before]
    turns.append({"role": "user", "content": problem.prompt + suffix})
    try:
        return tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True, date_string=FIXED_DATE
        )
    except TemplateError as error:
        reason = (error.message or type(error).__name__).splitlines()[0]
        raise UserError(
            f"problem {problem.id!r}: the chat template refuses its messages ({reason}); "
            "change them, or use --chat-template off"
        ) from error
