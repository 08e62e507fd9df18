from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_models import byte_level
from tokenizers.pre_tokenizers import ByteLevel

from guard_core import Draws, Guard, GuardConfig, PolicyStreams, Votes
from guard_core.rules import Observations, make_rule
from guard_core.rules.evidence import CoVerRL
from real.engines.rollouts import SampledResponse, Sampling, to_rollouts
from real.model.policy import Policy
from real.problems import Problem
from real.problems.problem import Turn
from real.problems.prompts import encode
from real.ranks.distributed import ALONE
from real.settings.config import TrainConfig
from real.vote.decide import Decided
from real.vote.judge import Judge, Wording
from real.vote.sample import Parts, Sampler

SUM = Problem("sum", "What is {2} + 3?", "5", (Turn("system", "Be {brief}."),))
PRODUCT = Problem("product", "What is 2 * 3?", "6")
TEXTS = [["five: \\boxed{5}", "six: \\boxed{6}", "???"], ["\\boxed{6}", "\\boxed{5}", "\\boxed{8}"]]
SAMPLING = Sampling(40)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (r"All steps hold. \boxed{correct}", 1), (r"\boxed{wrong}", 0), (r"\boxed{}", -1),
        (r"The answer \boxed{5} is right, so \boxed{\text{Correct}}.", 1), (r"\boxed{correct", -1),
        (r"\boxed{correct} ... no: \boxed{wrong}", 0), (r"\boxed{not correct}", -1),
        (r"\boxed{ Incorrect. }", 0), ("", -1),
    ],
)  # fmt: skip
def test_verdicts_are_read_from_the_last_box(text, verdict):
    assert Wording().verdict(text) == verdict


@pytest.fixture(scope="module")
def letters():
    return byte_level(["<eos>", "<pad>", *sorted(ByteLevel.alphabet())])


class Answering:
    """An engine that answers the n-th question it gets with the n-th of its answers."""

    def __init__(self, tokenizer, answers):
        self.tokenizer, self.answers, self.asked = tokenizer, answers, []

    def sample(self, prompts, n, sampling, generator):
        assert n == 1 and sampling == SAMPLING
        self.asked = [self.tokenizer.decode(prompt) for prompt in prompts]
        ids = [self.tokenizer(answer)["input_ids"] + [0] for answer in self.answers]
        rows = [[SampledResponse(row, [-0.5] * len(row), "stop", {"0"})] for row in ids]
        return to_rollouts(rows, 1, 0, 0)


class Fixed:
    """A rule that asks given questions."""

    verifications, regenerations = 1, 0
    trusts = regeneration_rewards = None

    def __init__(self, questions):
        self.questions_PQ = np.array(questions)

    def questions(self, obs, label):
        return self.questions_PQ


def decision():
    answers_PV = np.array([[0, 1, -1], [0, 1, 2]])
    votes = Votes.from_answers(answers_PV, n_samples=2, n_answers=3)
    guard = Guard(GuardConfig.off())
    draws = Draws(*np.zeros((3, 2)))
    _, decided = guard.step(guard.init(2), votes, draws)
    return Decided(Observations(votes, np.zeros((2, 0)), answers_PV), decided, draws.tie, {}, {})


def judged(tokenizer, engine, questions, **changes):
    """The judge and (P, Q) verdicts on `TEXTS`."""
    text_config = SimpleNamespace(get_text_config=lambda: SimpleNamespace())
    embedding = SimpleNamespace(weight=torch.zeros(10_000, 1))
    model = SimpleNamespace(config=text_config, get_input_embeddings=lambda: embedding)
    policy = Policy(model, tokenizer, (0,), 0, torch.device("cpu"))
    config = TrainConfig(chat_template="off", threads=1, **changes)
    prompts = SimpleNamespace(problems=(SUM, PRODUCT))
    sampler = Sampler(engine, policy, 0, 1)
    parts = Parts(config, make_rule("ttrl"), prompts, sampler, SAMPLING, None, ALONE)
    judge = Judge(Fixed(questions), parts)
    judge.before(np.arange(2), 1)
    votes = SimpleNamespace(problems=[0, 1], texts=TEXTS)
    decided = judge.ask(decision(), votes)
    return judge, decided.obs.verdicts


def test_verdicts_come_back_at_the_questions_places(letters):
    engine = Answering(
        letters, ["\\boxed{correct}", "hm", "\\boxed{wrong}", "\\boxed{wrong}", "\\boxed{correct}"]
    )
    judge, verdicts_PQ = judged(letters, engine, [[0, -1, 1, 1], [-1, 2, 2, -1]])
    assert verdicts_PQ.tolist() == [[1, -1, -1, 0], [-1, 0, 1, -1]]
    assert judge.questions_PQ.tolist() == [[0, -1, 1, 2], [-1, 3, 4, -1]]
    assert [text.count("\\boxed{6}") for text in engine.asked] == [0, 1, 1, 0, 0]
    assert engine.asked[1] == engine.asked[2]  # asked twice, two samples
    assert all("\\boxed{8}" in text and "2 * 3" in text for text in engine.asked[3:])
    assert engine.asked[0].startswith("Be {brief}.\n\n")
    assert judge.verified.rollouts.tokens_PNT.shape[:2] == (5, 1)
    assert judge.n_sampled == judge.verified.n_tokens > 0


def test_questions_that_are_too_long_are_not_asked(letters):
    lengths = [
        len(encode(letters, Wording().question(problem, text), "", False)[1])
        for problem, text in ((SUM, TEXTS[0][0]), (PRODUCT, TEXTS[1][0]))
    ]
    assert lengths[1] < lengths[0]
    engine = Answering(letters, ["\\boxed{correct}"])
    judge, verdicts_PQ = judged(letters, engine, [[0], [0]], max_prompt_tokens=lengths[1])
    assert verdicts_PQ.tolist() == [[-1], [1]]
    assert judge.questions_PQ.tolist() == [[-1], [0]]


def test_verifications_are_trained_on_as_the_guard_has_it(letters, monkeypatch):
    monkeypatch.setattr(Fixed, "verifications", 2)
    monkeypatch.setattr(Fixed, "format_reward", 1.0, raising=False)
    monkeypatch.setattr(Fixed, "verifier_rewards", CoVerRL.verifier_rewards, raising=False)
    answers = ["\\boxed{correct}", "\\boxed{wrong}"] * 2
    guard = GuardConfig.release().set(negative_scale=0.5, advantage_scale="none")
    asked = [[0, 1, -1, -1], [0, 1, -1, -1]]
    judge, verdicts_PQ = judged(letters, Answering(letters, answers), asked, guard=guard)
    made = decision()
    treated = made.decision.treated(np.array([0.6, 1]), np.zeros(2), np.array([False, True]), 0.3)
    obs = replace(made.obs, verdicts=verdicts_PQ)
    nothing_P2 = np.zeros((2, 2))
    streams = PolicyStreams(nothing_P2, nothing_P2, np.ones(2), np.zeros(2, bool))
    groups = judge.groups(replace(made, obs=obs, decision=treated), streams)
    paid = [[float(group.majority_K) for group in problem] for problem in groups]
    # Rewards 2 and 1 less their mean, by the weight of the first problem; the second is skipped.
    assert paid == [[pytest.approx(0.3), pytest.approx(-0.15)], [0, 0]]
