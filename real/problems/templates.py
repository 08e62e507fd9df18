"""Chat templates of model folders: programs of strangers, rendered within limits."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from lab.errors import UserError, first_line

FIXED_DATE = "26 Jul 2024"
"""Date for templates that write today's date into the prompt, as Llama 3.2's does by default:
prompts must be the same every day. It is the fallback of that template."""

SECONDS = 5.0
"""CPU time in which a template may write one prompt; usual ones take milliseconds."""
MOST_MEMORY = 2**30
"""Bytes that it may take for that."""
MOST_CHARACTERS = 10**7
"""Longest prompt in characters, beyond any model's context."""

_FAILURES = (ArithmeticError, RecursionError, TimeoutError, LookupError, TypeError, ValueError)


def chat_text(
    tokenizer: Any, turns: list[dict[str, str]], options: Mapping[str, Any] | None = None
) -> str:
    """Return a conversation in the tokenizer's chat template, up to where the model answers.

    Args:
        tokenizer: of the model.
        turns: messages with the keys `role` and `content`.
        options: variables for the template.

    Raises:
        UserError: the template refuses the messages, fails, or exceeds its time or memory.
    """
    try:
        with _limits():
            text = tokenizer.apply_chat_template(
                turns,
                tokenize=False,
                add_generation_prompt=True,
                **{"date_string": FIXED_DATE, **(options or {})},
            )
    except TemplateError as error:
        raise _failure("refuses its messages", first_line(error)) from error
    except MemoryError as error:
        raise _failure("fails", f"needs more than {MOST_MEMORY >> 20} MiB") from error
    except _FAILURES as error:
        raise _failure("fails", f"{type(error).__name__}: {first_line(error)}") from error
    if len(text) > MOST_CHARACTERS:
        raise _failure("fails", f"writes {len(text)} characters")
    return text


def _failure(what: str, reason: str) -> UserError:
    return UserError(f"the chat template {what} ({reason}); use --chat-template off")


@contextlib.contextmanager
def _limits() -> Iterator[None]:
    """Stop the work inside by an error when it takes too long or too much memory.

    Only where the system can: the time on the main thread of Unix, the memory on Linux.
    """
    with contextlib.ExitStack() as stack:
        if hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
            stack.enter_context(_time_limit())
        if Path("/proc/self/statm").is_file():
            stack.enter_context(_memory_limit())
        yield


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"takes longer than {SECONDS:g} seconds")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextlib.contextmanager
def _memory_limit() -> Iterator[None]:
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MOST_MEMORY
    if before[0] != resource.RLIM_INFINITY:
        limit = min(limit, before[0])
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
