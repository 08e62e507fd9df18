r"""The text of a judge's questions, how its verdicts are read, and the request to solve again."""

from __future__ import annotations

import re

from real.answers.boxes import last_box
from real.problems.problem import Problem, Turn
from real.tiny import judging

_QUESTION = r"""A problem and an attempt at it follow. Judge whether the attempt's answer is right.

<problem>
{problem}
</problem>

<attempt>
{attempt}
</attempt>

Go through the attempt step by step and check every step, or solve the problem yourself and compare.
Then end with your verdict: \boxed{{correct}} if the answer is right, \boxed{{wrong}} if it is not.
"""
_REQUEST = r"""You found the attempt wrong. Solve the problem once more, thinking step by step,
and end with your new answer in \boxed{}.
"""
_VERDICTS = {"correct": 1, "wrong": 0, "incorrect": 0}
_STYLE = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")


class Wording:
    """The wording for language models that follow instructions."""

    max_tokens: int | None = None
    """Longest verification; that of responses if None."""

    def question(self, problem: Problem, response: str) -> Problem:
        """Return the question about a response, to be encoded as problems are.

        Args:
            problem: its earlier messages stay in front of the question.
            response: text of the response.
        """
        asked = _QUESTION.strip().format(problem=problem.prompt.strip(), attempt=response.strip())
        return Problem(f"{problem.id}/verify", asked, None, problem.before)

    def verdict(self, text: str) -> int:
        r"""Return 1 for `\boxed{correct}`, 0 for `\boxed{wrong}`, -1 for anything else.

        The last box counts. Case, spaces, a full stop and `\text{}` do not matter; `incorrect` is
        read as `wrong`.
        """
        box = last_box(text)
        if box is None:
            return -1
        return _VERDICTS.get(_STYLE.sub(r"\1", box).strip(" \n\t.").lower(), -1)

    def request(self, problem: Problem, response: str, verification: str) -> Problem:
        """Return the request for a new response, after question and verification."""
        asked = self.question(problem, response)
        before = (*asked.before, Turn("user", asked.prompt), Turn("assistant", verification))
        return Problem(f"{problem.id}/again", _REQUEST.strip(), None, before)


class TinyWording(Wording):
    """The wording in the tiny task's own tokens; see `real.tiny.judging`."""

    max_tokens = judging.VERIFICATION_TOKENS

    def question(self, problem: Problem, response: str) -> Problem:
        """Implement `Wording`."""
        asked = judging.question(problem.prompt, response)
        return Problem(f"{problem.id}/verify", asked, None)

    def verdict(self, text: str) -> int:
        """Implement `Wording`: plus is right, minus wrong."""
        return judging.read_verdict(text)

    def request(self, problem: Problem, response: str, verification: str) -> Problem:
        """Implement `Wording`."""
        asked = judging.request(problem.prompt, response, verification)
        return Problem(f"{problem.id}/again", asked, None)
