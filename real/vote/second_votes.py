"""Second vote sets: the same problems in other words, or answered by a slower model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from guard_core import PolicyStreams, group_advantages, policy_streams
from guard_core.labels import choose_majority
from guard_core.rules import weighed
from guard_core.schedule import teacher_rate
from lab.base.columns import Ints
from real.model.prepare import trained_parameters
from real.problems.problem import PromptSet
from real.ranks.distributed import shard_of
from real.settings.seeds import Stream
from real.tiny import TASKS
from real.update.ema import WeightAverage
from real.update.packing import Group
from real.vote.decide import Decided, Fields, shared_streams
from real.vote.extra_rollouts import ExtraRollouts, encode
from real.vote.sample import Parts, Responses

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
        self.prompts: PromptSet = parts.prompts
        """The prompts of the second votes; the problems themselves unless they are reworded."""
        self._drawn: Responses | None = None

    def answering(self, version: int) -> AbstractContextManager[int]:
        """Let the engine, which has the trained weights, sample by the second voter's version."""
        return nullcontext(version)

    def first(self) -> Fields:
        """The second voter is the model itself before training."""
        drawn = self.parts.first_votes(self.prompts, Stream.SECOND)
        return {"second": np.concatenate([self.parts.read(responses) for responses in drawn])}

    def before(self, problems_P: Ints, step: int) -> Fields:
        parts, problems = self.parts, problems_P.tolist()
        prompts = [self.prompts.tokens[problem] for problem in problems]
        n, generator = parts.config.n_votes, parts.sampler.generator(Stream.SECOND, step)
        with self.answering(step - 1) as version:
            drawn = parts.sampler.sample(problems, prompts, n, parts.sampling, version, generator)
        self._drawn, self.n_sampled = drawn, drawn.n_tokens
        return {"second": parts.read(drawn)}

    def groups(self, decided: Decided | None, streams: PolicyStreams) -> list[list[Group]]:
        if not self.parts.rule.trains_second or self._drawn is None:
            return []
        streams = shared_streams(self.parts.ranks, None if decided is None else self.pay(decided))
        return [[group] for group in self._drawn.groups(streams, self.parts.config.mask_truncated)]

    def pay(self, decided: Decided) -> PolicyStreams:
        """Return streams of the second responses, on the label of the first votes or the truth.

        Equal votes are decided as the guard decides them. Weights and skips hold for both views of
        the problem; the guard's minority stream belongs to the first votes.
        """
        config, decision, obs = self.parts.config.guard, decided.decision, decided.obs
        label = decision.label
        if config.labels.label_from == "current" and self.parts.config.labels == "votes":
            majority = choose_majority(obs.votes, label, decided.tie_P, config)
            label = np.where(obs.n_parsed > 0, majority, -1)
        twin = replace(decision, label=label, beta=np.zeros_like(decision.beta))
        second_PK = obs.of("second")[:, : obs.votes.n_samples]
        streams = policy_streams(*group_advantages(second_PK, twin, config), twin, config)
        return weighed(self.parts.rule, obs, decision.label, streams)


class Paraphrases(SecondVotes):
    """Votes on one rewording a problem, made before the first votes and kept for the whole run.

    The trained model rewords its own problems, with one seeded response each; on the tiny task
    operands are swapped. A problem without a usable rewording keeps its text.
    """

    file = "paraphrases.json"
    texts_N: Sequence[str | None] = ()
    """None where the problem keeps its text."""

    def begin(self) -> dict[str, Any]:
        problems, config = self.parts.prompts.problems, self.parts.config
        reworded = TASKS[config.tiny_task].reworded
        self._take([reworded(p.prompt) for p in problems] if config.is_tiny else self._reword())
        return {"paraphrases_missing": sum(text is None for text in self.texts_N)}

    def state(self) -> tuple[dict[str, Tensor], Any]:
        return {}, {"paraphrases": self.texts_N}

    def restore(self, tensors: dict[str, Tensor], values: Any) -> None:
        self._take(values["paraphrases"])

    def _take(self, texts_N: list[str | None]) -> None:
        """Encode the rewordings; one that is too long is left out."""
        prompts, tokens, taken = self.parts.prompts, [], list[str | None]()
        for problem, old, text in zip(prompts.problems, prompts.tokens, texts_N, strict=True):
            new = None if text is None else encode(self.parts, replace(problem, prompt=text))
            tokens.append(new or old)
            taken.append(text if new else None)
        self.prompts, self.texts_N = replace(prompts, tokens=tokens), taken

    def _reword(self) -> list[str | None]:
        """Return the model's own rewordings; None where it gave none, or none that ended."""
        parts = self.parts
        requests = [replace(p, prompt=REQUEST + p.prompt) for p in parts.prompts.problems]
        encoded = enumerate(encode(parts, request, suffix="") for request in requests)
        fits = [(problem, tokens) for problem, tokens in encoded if tokens]
        generator = parts.sampler.generator(Stream.REWORDING)
        texts: list[str | None] = [None] * len(requests)
        for start in range(0, len(fits), _AT_ONCE):
            chosen, prompts = zip(*fits[start : start + _AT_ONCE], strict=True)
            drawn = parts.sampler.sample(chosen, prompts, 1, parts.sampling, 0, generator)
            finished = drawn.rollouts.finished_PN[:, 0].tolist()
            for problem, (text,), ended in zip(chosen, drawn.texts, finished, strict=True):
                text = text.rpartition(_THOUGHT)[2]
                cuts = (text.partition(stop)[0] for stop in parts.config.stop)
                texts[problem] = min(cuts, key=len, default=text).strip() or None if ended else None
        return texts


class Teacher(SecondVotes):
    """Votes of a slow average of the weights: `w' <- w' + rate * (w - w')` after every batch.

    It costs a copy of the trained weights in single precision (of the adapters alone with LoRA),
    and a second one while it votes: the model then holds the teacher's weights. On several ranks
    both are sharded as the weights are, and all ranks must take every step.
    """

    def __init__(self, parts: Parts) -> None:
        """Start at the model as it is now, before training and before a checkpoint is loaded."""
        super().__init__(parts)
        self._model = parts.sampler.policy.model
        self._average = WeightAverage(trained_parameters(self._model))
        self.moved = False
        """At first it is the model itself, and nothing has to be swapped."""

    def answering(self, version: int) -> AbstractContextManager[int]:
        """The model holds the teacher's weights meanwhile."""
        return self.parts.sampler.answering(self._average if self.moved else None, version)

    def after_step(self, step: int) -> None:
        rate = teacher_rate(step - 1, self.parts.n_steps)
        self._average.follow(trained_parameters(self._model), rate)
        self.moved = True

    def state(self) -> tuple[dict[str, Tensor], Any]:
        return self._average.weights, {"moved": self.moved}

    def restore(self, tensors: dict[str, Tensor], values: Any) -> None:
        for name, mean in self._average.weights.items():
            mean.copy_(shard_of(tensors[name], mean))
        self.moved = bool(values["moved"])
