"""The problems as the model sees them: token ids in its chat template, or of plain text."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from unicodedata import normalize

import msgspec
from jinja2 import TemplateError

from lab.base.errors import Unfit, UserError, first_line
from lab.base.stats import counted
from real.model.policy import Policy, max_positions
from real.problems.load import suffix_of
from real.problems.problem import Problem, ProblemSet, PromptSet
from real.settings.groups import BOX_REQUEST, TaskSettings

FIXED_DATE = "26 Jul 2024"
"""Date for templates that write today's date into the prompt, as Llama 3.2's does by default:
prompts must be the same every day. It is the fallback of that template."""

_CLOCK = {
    "date_string": FIXED_DATE,
    "strftime_now": datetime.strptime(FIXED_DATE, "%d %b %Y").strftime,
}
"""What templates read the date from, or ask for the time themselves."""
_REPLY = "42"
Options = Mapping[str, Any]

_OWN_SHARE = 0.9
"""A model's own tokenizer has at least this share of its embeddings, padding of these included."""
_FAILURES = (TemplateError, ArithmeticError, RecursionError, LookupError, TypeError, ValueError)


PROMPTS = "prompts.json"
"""File of a run folder with the prompts as they were made at its start, which `resume` reads."""


def build_prompts(
    problem_set: ProblemSet, config: TaskSettings, policy: Policy, run_folder: Path | None = None
) -> PromptSet:
    """Encode problems; those that do not fit the limits are left out, but not all of them.

    Prompts that a run folder holds are taken from there, whatever a tokenizer makes of them today.
    """
    limit, tokenizer = longest_prompt(config, policy), policy.tokenizer
    in_template = _uses_template(config, policy)
    file = None if run_folder is None else run_folder / PROMPTS
    rows = msgspec.json.decode(file.read_bytes()) if file and file.is_file() else []
    made = {(row["id"], msgspec.json.encode(row["messages"])): row["ids"] for row in rows}
    encoded, unseen, losing = [], list[str](), list[str]()
    for problem in problem_set:
        key = problem.id, msgspec.json.encode(problem.messages(""))
        if not (ids := made.get(key)):
            chat, suffix = _as_asked(problem, config)
            text, ids = encode(tokenizer, chat, suffix, in_template, config.template_options)
            if in_template and not unseen:
                unseen += _unseen(chat, suffix, text)
            if (alien := _alien(ids, policy)) is not None:
                raise UserError(
                    f"problem {problem.id!r}: its prompt holds {tokenizer.decode(alien)!r}, for "
                    "which the model has no embedding; take it out of the prompt or the template"
                )
            if lost := _lost(text, tokenizer.decode(ids)):
                losing.append(f"{problem.id!r} without {lost[:40]!r}")
        encoded.append((problem, ids))
    kept = [(problem, ids) for problem, ids in encoded if len(ids) <= limit]
    left_out = [problem.id for problem, ids in encoded if len(ids) > limit]
    if not kept:
        remedy = "raise max_prompt_tokens"
        if limit < config.max_prompt_tokens:
            remedy = "lower max_response_tokens or take a model with more positions"
        raise Unfit(f"all {len(left_out)} prompts are longer than {limit} tokens; {remedy}")
    notices = [*problem_set.notices, *_notices(problem_set, config, policy), *unseen[:1]]
    if losing:
        notices.append(
            f"the tokenizer lacks characters of {counted(len(losing), 'prompt')}: the model sees "
            f"the first, of problem {losing[0]}"
        )
    if left_out:
        notices.append(
            f"left out: {len(left_out)} overlong prompts, of more than {limit} tokens, the first "
            f"that of problem {left_out[0]!r}"
        )
    name = problem_set.name
    return PromptSet(
        name if config.model is None else f"{name} with {Path(config.model).absolute().name}",
        [problem for problem, _ in kept],
        problem_set.fields,
        problem_set.by_usual_name,
        tuple(notices),
        [ids for _, ids in kept],
        left_out,
    )


def prompt_rows(prompt_sets: Iterable[PromptSet], tokenizer: Any) -> list[dict[str, Any]]:
    """Return the rows of `PROMPTS`: what was asked, the text that the model sees, and its ids."""
    return [
        {"id": p.id, "messages": p.messages(""), "text": tokenizer.decode(ids), "ids": ids}
        for prompts in prompt_sets
        for p, ids in zip(prompts.problems, prompts.tokens, strict=True)
    ]


def prompt_tokens(
    problem: Problem, config: TaskSettings, policy: Policy, suffix: str | None = None
) -> list[int] | None:
    """Return a prompt's token ids, with the settings' suffix if None; None where they do not fit.

    They are too many, or the model has no embedding of one.
    """
    chat, usual = _as_asked(problem, config)
    suffix, in_template = usual if suffix is None else suffix, _uses_template(config, policy)
    _, ids = encode(policy.tokenizer, chat, suffix, in_template, config.template_options)
    fits = len(ids) <= longest_prompt(config, policy) and _alien(ids, policy) is None
    return ids if fits else None


def _alien(ids: list[int], policy: Policy) -> int | None:
    """Return the first token of a prompt that the model has no embedding of, if any."""
    n_embeddings = policy.model.get_input_embeddings().weight.shape[0]
    return next((i for i in ids if i >= n_embeddings), None)


def _as_asked(problem: Problem, config: TaskSettings) -> tuple[Problem, str]:
    """Return the problem under the settings' system prompt, and its suffix."""
    chat = problem if config.system_prompt is None else problem.under_system(config.system_prompt)
    return chat, suffix_of(chat, config.prompt_suffix)


def encode(
    tokenizer: Any, problem: Problem, suffix: str, in_template: bool, options: Options | None = None
) -> tuple[str, list[int]]:
    """Return a prompt's text, in the template or plain with blank lines between, and token ids."""
    text = _text(tokenizer, problem, suffix, in_template, options or {})
    ids = bare = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    if not in_template:  # which has written the special tokens already
        ids = tokenizer(text, verbose=False)["input_ids"]
        starts = range(len(ids) - len(bare) + 1)
        # Without end tokens that the tokenizer puts behind a plain prompt.
        ends = (i + len(bare) for i in starts if bare and ids[i : i + len(bare)] == bare)
        ids = ids[: next(ends, None)]
    if not ids:
        raise UserError(f"problem {problem.id!r}: the tokenizer makes no tokens of its prompt")
    return text, ids


def _text(
    tokenizer: Any, problem: Problem, suffix: str, in_template: bool, options: Options
) -> str:
    messages = problem.messages(suffix)
    if not in_template:
        return "\n\n".join(turn["content"] for turn in messages)
    try:
        return tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **{**_CLOCK, **options}
        )
    except _FAILURES as error:
        refused = isinstance(error, TemplateError)
        wrong = "refuses its messages (" if refused else f"fails ({type(error).__name__}: "
        raise UserError(
            f"problem {problem.id!r}: the chat template {wrong}{first_line(error)}); use "
            "--chat-template off; or change its messages"
        ) from error


def longest_prompt(config: TaskSettings, policy: Policy) -> int:
    """Return the largest number of tokens that a prompt may have."""
    positions = max_positions(policy.model)
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


def _uses_template(config: TaskSettings, policy: Policy) -> bool:
    template = "" if config.chat_template == "off" else policy.tokenizer.chat_template
    if config.chat_template == "require" and not template:
        raise UserError(
            "chat_template = 'require': the model's tokenizer has none; give an instruction-tuned "
            "model, or use auto for plain text prompts"
        )
    for name in config.template_options:
        if not template:
            raise UserError(
                f"template_options = {name}: the prompts are in no chat template; leave it out"
            )
        if not re.search(rf"\b{re.escape(name)}\b", str(template)):
            raise UserError(
                f"template_options = {name}: the model's chat template does not read it; check "
                "its spelling, or leave it out"
            )
    return bool(template)


def _notices(problem_set: ProblemSet, config: TaskSettings, policy: Policy) -> Iterator[str]:
    boxed = sum(_as_asked(problem, config)[0].asks_for_box for problem in problem_set)
    if boxed and config.prompt_suffix == BOX_REQUEST:
        yield f"no suffix behind {counted(boxed, 'prompt')}, where a box is asked for already"
    # The tiny task is plain text by design.
    if not (_uses_template(config, policy) or config.is_tiny or config.chat_template == "off"):
        yield (
            "the tokenizer has no chat template: prompts are plain text, as for a base model "
            "(--chat-template require refuses such a model, off accepts it silently)"
        )
    if _uses_template(config, policy):
        closing, stop = _closing_token(policy.tokenizer), getattr(config, "stop", ())
        text = "" if closing is None else policy.tokenizer.decode([closing])
        if text and closing not in policy.eos_token_ids and text not in stop:
            yield (
                f"the chat template ends a turn with {text!r}, which is no end token of the model: "
                f"responses may go on behind it; end them by --stop {shlex.quote(text)}"
            )
    n_tokens = len(policy.tokenizer)
    n_embeddings = policy.model.get_input_embeddings().weight.shape[0]
    if n_tokens < _OWN_SHARE * n_embeddings:
        yield (
            f"the tokenizer has {n_tokens} tokens, the model {n_embeddings}; "
            "check that it is the model's own"
        )


def _unseen(chat: Problem, suffix: str, text: str) -> Iterator[str]:
    """Yield notices of messages that the template does not give as they are written."""
    for turn in chat.messages(suffix):
        if turn["content"].strip() not in text:
            yield (
                f"the chat template leaves out or changes the {turn['role']} message of "
                f"problem {chat.id!r}; see its text in {PROMPTS}"
            )


def _lost(text: str, kept: str) -> str:
    """Return the visible characters of a text that are not in what its tokens keep of it."""
    written, seen = (
        Counter(c for c in normalize("NFKC", one).casefold() if c.isprintable() and c != " ")
        for one in (text, kept)
    )
    return "".join((written - seen).elements())


def _closing_token(tokenizer: Any) -> int | None:
    """Return the special token behind a reply in the chat template; None if there is none."""
    turns = ("user", "6*7?"), ("assistant", _REPLY)
    messages = [{"role": role, "content": content} for role, content in turns]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, **_CLOCK)
    except _FAILURES:  # a template that takes no such turns
        return None
    behind = text.rpartition(_REPLY)[2].lstrip()
    ids = tokenizer(behind, add_special_tokens=False, verbose=False)["input_ids"]
    return ids[0] if ids and ids[0] in tokenizer.added_tokens_decoder else None
