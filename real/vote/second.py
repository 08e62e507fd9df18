"""Second vote sets: the same problems in other words, or answered by a slower model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from guard_core import PolicyStreams, group_advantages, policy_streams
from guard_core.label import choose_majority
from real.problems.problem import Problem, PromptSet
from real.problems.prompts import longest_prompt, prompt_tokens
from real.settings.seeds import Stream
from real.tiny import TASKS
from real.update.group import Group
from real.vote.decide import Decided, Fields
from real.vote.further import Further, Ints, Parts
from real.vote.pay import shared_streams
from real.vote.read import Responses

REQUEST = (
    "Rewrite the problem below in other words. Keep every number, every condition and the question "
    "as they are, so that the answer stays the same. Do not solve it. Write the new text alone.\n\n"
)
_THOUGHT = "</think>"
_AT_ONCE = 256


class SecondVotes(Further):
    """V more votes on every problem; a rule that trains them pays them by the first votes."""

    def __init__(self, parts: Parts) -> None:
        """Sample nothing yet."""
        self.parts = parts
        self._drawn: Responses | None = None

    @property
    def asked(self) -> PromptSet:
        """The prompts of the second votes; the problems themselves."""
        return self.parts.prompts

    @contextmanager
    def answering(self, version: int) -> Iterator[int]:
        """Let the engine sample by the second voter; gives the version of these weights.

        Args:
            version: of the trained weights, which the engine has before and after.
        """
        yield version

    def first(self) -> Fields:
        """Implement `Further`: the second voter is the model itself before training."""
        parts, sampler = self.parts, self.parts.sampler
        drawn = sampler.sample_all(
            self.asked,
            parts.config.n_votes,
            parts.sampling,
            0,
            sampler.generator(Stream.SECOND, 0),
            parts.config.max_rows * parts.ranks.world,
        )
        return {"second": np.concatenate([parts.read(responses) for responses in drawn])}

    def before(self, problems_P: Ints, step: int) -> Fields:
        """Implement `Further`."""
        parts, problems = self.parts, problems_P.tolist()
        prompts = [self.asked.tokens[problem] for problem in problems]
        generator = parts.sampler.generator(Stream.SECOND, step)
        with self.answering(step - 1) as version:
            self._drawn = parts.sampler.sample(
                problems, prompts, parts.config.n_votes, parts.sampling, version, generator
            )
        self.n_sampled = self._drawn.n_tokens
        return {"second": parts.read(self._drawn)}

    def groups(self, decided: Decided | None, streams: PolicyStreams) -> list[list[Group]]:
        """Implement `Further`: the second votes, where the rule trains them."""
        if not self.parts.rule.trains_second or self._drawn is None:
            return []
        own_streams = None if decided is None else self.pay(decided)
        groups = self._drawn.groups(shared_streams(self.parts.ranks, own_streams))
        return [[group] for group in groups]

    def pay(self, decided: Decided) -> PolicyStreams:
        """Return streams of the second responses, on the label of the first votes.

        Equal votes are decided as the guard decides them. Remembered and frozen labels are one for
        both views of the problem. The guard's weights and skips hold for both; its minority stream
        belongs to the first votes.
        """
        config, decision, obs = self.parts.config.guard, decided.decision, decided.obs
        label = decision.label
        if config.label_from == "current":
            majority = choose_majority(obs.votes, label, decided.tie_P, config)
            label = np.where(obs.n_parsed > 0, majority.label, -1)
        twin = replace(decision, label=label, beta=np.zeros_like(decision.beta))
        second_PK = obs.of("second")[:, : obs.votes.n_samples]
        return policy_streams(*group_advantages(second_PK, twin, config), twin, config)


class Paraphrases(SecondVotes):
    """Votes on one rewording a problem, made before the first votes and kept for the whole run.

    The trained model rewords its own problems, with one seeded response each. On the tiny task a
    program does: operands of the arithmetic that may be swapped are. A problem without a usable
    rewording keeps its text, so that its second votes are further votes on the same question.
    """

    def __init__(self, parts: Parts) -> None:
        """Reword nothing yet."""
        super().__init__(parts)
        self.texts_N: list[str | None] = []
        """None where the problem keeps its text."""
        self._asked: PromptSet | None = None

    @property
    def asked(self) -> PromptSet:
        """The rewordings as prompts."""
        if self._asked is None:
            raise ValueError("no paraphrases yet; call begin first")
        return self._asked

    def begin(self) -> dict[str, Any]:
        """Implement `Further`."""
        problems = self.parts.prompts.problems
        config = self.parts.config
        reworded = TASKS[config.tiny_task].reworded
        self._take([reworded(p.prompt) for p in problems] if config.is_tiny else self._ask())
        return {"paraphrases_missing": sum(text is None for text in self.texts_N)}

    def files(self) -> dict[str, Any]:
        """Implement `Further`."""
        return {"paraphrases.json": self.values()}

    def values(self) -> Any:
        """Implement `Further`."""
        return {"paraphrases": self.texts_N}

    def restore(self, tensors: dict[str, Tensor], values: Any) -> None:
        """Implement `Further`."""
        self._take(values["paraphrases"])

    def _take(self, texts_N: list[str | None]) -> None:
        """Encode the rewordings; one that is too long is left out."""
        prompts, limit = self.parts.prompts, self._limit
        tokens, kept = [], []
        for problem, old, text in zip(prompts.problems, prompts.tokens, texts_N, strict=True):
            new = [] if text is None else self._encode(replace(problem, prompt=text))
            fits = 0 < len(new) <= limit
            tokens.append(new if fits else old)
            kept.append(text if fits else None)
        self.texts_N = kept
        self._asked = replace(prompts, tokens=tokens)

    def _ask(self) -> list[str | None]:
        """Return the model's own rewordings; None where it gave none, or none that ended."""
        problems, sampler, limit = self.parts.prompts.problems, self.parts.sampler, self._limit
        asked = [self._encode(replace(p, prompt=REQUEST + p.prompt), suffix="") for p in problems]
        fits = [problem for problem, tokens in enumerate(asked) if len(tokens) <= limit]
        texts: list[str | None] = [None] * len(asked)
        generator = sampler.generator(Stream.REWORDING)
        for start in range(0, len(fits), _AT_ONCE):
            chosen = fits[start : start + _AT_ONCE]
            prompts = [asked[problem] for problem in chosen]
            drawn = sampler.sample(chosen, prompts, 1, self.parts.sampling, 0, generator)
            finished = drawn.rollouts.finished_PN[:, 0].tolist()
            for problem, (text,), ended in zip(chosen, drawn.texts, finished, strict=True):
                texts[problem] = text.rpartition(_THOUGHT)[2].strip() or None if ended else None
        return texts

    @property
    def _limit(self) -> int:
        return longest_prompt(self.parts.config, self.parts.sampler.policy)

    def _encode(self, problem: Problem, suffix: str | None = None) -> list[int]:
        return prompt_tokens(problem, self.parts.config, self.parts.sampler.policy, suffix)
