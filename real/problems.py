"""Problem files: a list of prompts, each with an id and perhaps a reference answer.

Formats now: JSON (one list of objects) and JSON Lines (one object a line). A further format is one
more entry of `_READERS`: a function from a path to numbered rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.errors import UserError


@dataclass(frozen=True, slots=True)
class Problem:
    """One prompt of the fixed set Q (SPEC section 1)."""

    id: str
    """Unique in its file; the same in every run on that file."""
    prompt: str
    answer: str | None
    """Reference answer as the file writes it; None where the file has none. Analysis only."""


def load_problems(path: str | Path) -> list[Problem]:
    """Read a problem file.

    Args:
        path: `.json` (a list of objects) or `.jsonl` (one object a line). Every object needs
            `prompt` (text) and `id` (text or whole number); `answer` (text or number) may be
            missing or null. Other fields are left alone.

    Returns:
        The problems in file order, at least one.

    Raises:
        UserError: the file cannot be read, is empty or malformed, or a row is wrong; the message
            names the file, the row (counted from 1; in JSON Lines the line) and the remedy.
    """
    path = Path(path)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        known = ", ".join(_READERS)
        raise UserError(f"{path}: unknown kind of problem file, use one of {known}")
    problems: list[Problem] = []
    first_row: dict[str, int] = {}
    for row, values in reader(path):
        problem = _problem(path, row, values)
        if problem.id in first_row:
            where = _where(path, row, problem.id)
            raise UserError(
                f"{where}: duplicate id, row {first_row[problem.id]} has it too, "
                "give each row an id of its own"
            )
        first_row[problem.id] = row
        problems.append(problem)
    if not problems:
        raise UserError(f"{path}: no problems in it, give at least one object with id and prompt")
    return problems


def _read_json(path: Path) -> Iterator[tuple[int, object]]:
    text = _text(path)
    rows = _parse(text, lambda line: f"{path}, line {line}")
    if not isinstance(rows, list):
        raise UserError(
            f"{path}: holds {_kind(rows)}, not a list; write [{{...}}, ...] or use .jsonl"
        )
    yield from enumerate(rows, start=1)


def _read_jsonl(path: Path) -> Iterator[tuple[int, object]]:
    # Not splitlines(): JSON text may hold U+2028 and other characters that it would cut at.
    for row, line in enumerate(_text(path).split("\n"), start=1):
        if line.strip():
            yield row, _parse(line, lambda _, row=row: f"{path}, row {row}")


_READERS: dict[str, Callable[[Path], Iterator[tuple[int, object]]]] = {
    ".json": _read_json,
    ".jsonl": _read_jsonl,
}


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise UserError(f"{path}: cannot be read ({reason}), check the path") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}), save it as UTF-8") from error
    if not text.strip():
        raise UserError(f"{path}: the file is empty, give at least one object with id and prompt")
    return text


def _parse(text: str, where: Callable[[int], str]) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"{where(error.lineno)}, column {error.colno}"
        raise UserError(
            f"{place}: malformed JSON ({error.msg.lower()}), mend it there or just before"
        ) from error
    except (ValueError, RecursionError) as error:
        # A number of thousands of digits, or brackets nested thousands deep.
        raise UserError(
            f"{where(1)}: JSON too large to read, shorten the number or list"
        ) from error


def _problem(path: Path, row: int, values: object) -> Problem:
    if not isinstance(values, dict):
        raise UserError(
            f"{_where(path, row)}: holds {_kind(values)}, write an object with id and prompt"
        )
    identity = _identity(path, row, values)
    where = _where(path, row, identity)
    prompt = values.get("prompt")
    if prompt is None:
        raise UserError(f"{where}: field 'prompt' is missing, add the problem's text")
    if not isinstance(prompt, str):
        raise UserError(f"{where}: prompt is {_kind(prompt)}, write it as text")
    if not prompt.strip():
        raise UserError(f"{where}: empty prompt, write the problem's text or remove the row")
    _check_unicode(where, "prompt", prompt)
    return Problem(identity, prompt, _answer(where, values.get("answer")))


def _identity(path: Path, row: int, values: dict[str, object]) -> str:
    value = values.get("id")
    where = _where(path, row)
    if value is None:
        raise UserError(f"{where}: field 'id' is missing, give each row an id of its own")
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise UserError(f"{where}: id is {_kind(value)}, write text or a whole number")
    if not str(value).strip():
        raise UserError(f"{where}: empty id, give each row an id of its own")
    _check_unicode(where, "id", str(value))
    return str(value)


def _answer(where: str, value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise UserError(f"{where}: answer is {_kind(value)}, write text or a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{where}: answer is {value}, write a finite number or text")
    text = str(value)
    if not text.strip():
        raise UserError(f"{where}: empty answer, write it or leave the field out")
    _check_unicode(where, "answer", text)
    return text


def _check_unicode(where: str, field: str, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where}: {field} holds half a surrogate pair (character {error.start + 1}), remove it"
        ) from error


def _where(path: Path, row: int, identity: str | None = None) -> str:
    if identity is None:
        return f"{path}, row {row}"
    shown = identity if len(identity) <= 60 else identity[:57] + "..."
    return f"{path}, row {row} (id {shown!r})"


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    if value is None:
        return "null"
    return names.get(type(value), "a number")
