"""Co-rewarding I's and Self-Harmony's other view: every problem once more, in other words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from real.problems import Problem
from real.problems.prompts import PromptSet, longest_prompt, prompt_tokens
from real.settings.seeds import Stream, torch_generator
from real.vote.tiny_rewording import reworded

if TYPE_CHECKING:
    from real.run import Run

REQUEST = (
    "Rewrite the problem below in other words. Keep every number, every condition and the question "
    "as they are, so that the answer stays the same. Do not solve it. Write the new text alone.\n\n"
)
_THOUGHT = "</think>"
_AT_ONCE = 256


class Paraphrases:
    """One rewording a problem, made before the first votes and kept for the whole run.

    The trained model rewords its own problems, with one seeded response each. On the tiny task a
    rule does: operands that may be swapped are. A problem without a usable rewording keeps its
    text, so that its second votes are further votes on the same question.
    """

    def __init__(self) -> None:
        self.texts_N: list[str | None] = []
        """None where the problem keeps its text."""
        self._asked: PromptSet | None = None

    def begin(self, run: Run) -> dict[str, Any]:
        """See `SecondVotes`."""
        problems = run.prompts.problems
        texts = [reworded(p.prompt) for p in problems] if run.config.is_tiny else _ask(run)
        self._take(run, texts)
        n_kept = sum(text is None for text in self.texts_N)
        return {"paraphrases_missing": n_kept}

    def prompts(self, prompts: PromptSet) -> PromptSet:
        """See `SecondVotes`; the rewordings."""
        if self._asked is None:
            raise ValueError("no paraphrases yet; call begin first")
        return self._asked

    @contextmanager
    def answering(self, version: int) -> Iterator[int]:
        """See `SecondVotes`; the trained model answers."""
        yield version

    def after_step(self, step: int) -> None:
        """See `SecondVotes`; nothing to do."""

    def tensors(self) -> dict[str, Tensor]:
        """See `SecondVotes`."""
        return {}

    def values(self) -> Any:
        """See `SecondVotes`."""
        return {"paraphrases": self.texts_N}

    def restore(self, run: Run, tensors: dict[str, Tensor], values: Any) -> None:
        """See `SecondVotes`."""
        self._take(run, values["paraphrases"])

    def _take(self, run: Run, texts_N: list[str | None]) -> None:
        """Encode the rewordings; one that is too long is left out."""
        limit = longest_prompt(run.config, run.policy)
        tokens, kept = [], []
        for problem, old, text in zip(
            run.prompts.problems, run.prompts.tokens, texts_N, strict=True
        ):
            new = [] if text is None else _encode(run, replace(problem, prompt=text))
            fits = 0 < len(new) <= limit
            tokens.append(new if fits else old)
            kept.append(text if fits else None)
        self.texts_N = kept
        self._asked = replace(run.prompts, tokens=tokens)


def _ask(run: Run) -> list[str | None]:
    """The model's own rewordings; None where it gave none, or none that ended in time."""
    limit = longest_prompt(run.config, run.policy)
    asked = [
        _encode(run, replace(problem, prompt=REQUEST + problem.prompt), suffix="")
        for problem in run.prompts.problems
    ]
    fits = [place for place, tokens in enumerate(asked) if len(tokens) <= limit]
    found: list[str | None] = [None] * len(asked)
    generator = torch_generator(run.config.seed, Stream.REWORDING, device=run.policy.device)
    for start in range(0, len(fits), _AT_ONCE):
        places = fits[start : start + _AT_ONCE]
        drawn = run.engine.sample([asked[p] for p in places], 1, run.sampling, generator)
        texts = run.policy.texts(drawn.tokens_PNT[:, 0], drawn.lengths_PN[:, 0])
        for place, text, ended in zip(places, texts, drawn.finished_PN[:, 0].tolist(), strict=True):
            found[place] = text.rpartition(_THOUGHT)[2].strip() or None if ended else None
    return found


def _encode(run: Run, problem: Problem, suffix: str | None = None) -> list[int]:
    return prompt_tokens(problem, run.config, run.policy, suffix)
