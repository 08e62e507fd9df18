"""Which fields of a row hold the prompt, the reference answer and the id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lab.errors import UserError

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
"""Names that are looked for. The first is this project's own and wins; of the others one alone."""

_SHOWN = 12
"""So many field names stand in an error message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldMap:
    """Fields of a problem file; those left out are found by their usual names.

    A dot reaches into an object, as in `reward_model.ground_truth`. Empty text stands for "none":
    no reference answers, or ids made from the prompts.
    """

    prompt: str | None = None
    """Text, or a list of chat messages; usual: prompt, problem, question, input."""
    answer: str | None = None
    """Usual: answer, solution, ground_truth, target, label, reward_model.ground_truth."""
    id: str | None = None
    """Usual: id, unique_id, idx; without one a hash of the prompt is the id."""

    def __post_init__(self) -> None:
        """Check the types."""
        for name in USUAL:
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise UserError(f"fields.{name} = {value!r}: must be the name of a field")
        if self.prompt == "":
            raise UserError("fields.prompt = '': there are no problems without prompts; name one")


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one source, settled."""

    prompt: str
    answer: str | None
    """None: there are no reference answers."""
    id: str | None
    """None: a hash of the prompt is the id."""
    found: tuple[str, ...]
    """Which of the three were found by their usual names."""


def value_at(row: dict[str, Any], name: str) -> Any:
    """The value of a field, None where the row lacks it; a dot reaches into objects."""
    if name in row:
        return row[name]
    head, dot, rest = name.partition(".")
    inner = row.get(head)
    return value_at(inner, rest) if dot and isinstance(inner, dict) else None


def settle(source: str, rows: Sequence[dict[str, Any]], wanted: FieldMap) -> Fields:
    """Decide which fields are read.

    Args:
        source: named in errors.
        rows: all rows of the source; a field counts if some row has a value in it.
        wanted: what the user named.

    Raises:
        UserError: a named field is nowhere, or several usual names could be meant.
    """
    chosen = {name: _choose(source, rows, name, getattr(wanted, name)) for name in USUAL}
    found = tuple(n for n in USUAL if getattr(wanted, n) is None and chosen[n] is not None)
    # Without any prompt the rows themselves are refused, each by name.
    return Fields(chosen["prompt"] or "prompt", chosen["answer"], chosen["id"], found)


def _choose(
    source: str, rows: Sequence[dict[str, Any]], name: str, wanted: str | None
) -> str | None:
    if wanted == "":
        return None
    if wanted is not None:
        if not _present(rows, wanted):
            raise UserError(
                f"{source}: fields.{name} = {wanted!r}: no row has it; fields are {_names(rows)}"
            )
        return wanted
    own, *others = USUAL[name]
    if _present(rows, own):
        return own
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
