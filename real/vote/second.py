"""Second vote sets: the same problems in other words, or answered by a slower model.

`ExtraRollouts` is the protocol of all rules that have responses sampled in addition to the votes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from guard_core import PolicyStreams, group_advantages, policy_streams
from guard_core.labels import choose_majority
from guard_core.rules import Rule
from lab.base.errors import UserError
from real.engines.rollouts import Sampling
from real.problems.problem import Problem, PromptSet
from real.problems.prompts import longest_prompt, prompt_tokens
from real.ranks.distributed import Ranks, shard_of
from real.settings.config import TrainConfig
from real.settings.seeds import Stream
from real.tiny import TASKS
from real.update.optimizer import WeightAverage
from real.update.packing import Group
from real.vote.decide import Decided, Fields, shared_streams
from real.vote.sample import Responses, Sampler

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a run that further generation needs."""

    config: TrainConfig
    rule: Rule
    prompts: PromptSet
    sampler: Sampler
    sampling: Sampling
    """Of the votes."""
    read: Callable[[Responses], Ints]
    """Responses to (P, V) answer ids, see `Supervisor.read`."""
    ranks: Ranks


class ExtraRollouts:
    """A rule's own generation. This class samples nothing; it is that of most rules.

    For every batch of problems the trainer calls `before`, `ask`, `groups` and, once the batch was
    trained on, `after_step`, in this order and on all ranks.
    """

    n_sampled = 0
    """Tokens that were sampled for the current batch."""

    def begin(self) -> dict[str, Any]:
        """Prepare, once before the first votes; returns facts for the manifest."""
        return {}

    def files(self) -> dict[str, Any]:
        """Return plain values that readers of the run folder want to see, by file name."""
        return {}

    def first(self) -> Fields:
        """Return observations of all problems before training, that labels depend on."""
        return {}

    def before(self, problems_P: Ints, step: int) -> Fields:
        """Sample what labels depend on.

        Args:
            problems_P: (P,) indices of the batch's problems.
            step: number of the batch; the engine holds the weights of the batch before.

        Returns:
            Observations by their names in `guard_core.rules.Observations`.
        """
        return {}

    def ask(self, decided: Decided | None, responses: Responses) -> Decided | None:
        """Sample what rewards depend on, once labels are known.

        Args:
            decided: of the batch; None on ranks that read no answers.

        Returns:
            The decision with what was observed.
        """
        return decided

    def groups(self, decided: Decided | None, streams: PolicyStreams) -> list[list[Group]]:
        """Return (P,) groups of further responses to train on, by problem; empty for none at all.

        Args:
            decided: as returned by `ask`.
        """
        return []

    def after_step(self, step: int) -> None:
        """Follow the weights, which batch `step` has changed."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint."""
        return {}

    def values(self) -> Any:
        """Return the plain values of a checkpoint; None where there is nothing to keep."""
        return None

    def restore(self, tensors: dict[str, Tensor], values: Any) -> None:
        """Take over what `tensors` and `values` returned.

        Raises:
            UserError: they do not fit the run.
        """


REQUEST = (
    "Rewrite the problem below in other words. Keep every number, every condition and the question "
    "as they are, so that the answer stays the same. Do not solve it. Write the new text alone.\n\n"
)
_THOUGHT = "</think>"
_AT_ONCE = 256


class SecondVotes(ExtraRollouts):
    """V more votes on every problem; a rule that trains them pays them by the first votes."""

    def __init__(self, parts: Parts) -> None:
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
        """Implement `ExtraRollouts`: the second voter is the model itself before training."""
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
        """Implement `ExtraRollouts`."""
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
        """Implement `ExtraRollouts`: the second votes, where the rule trains them."""
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
            label = np.where(obs.n_parsed > 0, majority, -1)
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
        """Implement `ExtraRollouts`."""
        problems = self.parts.prompts.problems
        config = self.parts.config
        reworded = TASKS[config.tiny_task].reworded
        self._take([reworded(p.prompt) for p in problems] if config.is_tiny else self._ask())
        return {"paraphrases_missing": sum(text is None for text in self.texts_N)}

    def files(self) -> dict[str, Any]:
        """Implement `ExtraRollouts`."""
        return {"paraphrases.json": self.values()}

    def values(self) -> Any:
        """Implement `ExtraRollouts`."""
        return {"paraphrases": self.texts_N}

    def restore(self, tensors: dict[str, Tensor], values: Any) -> None:
        """Implement `ExtraRollouts`."""
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


FIRST_RATE, LAST_RATE = 0.01, 1e-5
"""The average moves towards the weights at this rate, along a cosine over the run."""


class Teacher(SecondVotes):
    """Votes of a slow average of the weights: `w' <- w' + rate * (w - w')` after every batch.

    The average is kept in single precision at least. It costs that copy of the trained weights (of
    the adapters alone with LoRA), and a second one while it votes: the model then holds the
    teacher's weights, for the engine to take over. On several ranks both are sharded as the weights
    are, and all ranks must take every step.
    """

    def __init__(self, parts: Parts, n_steps: int) -> None:
        """Start at the model as it is now, before training and before a checkpoint is loaded.

        Args:
            n_steps: batches of the whole run.
        """
        super().__init__(parts)
        self._model: Any = parts.sampler.policy.model
        self._sampler = parts.sampler
        self._n_steps = n_steps
        self._average = WeightAverage(self._trained())
        self.moved = False
        """At first it is the model itself, and nothing has to be swapped."""

    @contextmanager
    def answering(self, version: int) -> Iterator[int]:
        """Implement `SecondVotes`: the model holds the teacher's weights meanwhile."""
        if not self.moved:
            yield version
            return
        with self._average.answering(self._model, self._sampler.hand_over, version) as other:
            yield other

    def after_step(self, step: int) -> None:
        """Implement `ExtraRollouts`."""
        self._average.follow(self._trained(), ema_rate(step - 1, self._n_steps))
        self.moved = True

    @property
    def weights(self) -> dict[str, Tensor]:
        """The average."""
        return self._average.weights

    def tensors(self) -> dict[str, Tensor]:
        """Implement `ExtraRollouts`."""
        return self.weights

    def values(self) -> Any:
        """Implement `ExtraRollouts`."""
        return {"moved": self.moved}

    def restore(self, tensors: dict[str, Tensor], values: Any) -> None:
        """See `ExtraRollouts`.

        Raises:
            UserError: the weights are those of another model.
        """
        shapes = {name: t.shape for name, t in tensors.items()}
        if shapes != {name: t.shape for name, t in self.weights.items()}:
            raise UserError(
                "checkpoint: the teacher's weights do not fit the model; start a new run"
            )
        for name, mean in self.weights.items():
            mean.copy_(shard_of(tensors[name], mean))
        self.moved = bool(values["moved"])

    def _trained(self) -> dict[str, Tensor]:
        return {name: p for name, p in self._model.named_parameters() if p.requires_grad}


def ema_rate(done: int, n_steps: int) -> float:
    """Return the rate of the average after `done` of `n_steps` batches before this one."""
    share = done / max(1, n_steps - 1)
    return LAST_RATE + (FIRST_RATE - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * share))
