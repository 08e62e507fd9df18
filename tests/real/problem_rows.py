"""Rows of problem files, and the refusal of wrong ones."""

from __future__ import annotations

from typing import Any

import pytest

from lab.base.errors import UserError
from real.problems import Problem, load_problems

ROWS: list[dict[str, Any]] = [
    {"problem": "1+1?", "answer": "2", "unique_id": "a"},
    {"problem": "1+2?", "answer": None, "unique_id": "b"},
]
PROBLEMS = [Problem("a", "1+1?", "2"), Problem("b", "1+2?", None)]


def refusal(*args: Any, **options: Any) -> str:
    with pytest.raises(UserError) as found:
        load_problems(*args, **options)
    assert "\n" not in str(found.value)
    return str(found.value)


def make_set(n: int) -> list[dict[str, Any]]:
    return [{"id": str(i), "prompt": f"{i}?", "answer": str(i)} for i in range(n)]
