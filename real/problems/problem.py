"""Problems and problem sets, and how rows of any source become one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from decimal import Decimal
from numbers import Real
from typing import Any, Literal

import msgspec

from lab.base.errors import UserError
from real.answers.ids import unusable
from real.settings.groups import FieldMap


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Problem:
    """One prompt of the fixed set Q (paper section 3.1)."""

    id: str
    """Unique in its set; the same in every run on that set."""
    prompt: str
    """The last message of the user; the settings' suffix is appended to it."""
    answer: str | None
    """Reference answer as written in the source, if it has one. For analysis only."""
    before: tuple[Turn, ...] = ()
    """Earlier messages, such as a system prompt, where the source holds a chat."""

    @property
    def asks_for_box(self) -> bool:
        """One of the messages names the box for the final answer."""
        return any("\\boxed" in text for text in (self.prompt, *(t.content for t in self.before)))

    def under_system(self, text: str) -> Problem:
        """Return the problem with this system prompt, in place of one of its own."""
        others = (turn for turn in self.before if turn.role != "system")
        return replace(self, before=(Turn("system", text), *others))

    def messages(self, suffix: str) -> list[dict[str, str]]:
        """Return role and content of all messages, with the suffix behind the last one."""
        return [asdict(turn) for turn in (*self.before, Turn("user", self.prompt + suffix))]


@dataclass(frozen=True, slots=True)
class ProblemSet:
    """Problems in the order of their source."""

    name: str
    """Name for readers; runs are compared only where it agrees."""
    problems: list[Problem]
    fields: dict[str, str] = field(default_factory=dict)
    """Maps what was read to the field it was read from; empty where there are no fields."""
    by_usual_name: tuple[str, ...] = ()
    """Those of `fields` that nobody named, and that have one of the usual names."""
    notices: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.problems)

    def __iter__(self) -> Iterator[Problem]:
        return iter(self.problems)


def fingerprint(problems: Sequence[Problem]) -> str:
    """Return the SHA-256 of ids, prompts and answers in order, to compare two sets."""
    return _digest([[p.id, p.prompt, p.answer, *map(astuple, p.before)] for p in problems])


def _digest(values: object) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class PromptSet(ProblemSet):
    """N problems with their prompts."""

    tokens: list[list[int]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def truths(self) -> list[str | None]:
        """(N,) reference answers; None where there is none."""
        return [problem.answer for problem in self.problems]

    def facts(self) -> dict[str, Any]:
        """Return facts for the run's manifest."""
        return {
            "prompts_left_out": self.left_out,
            "problem_ids": [problem.id for problem in self.problems],
            "problems_sha256": fingerprint(self.problems),
            "problem_fields": self.fields,
            "problem_fields_found": list(self.by_usual_name),
            "notices": list(self.notices),
        }


def problem_set(
    name: str, source: str, rows: Iterable[tuple[int, object]], names: FieldMap
) -> ProblemSet:
    """Read problems from numbered rows; a UserError names source, row and remedy."""
    numbered: list[tuple[int, dict[str, Any]]] = []
    for row, values in rows:
        if not isinstance(values, dict):
            raise UserError(
                f"{source}, row {row}: holds {kind(values)}, write an object with a prompt"
            )
        numbered.append((row, values))
    if not numbered:
        raise UserError(f"{source}: no problems in it, give at least one object with a prompt")
    fields = {"prompt": "prompt"}  # without any the rows themselves are refused, each by name
    for what in _USUAL:
        if field_name := _choose(source, [values for _, values in numbered], what, names):
            fields[what] = field_name
    problems = [_problem(source, row, values, fields) for row, values in numbered]
    rows_of: dict[str, list[int]] = {}
    for i, ((row, _), one) in enumerate(zip(numbered, problems, strict=True)):
        same = rows_of.setdefault(one.id, [])
        same.append(row)
        if len(same) > 1 and "id" in fields:
            with _at(source, row, one.id):
                raise UserError(
                    f"duplicate id, row {same[0]} has it too; give each row its own, or "
                    "--fields.id '' to make ids from the prompts"
                )
        if len(same) > 1:  # of equal prompts the first keeps its id, the next get -2, -3, ...
            problems[i] = replace(one, id=f"{one.id}-{len(same)}")
    by_usual_name = tuple(what for what in fields if getattr(names, what) is None)
    notices = check_answers([(one.id, one.answer) for one in problems])
    if n_repeated := len(problems) - len({(one.before, one.prompt) for one in problems}):
        notices.append(f"{n_repeated} problems repeat the prompt of another")
    return ProblemSet(name, problems, fields, by_usual_name, tuple(notices))


def _problem(source: str, row: int, values: dict[str, Any], fields: dict[str, str]) -> Problem:
    with _at(source, row):
        identity = _identity(values, fields["id"]) if "id" in fields else None
    with _at(source, row, identity):
        prompt, before = _prompt(values, fields["prompt"])
        name = fields.get("answer", "")
        given = _value_at(values, name) if name else None
        answer = reference(given, name)
        if answer is not None:
            _text(name, answer, "write it or leave the field out")
        said = "\n".join([*(turn.content for turn in before), prompt])
        _check_choices(values, said, answer, by_place=isinstance(given, int))
    # Without an id, 16 hexadecimal digits that depend on the prompt alone, not on its row.
    identity = identity or _digest([*map(astuple, before), prompt])[:16]
    return Problem(identity, prompt, answer, before)


@contextlib.contextmanager
def _at(source: str, row: int, identity: str | None = None) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        shown = ""
        if identity is not None:
            shown = identity if len(identity) <= 60 else identity[:57] + "..."
            shown = f" (id {shown!r})"
        raise UserError(f"{source}, row {row}{shown}: {error}") from error


def _prompt(values: dict[str, Any], name: str) -> tuple[str, tuple[Turn, ...]]:
    value = _value_at(values, name)
    if value is None:
        raise UserError(
            f"field '{name}' is missing, add the problem's text or name its field with "
            "--fields.prompt"
        )
    remedy = "write text, or messages with role (system, user, assistant) and content"
    try:
        turns = msgspec.convert(value, str | list[Turn])
    except msgspec.ValidationError as error:
        raise UserError(f"{name}: {error}; {remedy}") from error
    *before, last = [Turn("user", turns)] if isinstance(turns, str) else turns or [Turn("user", "")]
    if last.role != "user":
        raise UserError(f"the last message of {name} is by {last.role!r}, end it with the user's")
    for turn in before:
        _text(name, turn.content)
    return _text(name, last.content, "write the problem's text or remove the row"), tuple(before)


def _identity(values: dict[str, Any], name: str) -> str:
    value, remedy = _value_at(values, name), "give each row an id of its own"
    if value is None:
        raise UserError(f"field '{name}' is missing, {remedy}")
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise UserError(f"{name} is {kind(value)}, write text or a whole number")
    return _text(name, str(value), remedy)


def reference(value: object, name: str = "answer") -> str | None:
    """Return a reference answer, text or a number, as text: of a worked solution what it ends in.

    UserError, with the name, if it is neither.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (str, Real, Decimal)):
        raise UserError(f"{name} is {kind(value)}, write text or a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{name} is {value}, write a finite number or text")
    written = str(value)
    if not isinstance(value, str) and "e" in written.lower():  # which few responses write
        written = f"{Decimal(written):f}"
    _, mark, text = written.rpartition("####")  # as GSM8K's worked solutions end
    return text.strip() if mark else text


_CHOICES = ("choices", "options", "endings")
"""Usual names of the answers that a question offers, in any form that `_listed` knows."""
_ONE_CHOICE = re.compile(r"(?:(?:option|choice|ending|op|answer)?_?[A-Ja-j]|(?:option|choice)_?\d)")
"""Names of fields with one of them each, such as `A`, `option_b`, `opc` or `option1`."""
_LETTERS = "ABCDEFGHIJ"
_LETTER = re.compile(r"""(?<!\w)\(?([A-Ja-j])["']? ?[).:] ?""")
"""What stands before a choice, as in `a ) 38 , b ) 27.5`, `(A) 38` or `{'A': '38'`."""


def _listed(given: object) -> list[Any]:
    """Return the choices of a list, of letters to texts, of `text`, or of one text with letters."""
    if isinstance(given, str):
        _, *parts = _LETTER.split(given)
        letters = "".join(parts[::2]).upper()
        texts = [text.strip(" \n,;'\"()[]{}") for text in parts[1::2]]
        return texts if letters == _LETTERS[: len(letters)] else []
    if isinstance(given, dict):
        given = given.get("text", list(given.values()))
    listed = given if isinstance(given, list) else []
    return [one.get("text", one) if isinstance(one, dict) else one for one in listed]


def _check_choices(values: dict[str, Any], said: str, answer: str | None, by_place: bool) -> None:
    """Refuse an answer that is the letter or place of a choice where the prompt does not say it.

    With `by_place` the answer is a whole number, the place of a text rather than that text.
    """
    fields = [name for name in values if _ONE_CHOICE.fullmatch(name)]
    each = [values[name] for name in fields if isinstance(values[name], str)]
    numbers = min(map(len, fields), default=0) <= 2  # of the question, as a, b and c may be
    for name, given in [*((n, values.get(n)) for n in _CHOICES), ("choices", each)]:
        choices = _listed(given)
        if len(choices) < 2:
            continue
        texts = [str(text).strip() for text in choices]
        place = (answer or "0").strip(" ().").upper()
        places = set() if given is each and numbers else {*map(str, range(len(texts) + 1))}
        is_text = answer in texts and not (by_place and isinstance(choices[0], str))
        if is_text or place not in {*_LETTERS[: len(texts)], *places}:
            continue
        texts = [_LETTER.sub("", text, 1) if _LETTER.match(text) else text for text in texts]
        bare = "".join(said.split())
        if missing := [text for text in texts if "".join(text.split()) not in bare]:
            raise UserError(
                f"{name}: {missing[0][:60]!r} is not in the prompt, so that no response can choose "
                f"it; write the {name} into the prompt, and as the answer what stands before one"
            )
        named = rf"(?<!\w){place}(?!\w)"
        if place.isdigit():  # which any other number of the question could be
            named += rf"\W{{0,8}}(?:{'|'.join(map(re.escape, texts))})"
        if answer and not re.search(named, said, re.IGNORECASE):
            raise UserError(
                f"answer {answer!r}: the prompt gives none of the {name} this letter or number; "
                "write what stands before the right one"
            )


def _text(name: str, text: str, remedy: str | None = None) -> str:
    """The text, which must be Unicode, and not blank if there is a remedy."""
    if remedy is not None and not text.strip():
        raise UserError(f"empty {name}, {remedy}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"{name} holds half a surrogate pair (character {error.start + 1}), remove it"
        ) from error
    return text


def kind(value: object) -> str:
    """The kind of a value in plain words, for error messages."""
    names: dict[type, str] = {dict: "an object", list: "a list", str: "text", bytes: "binary data"}
    names |= {bool: "true or false", type(None): "null"}
    number = isinstance(value, Real | Decimal)
    return names.get(type(value), "a number" if number else f"a {type(value).__name__}")


def check_answers(answers: Sequence[tuple[object, str | None]], labels_of: str = "") -> list[str]:
    """Return notices of problems without a reference answer that a response can equal.

    Args:
        answers: (N,) ids of problems and their reference answers, if any.
        labels_of: where they are from, if they are the labels: then the first such one is refused.
    """
    missing = [name for name, answer in answers if answer is None]
    useless = [(name, why) for name, a in answers if a is not None and (why := unusable(a))]
    notices = []
    if labels_of and missing:
        raise UserError(
            f"labels = 'truth': problem {missing[0]!r} of {labels_of} has no answer; "
            "add it or train on votes"
        )
    if 0 < len(missing) < len(answers):
        notices.append(f"{len(missing)} of {len(answers)} problems have no reference answer")
    for name, why in useless[:1]:
        if labels_of:
            raise UserError(
                f"labels = 'truth': the answer to problem {name!r} of {labels_of} can "
                f"equal no response ({why}); mend it or train on votes"
            )
        told = f"{len(useless)} of {len(answers)} reference answers can equal no response"
        notices.append(f"{told}, the first that of problem {name!r}: {why}")
    return notices


_VERL = "reward_model.ground_truth"
_USUAL = {
    "prompt": ("prompt", "problem", "question", "input"),
    "answer": ("answer", "solution", "ground_truth", "target", "label", "answerKey", _VERL),
    "id": ("id", "unique_id", "idx"),
}
"""Usual names of the fields. The first is this project's and wins; only one other may occur."""

_SHOWN = 12


def _value_at(row: dict[str, Any], name: str) -> Any:
    """The value of a field, None if the row lacks it; a dot reaches into objects."""
    if name in row:
        return row[name]
    head, dot, inner_path = name.partition(".")
    inner = row.get(head)
    return _value_at(inner, inner_path) if dot and isinstance(inner, dict) else None


def _choose(source: str, rows: Sequence[dict[str, Any]], what: str, names: FieldMap) -> str | None:
    """The field to read: the one that is named, or has a usual name and in some row a value."""
    named = getattr(names, what)
    if named == "":
        return None
    usual = (named,) if named else _USUAL[what]
    present = [one for one in usual if any(_value_at(row, one) is not None for row in rows)]
    if named and not present:
        there = list(dict.fromkeys(str(name) for row in rows for name in row))
        shown = ", ".join(there[:_SHOWN]) or "none"
        shown += f", ... ({len(there)} in all)" if len(there) > _SHOWN else ""
        raise UserError(f"{source}: fields.{what} = {named!r}: no row has it; fields are {shown}")
    if len(present) > 1 and present[0] != usual[0]:
        raise UserError(
            f"{source}: fields {', '.join(present)} could each be the {what}; "
            f"name one with --fields.{what}"
        )
    return present[0] if present else None
