"""Responses that a rule has sampled in addition to the votes, by the protocol of `ExtraRollouts`.

* Second vote sets: the same problems in other words, or answered by a slower model.
* The trained model as the judge of its own responses. Every question, which asks for a reasoned
  verdict in a box, is a sample of its own, also about the same response. A verdict that it is wrong
  is followed by a request to solve the problem again. Both are trained on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from guard_core import PolicyStreams, group_advantages, policy_streams
from guard_core.advantages import standardise
from guard_core.labels import choose_majority
from guard_core.rules import Observations, Rule
from guard_core.rules.evidence import CoVerRL
from real.answers.boxes import last_box
from real.engines.rollouts import Sampling
from real.problems.problem import Problem, PromptSet, Turn
from real.problems.prompts import longest_prompt, prompt_tokens
from real.ranks.distributed import Ranks, shard_of
from real.settings.config import TrainConfig
from real.settings.seeds import Stream
from real.tiny import TASKS, judging
from real.update.optimizer import WeightAverage
from real.update.packing import Group
from real.vote.decide import Decided, Fields, shared_streams
from real.vote.sample import Responses, Sampler

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


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

    @property
    def limit(self) -> int:
        """Most tokens of a prompt, which neither the engine nor the model may exceed."""
        return longest_prompt(self.config, self.sampler.policy)

    def encode(self, problem: Problem, suffix: str | None = None) -> list[int]:
        """Return a prompt's tokens."""
        return prompt_tokens(problem, self.config, self.sampler.policy, suffix)


class ExtraRollouts:
    """A rule's own generation. This class samples nothing; it is that of most rules.

    For every batch of problems the trainer calls `before`, `ask`, `groups` and, once the batch was
    trained on, `after_step`, in this order and on all ranks.
    """

    n_sampled = 0
    file: str | None = None
    """Name in the run folder of a copy of `values` for readers."""

    def begin(self) -> dict[str, Any]:
        """Prepare, once before the first votes; returns facts for the manifest."""
        return {}

    def first(self) -> Fields:
        """Return observations of all problems before training, that labels depend on."""
        return {}

    def before(self, problems_P: Ints, step: int) -> Fields:
        """Sample what labels of batch `step` depend on; returns observations by their names."""
        return {}

    def ask(self, decided: Decided | None, responses: Responses) -> Decided | None:
        """Sample what rewards depend on; returns labels with what was seen, None if None."""
        return decided

    def groups(self, decided: Decided | None, streams: PolicyStreams) -> list[list[Group]]:
        """Return (P,) groups of further responses to train on; empty for none at all."""
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
        """Take over what `tensors` and `values` returned."""


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
        self.asked: PromptSet = parts.prompts
        """The prompts of the second votes; the problems themselves unless they are reworded."""
        self._drawn: Responses | None = None

    @contextmanager
    def answering(self, version: int) -> Iterator[int]:
        """Let the engine, which has the trained weights, sample by the second voter's version."""
        yield version

    def first(self) -> Fields:
        """The second voter is the model itself before training."""
        parts, sampler = self.parts, self.parts.sampler
        generator, config = sampler.generator(Stream.SECOND, 0), parts.config
        settings = config.n_votes, parts.sampling, 0, generator
        drawn = sampler.sample_all(self.asked, *settings, config.max_rows * parts.ranks.world)
        return {"second": np.concatenate([parts.read(responses) for responses in drawn])}

    def before(self, problems_P: Ints, step: int) -> Fields:
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
        """The second votes, where the rule trains them."""
        if not self.parts.rule.trains_second or self._drawn is None:
            return []
        own_streams = None if decided is None else self.pay(decided)
        groups = self._drawn.groups(shared_streams(self.parts.ranks, own_streams))
        return [[group] for group in groups]

    def pay(self, decided: Decided) -> PolicyStreams:
        """Return streams of the second responses, on the label of the first votes.

        Equal votes are decided as the guard decides them. Its weights and skips hold for both views
        of the problem; its minority stream belongs to the first votes.
        """
        config, decision, obs = self.parts.config.guard, decided.decision, decided.obs
        label = decision.label
        if config.labels.label_from == "current":
            majority = choose_majority(obs.votes, label, decided.tie_P, config)
            label = np.where(obs.n_parsed > 0, majority, -1)
        twin = replace(decision, label=label, beta=np.zeros_like(decision.beta))
        second_PK = obs.of("second")[:, : obs.votes.n_samples]
        return policy_streams(*group_advantages(second_PK, twin, config), twin, config)


class Paraphrases(SecondVotes):
    """Votes on one rewording a problem, made before the first votes and kept for the whole run.

    The trained model rewords its own problems, with one seeded response each; on the tiny task
    operands are swapped. A problem without a usable rewording keeps its text.
    """

    file = "paraphrases.json"

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.texts_N: list[str | None] = []
        """None where the problem keeps its text."""

    def begin(self) -> dict[str, Any]:
        problems = self.parts.prompts.problems
        config = self.parts.config
        reworded = TASKS[config.tiny_task].reworded
        self._take([reworded(p.prompt) for p in problems] if config.is_tiny else self._ask())
        return {"paraphrases_missing": sum(text is None for text in self.texts_N)}

    def values(self) -> Any:
        return {"paraphrases": self.texts_N}

    def restore(self, tensors: dict[str, Tensor], values: Any) -> None:
        self._take(values["paraphrases"])

    def _take(self, texts_N: list[str | None]) -> None:
        """Encode the rewordings; one that is too long is left out."""
        prompts, limit = self.parts.prompts, self.parts.limit
        tokens, kept = [], []
        for problem, old, text in zip(prompts.problems, prompts.tokens, texts_N, strict=True):
            new = [] if text is None else self.parts.encode(replace(problem, prompt=text))
            fits = 0 < len(new) <= limit
            tokens.append(new if fits else old)
            kept.append(text if fits else None)
        self.texts_N = kept
        self.asked = replace(prompts, tokens=tokens)

    def _ask(self) -> list[str | None]:
        """Return the model's own rewordings; None where it gave none, or none that ended."""
        parts = self.parts
        wanted = [replace(p, prompt=REQUEST + p.prompt) for p in parts.prompts.problems]
        asked = [parts.encode(problem, suffix="") for problem in wanted]
        limit, generator = parts.limit, parts.sampler.generator(Stream.REWORDING)
        fits = [problem for problem, tokens in enumerate(asked) if len(tokens) <= limit]
        texts: list[str | None] = [None] * len(asked)
        for start in range(0, len(fits), _AT_ONCE):
            chosen = fits[start : start + _AT_ONCE]
            prompts = [asked[problem] for problem in chosen]
            drawn = parts.sampler.sample(chosen, prompts, 1, parts.sampling, 0, generator)
            finished = drawn.rollouts.finished_PN[:, 0].tolist()
            for problem, (text,), ended in zip(chosen, drawn.texts, finished, strict=True):
                texts[problem] = text.rpartition(_THOUGHT)[2].strip() or None if ended else None
        return texts


FIRST_RATE, LAST_RATE = 0.01, 1e-5
"""The average moves towards the weights at this rate, along a cosine over the run."""


class Teacher(SecondVotes):
    """Votes of a slow average of the weights: `w' <- w' + rate * (w - w')` after every batch.

    It costs a copy of the trained weights in single precision (of the adapters alone with LoRA),
    and a second one while it votes: the model then holds the teacher's weights. On several ranks
    both are sharded as the weights are, and all ranks must take every step.
    """

    def __init__(self, parts: Parts, n_steps: int) -> None:
        """Start at the model as it is now, before training and before a checkpoint is loaded."""
        super().__init__(parts)
        self._model: Any = parts.sampler.policy.model
        self._n_steps = n_steps
        self._average = WeightAverage(self._trained())
        self.weights = self._average.weights
        self.moved = False
        """At first it is the model itself, and nothing has to be swapped."""

    @contextmanager
    def answering(self, version: int) -> Iterator[int]:
        """The model holds the teacher's weights meanwhile."""
        if not self.moved:
            yield version
            return
        hand_over = self.parts.sampler.hand_over
        with self._average.answering(self._model, hand_over, version) as other:
            yield other

    def after_step(self, step: int) -> None:
        self._average.follow(self._trained(), ema_rate(step - 1, self._n_steps))
        self.moved = True

    def tensors(self) -> dict[str, Tensor]:
        return self.weights

    def values(self) -> Any:
        return {"moved": self.moved}

    def restore(self, tensors: dict[str, Tensor], values: Any) -> None:
        for name, mean in self.weights.items():
            mean.copy_(shard_of(tensors[name], mean))
        self.moved = bool(values["moved"])

    def _trained(self) -> dict[str, Tensor]:
        return {name: p for name, p in self._model.named_parameters() if p.requires_grad}


def ema_rate(done: int, n_steps: int) -> float:
    """Return the rate of the average after `done` of `n_steps` batches before this one."""
    share = done / max(1, n_steps - 1)
    return LAST_RATE + (FIRST_RATE - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * share))


QUESTION = r"""A problem and an attempt at it follow. Judge whether the attempt's answer is right.

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
        """Return the question about a response; the problem's earlier messages stay in front."""
        asked = QUESTION.strip().format(problem=problem.prompt.strip(), attempt=response.strip())
        return Problem(f"{problem.id}/verify", asked, None, problem.before)

    def verdict(self, text: str) -> int:
        r"""Return 1 for `\boxed{correct}`, 0 for wrong or incorrect, -1 for anything else."""
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
        asked = judging.question(problem.prompt, response)
        return Problem(f"{problem.id}/verify", asked, None)

    def verdict(self, text: str) -> int:
        """Plus is right, minus wrong."""
        return judging.read_verdict(text)

    def request(self, problem: Problem, response: str, verification: str) -> Problem:
        asked = judging.request(problem.prompt, response, verification)
        return Problem(f"{problem.id}/again", asked, None)


_AGAIN = 1
"""Last position of the random numbers of new solutions, in the verifier's stream."""


@dataclass(frozen=True, slots=True)
class Asked:
    """M questions about the responses to P problems, with their answers."""

    verdicts_PQ: Ints
    """1 judged right, 0 judged wrong, -1 not asked or not readable."""
    questions_PQ: Ints
    """Index of each question among the M; -1 not asked."""
    responses: Responses | None
    """(M, 1) verifications; None where nothing was asked."""


Solutions = tuple[list[int], Responses, Floats]
"""After each of M verdicts that a response is wrong N new solutions: (M,) index of the batch's
problem, (M, N) responses, (M, N) advantages."""


class Judge(ExtraRollouts):
    """Asks about responses of a batch, and keeps the answers to be trained on."""

    def __init__(self, rule: CoVerRL, parts: Parts) -> None:
        self._rule, self._parts = rule, parts
        self.wording = TinyWording() if parts.config.tiny_verifies else Wording()
        self._step = 0
        self.asked: Asked | None = None
        self._again: Solutions | None = None

    def before(self, problems_P: Ints, step: int) -> dict[str, NDArray[Any]]:
        """Forget the batch before."""
        self._step, self.n_sampled, self.asked, self._again = step, 0, None, None
        return {}

    def ask(self, decided: Decided | None, responses: Responses) -> Decided | None:
        """Let the model judge, first a response with the label, and solve again what is wrong."""
        chosen = self._rule.questions(decided.obs, decided.decision.label) if decided else None
        chosen_PQ = self._parts.ranks.from_first(chosen).astype(np.int64)
        self.asked = self._verify(chosen_PQ, responses)
        if self._rule.regenerations:
            self._again = self._solve_again(self.asked, chosen_PQ, responses, decided)
        if decided is None:
            return None
        return replace(decided, obs=replace(decided.obs, verdicts=self.asked.verdicts_PQ))

    def groups(self, decided: Decided | None, streams: PolicyStreams) -> list[list[Group]]:
        """Return a group of one per verification, of N per wrong verdict, as far as they stay."""
        asked, further = self.asked, [self._again] if self._again else []
        assert asked is not None
        advantages_PQ = self._parts.ranks.from_first(
            self._advantages(decided.obs, asked.questions_PQ >= 0) if decided else None
        )
        if asked.responses is not None:
            rows_M, columns_M = np.nonzero(asked.questions_PQ >= 0)
            advantages_M1 = advantages_PQ[rows_M, columns_M][:, None]
            further.insert(0, (rows_M.tolist(), asked.responses, advantages_M1))
        groups: list[list[Group]] = [[] for _ in streams.drop]
        for rows_M, responses, advantages_MN in further:
            # A problem's further groups have the weight of its votes.
            weighted = PolicyStreams(
                majority=advantages_MN,
                minority=np.zeros_like(advantages_MN),
                weight=streams.weight[rows_M],
                drop=streams.drop[rows_M],
            )
            for row, group in zip(rows_M, responses.groups(weighted), strict=True):
                groups[row].append(group)
        return groups

    def _advantages(self, obs: Observations, asked_PQ: NDArray[np.bool_]) -> Floats:
        """(P, Q) rewards of verdicts, standardised within each answer's verifications."""
        rewards_PQ = self._rule.verifier_rewards(obs)
        advantages_PQ = np.full(rewards_PQ.shape, np.nan)
        for half in (slice(self._rule.verifications), slice(self._rule.verifications, None)):
            for row in np.flatnonzero(asked_PQ[:, half].any(axis=1)):
                asked_H = asked_PQ[row, half]
                advantages_PQ[row, half][asked_H] = standardise(rewards_PQ[row, half][asked_H])
        return advantages_PQ

    def _verify(self, chosen_PQ: Ints, responses: Responses) -> Asked:
        """Ask about the chosen ones of the V responses, -1 for none, as long as a prompt may be."""
        prompts, rows = [], []
        questions_PQ = np.full_like(chosen_PQ, -1)
        encoded: dict[tuple[int, int], list[int]] = {}
        for row, column in np.argwhere(chosen_PQ >= 0).tolist():
            key = (row, int(chosen_PQ[row, column]))
            if key not in encoded:
                text = responses.texts[row][key[1]]
                question = self.wording.question(self._problem(responses, row), text)
                encoded[key] = self._parts.encode(question, "")
            if len(encoded[key]) <= self._parts.limit:
                questions_PQ[row, column] = len(prompts)
                prompts.append(encoded[key])
                rows.append(row)
        if not prompts:
            return Asked(questions_PQ.copy(), questions_PQ, None)
        verifications = self._sample(responses, rows, prompts, 1, self.wording.max_tokens)
        verdicts_M = np.array([self.wording.verdict(text) for (text,) in verifications.texts])
        verdicts_PQ = np.where(questions_PQ >= 0, verdicts_M[questions_PQ], -1)
        return Asked(verdicts_PQ, questions_PQ, verifications)

    def _solve_again(
        self, asked: Asked, chosen_PQ: Ints, responses: Responses, decided: Decided | None
    ) -> Solutions | None:
        """Sample new solutions after the verdicts "wrong" on problems that stay; None for none."""
        if asked.responses is None:
            return None
        prompts, rows = [], []
        stays_P = self._rule.trusts(asked.verdicts_PQ)
        for row, column in np.argwhere((asked.verdicts_PQ == 0) & stays_P[:, None]).tolist():
            (verification,) = asked.responses.texts[asked.questions_PQ[row, column]]
            response = responses.texts[row][int(chosen_PQ[row, column])]
            asks = self.wording.request(self._problem(responses, row), response, verification)
            prompt = self._parts.encode(asks, "")
            if len(prompt) <= self._parts.limit:
                rows.append(row)
                prompts.append(prompt)
        if not prompts:
            return None
        solutions = self._sample(responses, rows, prompts, self._rule.regenerations, None, _AGAIN)
        advantages_MN = None
        if decided is not None:
            answers_MN = self._parts.read(solutions)
            label_M = decided.decision.label[rows]
            advantages_MN = standardise(self._rule.regeneration_rewards(answers_MN, label_M))
        return rows, solutions, self._parts.ranks.from_first(advantages_MN)

    def _sample(
        self,
        responses: Responses,
        rows: Sequence[int],
        prompts: list[list[int]],
        n: int,
        max_tokens: int | None,
        *position: int,
    ) -> Responses:
        sampler, sampling = self._parts.sampler, self._parts.sampling
        sampling = replace(sampling, max_tokens=max_tokens or sampling.max_tokens)
        problems = [responses.problems[row] for row in rows]
        generator = sampler.generator(Stream.VERIFIER, self._step, *position)
        sampled = sampler.sample(problems, prompts, n, sampling, self._step - 1, generator)
        self.n_sampled += sampled.n_tokens
        return sampled

    def _problem(self, responses: Responses, row: int) -> Problem:
        return self._parts.prompts.problems[responses.problems[row]]
