"""The names of the fields of a problem file."""

from __future__ import annotations

from dataclasses import dataclass

from guard_core.checks import check_fields
from lab.errors import UserError


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
        check_fields(self, error=UserError, prefix="fields.")
        if self.prompt == "":
            raise UserError("fields.prompt = '': there are no problems without prompts; name one")
