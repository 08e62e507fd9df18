"""One problem, and the set of them that a run trains on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any


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
        """Number of problems."""
        return len(self.problems)

    def __iter__(self) -> Iterator[Problem]:
        """Over the problems."""
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
        """Number of problems N."""
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
