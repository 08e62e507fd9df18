"""Problems and problem sets, and how rows of any source become one."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from typing import Any

from lab.base.errors import UserError
from real.problems.files import kind
from real.settings.config import FieldMap


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a chat."""

    role: str
    """`system`, `user` or `assistant`."""
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
        turns = *self.before, Turn("user", self.prompt + suffix)
        return [asdict(turn) for turn in turns]


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
    """Notes for readers about the set, one sentence each."""

    def __len__(self) -> int:
        return len(self.problems)

    def __iter__(self) -> Iterator[Problem]:
        return iter(self.problems)


def content_hash(prompt: str, before: Sequence[Turn] = ()) -> str:
    """Return 16 hexadecimal digits that depend on the prompt alone, not on its row."""
    turns = [[turn.role, turn.content] for turn in before]
    return _digest([*turns, prompt])[:16]


def fingerprint(problems: Sequence[Problem]) -> str:
    """Return the SHA-256 of ids, prompts and answers in order, to compare two sets."""
    return _digest(
        [
            [p.id, p.prompt, p.answer, *([turn.role, turn.content] for turn in p.before)]
            for p in problems
        ]
    )


def _digest(values: object) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class PromptSet:
    """N problems with their prompts."""

    name: str
    """The task's name, for readers."""
    problems: list[Problem]
    tokens: list[list[int]]
    """N prompts as token ids."""
    left_out: list[str]
    """Ids of problems whose prompts are too long."""
    fields: dict[str, str]
    """Maps what was read to the field of the problem file it was read from."""
    by_usual_name: tuple[str, ...] = ()
    """Those of `fields` that nobody named, and that have one of the usual names."""
    notices: tuple[str, ...] = ()
    """Notes for readers, one sentence each."""

    def __len__(self) -> int:
        return len(self.problems)

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


ROLES = ("system", "user", "assistant")
_WORKED_SOLUTION_MARK = "####"
"""In front of the final answer of a worked solution, as GSM8K writes it."""


def problem_set(
    name: str, source: str, rows: Iterable[tuple[int, object]], names: FieldMap
) -> ProblemSet:
    """Read problems from numbered rows.

    Args:
        name: of the set, for readers.
        source: of the rows, named in errors.
        rows: row numbers and rows.

    Raises:
        UserError: there are none, or a row is wrong; the message names source, row and remedy.
    """
    numbered = [(row, _object(source, row, values)) for row, values in rows]
    if not numbered:
        raise UserError(f"{source}: no problems in it, give at least one object with a prompt")
    fields = settle(source, [values for _, values in numbered], names)
    problems = [_problem(source, row, values, fields) for row, values in numbered]
    if fields.id is None:
        problems = _number_equal(problems)
    _check_distinct(source, [row for row, _ in numbered], problems)
    read = {"prompt": fields.prompt, "answer": fields.answer, "id": fields.id}
    taken = {what: field for what, field in read.items() if field is not None}
    return ProblemSet(
        name, problems, taken, fields.by_usual_name, tuple(_notices(problems, fields))
    )


def _object(source: str, row: int, values: object) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise UserError(
            f"{_where(source, row)}: holds {kind(values)}, write an object with a prompt"
        )
    return values


def _problem(source: str, row: int, values: dict[str, Any], fields: Fields) -> Problem:
    identity = None if fields.id is None else _identity(source, row, values, fields.id)
    where = _where(source, row, identity)
    prompt, before = _prompt(where, fields.prompt, value_at(values, fields.prompt))
    answer = None
    if fields.answer is not None:
        answer = _answer(where, fields.answer, value_at(values, fields.answer))
    return Problem(identity or content_hash(prompt, before), prompt, answer, before)


def _prompt(where: str, field: str, value: object) -> tuple[str, tuple[Turn, ...]]:
    if value is None:
        raise UserError(
            f"{where}: field '{field}' is missing, add the problem's text "
            "or name its field with --fields.prompt"
        )
    if isinstance(value, list):
        *before, last = _turns(where, field, value)
        if last.role != "user":
            raise UserError(
                f"{where}: the last message of {field} is by {last.role!r}, end it with the user's"
            )
        return _checked_prompt(where, field, last.content), tuple(before)
    if not isinstance(value, str):
        raise UserError(f"{where}: {field} is {kind(value)}, write it as text")
    return _checked_prompt(where, field, value), ()


def _checked_prompt(where: str, field: str, text: str) -> str:
    if not text.strip():
        raise UserError(f"{where}: empty {field}, write the problem's text or remove the row")
    _check_unicode(where, field, text)
    return text


def _turns(where: str, field: str, messages: list[Any]) -> list[Turn]:
    if not messages:
        raise UserError(f"{where}: {field} is a list of no messages, add the user's")
    return [_turn(f"{where}: message {n} of {field}", m) for n, m in enumerate(messages, start=1)]


def _turn(where: str, message: object) -> Turn:
    if not isinstance(message, Mapping):
        raise UserError(f"{where} is {kind(message)}, write an object with role and content")
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise UserError(f"{where} has the role {role!r}, use one of {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise UserError(f"{where} has {kind(content)} as content, write text")
    _check_unicode(where, "content", content)
    return Turn(role, content)


def _identity(source: str, row: int, values: dict[str, Any], field: str) -> str:
    value = value_at(values, field)
    where = _where(source, row)
    if value is None:
        raise UserError(f"{where}: field '{field}' is missing, give each row an id of its own")
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise UserError(f"{where}: {field} is {kind(value)}, write text or a whole number")
    if not str(value).strip():
        raise UserError(f"{where}: empty {field}, give each row an id of its own")
    _check_unicode(where, field, str(value))
    return str(value)


def _answer(where: str, field: str, value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int, float, Decimal)):
        raise UserError(f"{where}: {field} is {kind(value)}, write text or a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{where}: {field} is {value}, write a finite number or text")
    text = str(value).rpartition(_WORKED_SOLUTION_MARK)[2]
    if not text.strip():
        raise UserError(f"{where}: empty {field}, write it or leave the field out")
    _check_unicode(where, field, text)
    return text if text == str(value) else text.strip()


def _number_equal(problems: list[Problem]) -> list[Problem]:
    """Number the ids made from equal prompts: the first keeps its id, the next get -2, -3, ..."""
    seen: Counter[str] = Counter()
    numbered = []
    for problem in problems:
        seen[problem.id] += 1
        n = seen[problem.id]
        identity = problem.id if n == 1 else f"{problem.id}-{n}"
        numbered.append(Problem(identity, problem.prompt, problem.answer, problem.before))
    return numbered


def _check_distinct(source: str, rows: list[int], problems: list[Problem]) -> None:
    first_row: dict[str, int] = {}
    for row, problem in zip(rows, problems, strict=True):
        first = first_row.setdefault(problem.id, row)
        if first != row:
            raise UserError(
                f"{_where(source, row, problem.id)}: duplicate id, row {first} has it too; "
                "give each row its own, or --fields.id '' to make ids from the prompts"
            )


def _notices(problems: list[Problem], fields: Fields) -> Iterable[str]:
    unknown = sum(problem.answer is None for problem in problems)
    if 0 < unknown < len(problems) and fields.answer is not None:
        yield f"{unknown} of {len(problems)} problems have no reference answer"
    distinct = len({(problem.before, problem.prompt) for problem in problems})
    if distinct < len(problems):
        yield f"{len(problems) - distinct} problems repeat the prompt of another"


def _check_unicode(where: str, field: str, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where}: {field} holds half a surrogate pair (character {error.start + 1}), remove it"
        ) from error


def _where(source: str, row: int, identity: str | None = None) -> str:
    if identity is None:
        return f"{source}, row {row}"
    shown = identity if len(identity) <= 60 else identity[:57] + "..."
    return f"{source}, row {row} (id {shown!r})"


USUAL = {
    "prompt": ("prompt", "problem", "question", "input"),
    "answer": (
        "answer",
        "solution",
        "ground_truth",
        "target",
        "label",
        "reward_model.ground_truth",
    ),
    "id": ("id", "unique_id", "idx"),
}
"""Usual names of the fields. The first is this project's and wins; only one other may occur."""

_SHOWN = 12
"""Largest number of field names in an error message."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one source that are read."""

    prompt: str
    answer: str | None
    """None: there are no reference answers."""
    id: str | None
    """None: a hash of the prompt is the id."""
    by_usual_name: tuple[str, ...]
    """Those of the three that nobody named, and that have one of the usual names."""


def value_at(row: dict[str, Any], name: str) -> Any:
    """Return the value of a field, None if the row lacks it; a dot reaches into objects."""
    if name in row:
        return row[name]
    head, dot, inner_path = name.partition(".")
    inner = row.get(head)
    return value_at(inner, inner_path) if dot and isinstance(inner, dict) else None


def settle(source: str, rows: Sequence[dict[str, Any]], names: FieldMap) -> Fields:
    """Return the fields to read.

    Args:
        rows: all rows of the source; a field exists if some row has a value in it.

    Raises:
        UserError: a named field is nowhere, or several usual names could be meant.
    """
    chosen = {name: _choose(source, rows, name, getattr(names, name)) for name in USUAL}
    unnamed = tuple(n for n in USUAL if getattr(names, n) is None and chosen[n] is not None)
    # Without any prompt the rows themselves are refused, each by name.
    return Fields(chosen["prompt"] or "prompt", chosen["answer"], chosen["id"], unnamed)


def _choose(
    source: str, rows: Sequence[dict[str, Any]], name: str, chosen: str | None
) -> str | None:
    if chosen == "":
        return None
    if chosen is not None:
        if not _present(rows, chosen):
            raise UserError(
                f"{source}: fields.{name} = {chosen!r}: no row has it; fields are {_names(rows)}"
            )
        return chosen
    preferred, *others = USUAL[name]
    if _present(rows, preferred):
        return preferred
    present = [other for other in others if _present(rows, other)]
    if len(present) > 1:
        raise UserError(
            f"{source}: fields {', '.join(present)} could each be the {name}; "
            f"name one with --fields.{name}"
        )
    return present[0] if present else None


def _present(rows: Sequence[dict[str, Any]], name: str) -> bool:
    return any(value_at(row, name) is not None for row in rows)


def _names(rows: Sequence[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(str(name) for row in rows for name in row))
    shown = ", ".join(names[:_SHOWN]) or "none"
    return f"{shown}, ... ({len(names)} in all)" if len(names) > _SHOWN else shown
