"""The problem set Q as the model sees it: prompts as token ids, overlong ones left out and counted.

Prompts are written in the tokenizer's chat template, or as plain text for a base model.
"""

from __future__ import annotations

import contextlib
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from lab.base.errors import Unfit, UserError, first_line
from real.model.policy import Policy
from real.problems.load import suffix_of
from real.problems.problem import Problem, ProblemSet, PromptSet
from real.settings.config import BOX_REQUEST, ChatTemplate, TrainConfig

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
        turns: messages with the keys `role` and `content`.

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


_OWN_SHARE = 0.9
"""A model's own tokenizer has at least this share of its embeddings, padding of these included."""


def build_prompts(problem_set: ProblemSet, config: TrainConfig, policy: Policy) -> PromptSet:
    """Encode problems; those that do not fit the limits are left out.

    Args:
        problem_set: from `real.problems.load.read_problems`.
        policy: whose tokenizer and positions count.

    Raises:
        UserError: no prompt fits, the tokenizer makes nothing of one, or lacks a chat template
            that the settings require.
    """
    limit = longest_prompt(config, policy)
    in_template = uses_template(policy.tokenizer, config.chat_template)
    check_options(policy.tokenizer, config.template_options, in_template)
    problems: list[Problem] = []
    tokens: list[list[int]] = []
    left_out: list[str] = []
    for problem in problem_set:
        ids = _ids(problem, config, policy, suffix_of(problem, config.prompt_suffix), in_template)
        if len(ids) > limit:
            left_out.append(problem.id)
            continue
        problems.append(problem)
        tokens.append(ids)
    if not problems:
        raise Unfit(
            f"all {len(left_out)} prompts are longer than {limit} tokens; "
            "raise max_prompt_tokens or take a model with more positions"
        )
    notices = [*problem_set.notices, *_notices(problem_set, config, policy, in_template)]
    if left_out:
        notices.append(
            f"left out: {len(left_out)} overlong prompts, of more than {limit} tokens; "
            "their ids are in run.json"
        )
    return PromptSet(
        _name(problem_set.name, config),
        problems,
        tokens,
        left_out,
        problem_set.fields,
        problem_set.by_usual_name,
        tuple(notices),
    )


def prompt_tokens(
    problem: Problem, config: TrainConfig, policy: Policy, suffix: str | None = None
) -> list[int]:
    """Return the token ids of a further prompt, encoded like those of the run's problems.

    Args:
        suffix: appended to it; that of the settings if None.

    Raises:
        UserError: the tokenizer makes nothing of it.
    """
    in_template = uses_template(policy.tokenizer, config.chat_template)
    suffix = suffix_of(problem, config.prompt_suffix) if suffix is None else suffix
    return _ids(problem, config, policy, suffix, in_template)


def _ids(
    problem: Problem, config: TrainConfig, policy: Policy, suffix: str, in_template: bool
) -> list[int]:
    if config.system_prompt is not None:
        problem = problem.under_system(config.system_prompt)
    return encode(policy.tokenizer, problem, suffix, in_template, config.template_options)


def _notices(
    problem_set: ProblemSet, config: TrainConfig, policy: Policy, in_template: bool
) -> Iterator[str]:
    asked = (
        sum(problem.asks_for_box for problem in problem_set)
        if config.prompt_suffix == BOX_REQUEST
        else 0
    )
    if asked:
        yield f"{asked} prompts ask for a boxed answer themselves and got no suffix"
    # The tiny task is plain text by design.
    if not (in_template or config.is_tiny or config.chat_template == "off"):
        yield (
            "the tokenizer has no chat template: prompts are plain text, as for a base model "
            "(--chat-template require refuses such a model, off accepts it silently)"
        )
    n_tokens = len(policy.tokenizer)
    n_embeddings = policy.model.get_input_embeddings().weight.shape[0]
    if n_tokens < _OWN_SHARE * n_embeddings:
        yield (
            f"the tokenizer has {n_tokens} tokens, the model {n_embeddings}; "
            "check that it is the model's own"
        )


def longest_prompt(config: TrainConfig, policy: Policy) -> int:
    """Return the largest number of tokens that a prompt may have.

    Raises:
        UserError: the model has no positions left for one.
    """
    positions = policy.max_positions
    if positions is None:
        return config.max_prompt_tokens
    room = positions - (config.max_response_tokens or 0)
    if room < 1:
        raise Unfit(
            f"max_response_tokens = {config.max_response_tokens}: the model has {positions} "
            "positions for prompt and response together; give --max-response-tokens "
            f"{max(1, positions // 2)} or fewer"
        )
    return min(config.max_prompt_tokens, room)


def _name(task: str, config: TrainConfig) -> str:
    return task if config.model is None else f"{task} with {Path(config.model).name}"


def uses_template(tokenizer: Any, setting: ChatTemplate) -> bool:
    """True if prompts are wrapped in the chat template.

    Raises:
        UserError: a template is required and the tokenizer has none.
    """
    if setting == "off":
        return False
    if tokenizer.chat_template:
        return True
    if setting == "require":
        raise UserError(
            "chat_template = 'require': the model's tokenizer has none; give an instruction-tuned "
            "model, or use auto for plain text prompts"
        )
    return False


def check_options(tokenizer: Any, options: Mapping[str, Any], in_template: bool) -> None:
    """Refuse variables that the chat template does not read.

    Raises:
        UserError: there is no template, or it does not read one of them.
    """
    for name in options:
        if not in_template:
            raise UserError(
                f"template_options = {name}: the prompts are in no chat template; leave it out"
            )
        if not re.search(rf"\b{re.escape(name)}\b", str(tokenizer.chat_template)):
            raise UserError(
                f"template_options = {name}: the model's chat template does not read it; check "
                "its spelling, or leave it out"
            )


def encode(
    tokenizer: Any,
    problem: Problem,
    suffix: str,
    in_template: bool,
    options: Mapping[str, Any] | None = None,
) -> list[int]:
    """Return the token ids of one problem's prompt, without a check of its length.

    Args:
        in_template: write it as a chat that the model continues, else as plain text with a blank
            line between messages.

    Raises:
        UserError: the template refuses the messages, or no tokens come out.
    """
    if in_template:
        # The template has written the special tokens already.
        text = _chat(tokenizer, problem, suffix, options or {})
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    else:
        contents = [turn.content for turn in problem.before]
        text = "\n\n".join([*contents, problem.prompt + suffix])
        ids = tokenizer(text, verbose=False)["input_ids"]
    if not ids:
        raise UserError(f"problem {problem.id!r}: the tokenizer makes no tokens of its prompt")
    return ids


def _chat(tokenizer: Any, problem: Problem, suffix: str, options: Mapping[str, Any]) -> str:
    try:
        return chat_text(tokenizer, problem.messages(suffix), options)
    except UserError as error:
        raise UserError(f"problem {problem.id!r}: {error}; or change its messages") from error
