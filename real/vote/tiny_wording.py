"""The tiny task's form of what a judge is asked, for `real.vote.observations.verifier`."""

from __future__ import annotations

from real.problems import Problem
from real.tiny import judging
from real.vote.observations.verifier import Wording


class TinyWording(Wording):
    """Question, verdict and request in the task's own tokens; see `real.tiny.judging`."""

    max_tokens = judging.VERIFICATION_TOKENS

    def question(self, problem: Problem, response: str) -> Problem:
        """See `Wording`."""
        asked = judging.question(problem.prompt, response)
        return Problem(f"{problem.id}/verify", asked, None)

    def verdict(self, text: str) -> int:
        """See `Wording`; plus is right, minus wrong."""
        return judging.read_verdict(text)

    def request(self, problem: Problem, response: str, verification: str) -> Problem:
        """See `Wording`."""
        asked = judging.request(problem.prompt, response, verification)
        return Problem(f"{problem.id}/again", asked, None)
