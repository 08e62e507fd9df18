"""Questions to the verifier: what is asked, how verdicts are read, what can be trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from guard_core import GuardConfig
from lab.errors import UserError
from real.engines.rollouts import EngineError, Prompts, Response, Rollouts, Sampling, to_rollouts
from real.engines.transformers_engine import TransformersEngine
from real.model.policy import Policy, load_policy
from real.problems import Problem
from real.problems.problem import Turn
from real.problems.prompts import encode
from real.settings.config import TrainConfig
from real.tiny import CHECKPOINT
from real.update.logprobs import Scorer, group_logprobs
from real.vote.observations.verifier import Asked, Wording, ask, read_verdict, verifier_prompt

SUM = Problem("sum", "What is {2} + 3?", "5", (Turn("system", "Be {brief}."),))
PRODUCT = Problem("product", "What is 2 * 3?", "6")
TEXTS = [["five: \\boxed{5}", "six: \\boxed{6}", "???"], ["\\boxed{6}", "\\boxed{5}", "\\boxed{8}"]]
SAMPLING = Sampling(40)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (r"All steps hold. \boxed{correct}", 1),
        (r"\boxed{wrong}", 0),
        (r"The answer \boxed{5} is right, so \boxed{\text{Correct}}.", 1),
        (r"\boxed{ Incorrect. }", 0),
        (r"\boxed{correct} ... no: \boxed{wrong}", 0),
        (r"\boxed{\textbf{WRONG}}", 0),
        (r"\boxed{not correct}", -1),
        (r"\boxed{5}", -1),
        (r"\boxed{}", -1),
        ("correct", -1),
        (r"\boxed{correct", -1),
        ("", -1),
    ],
)
def test_verdicts_are_read_from_the_last_box(text: str, verdict: int):
    assert read_verdict(text) == verdict


def test_a_question_shows_problem_and_response():
    question = verifier_prompt(SUM, " I add {them}: \\boxed{5}\n")
    assert "<problem>\nWhat is {2} + 3?\n</problem>" in question.prompt
    assert "<attempt>\nI add {them}: \\boxed{5}\n</attempt>" in question.prompt
    assert question.prompt.endswith("verdict: \\boxed{correct} if the answer is right, "
                                    "\\boxed{wrong} if it is not.")  # fmt: skip
    assert question.before == SUM.before and question.answer is None
    # The question's own boxes are no verdict of anybody, but the model's come after them.
    assert read_verdict(question.prompt + "\\boxed{correct}") == 1


@pytest.fixture(scope="module")
def letters() -> Any:
    """A tokenizer of bytes."""
    vocab = {text: place for place, text in enumerate(["<eos>", *sorted(ByteLevel.alphabet())])}
    backend = Tokenizer(BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = ByteLevelDecoder()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")


class Judge:
    """Answers the n-th question it gets with the n-th of its answers."""

    def __init__(self, tokenizer: Any, answers: Sequence[str]) -> None:
        self.tokenizer, self.answers, self.version = tokenizer, answers, 4
        self.asked: list[str] = []

    def sample(
        self, prompts: Prompts, n: int, sampling: Sampling, generator: torch.Generator
    ) -> Rollouts:
        assert n == 1 and sampling == SAMPLING
        self.asked = [self.tokenizer.decode(prompt) for prompt in prompts]
        ids = [self.tokenizer(answer)["input_ids"] + [0] for answer in self.answers]
        rows = [[Response(row, [-0.5] * len(row), True)] for row in ids]
        return to_rollouts(rows, 1, 0, self.version)

    def release(self) -> None: ...

    def update_weights(self, model: Any, version: int) -> None: ...

    def close(self) -> None: ...


def judged(
    tokenizer: Any, judge: Any, questions: list[list[int]], longest: int = 10**6, version: int = 4
) -> Asked:
    policy = Policy(None, tokenizer, (0,), 0, torch.device("cpu"))

    def tokens(problem: Problem) -> list[int]:
        return encode(tokenizer, problem, "", False)

    return ask(
        judge, policy, [SUM, PRODUCT], TEXTS, np.array(questions), tokens, longest,
        SAMPLING, torch.Generator().manual_seed(0), version, Wording(),
    )  # fmt: skip


def test_verdicts_come_back_at_the_questions_places(letters: Any):
    judge = Judge(
        letters, ["\\boxed{correct}", "hm", "\\boxed{wrong}", "\\boxed{wrong}", "\\boxed{correct}"]
    )
    found = judged(letters, judge, [[0, -1, 1, 1], [-1, 2, 2, -1]])
    assert found.verdicts_PQ.tolist() == [[1, -1, -1, 0], [-1, 0, 1, -1]]
    assert found.places_PQ.tolist() == [[0, -1, 1, 2], [-1, 3, 4, -1]]
    assert [text.count("\\boxed{6}") for text in judge.asked] == [0, 1, 1, 0, 0]
    assert judge.asked[1] == judge.asked[2]  # asked twice, two samples
    assert all("\\boxed{8}" in text and "2 * 3" in text for text in judge.asked[3:])
    assert judge.asked[0].startswith("Be {brief}.\n\n")
    assert found.rollouts is not None and found.rollouts.tokens_PNT.shape[:2] == (5, 1)


def test_nothing_asked_costs_nothing(letters: Any):
    found = judged(letters, None, [[-1, -1], [-1, -1]])  # None samples nothing
    assert found.verdicts_PQ.tolist() == [[-1, -1], [-1, -1]]
    assert found.rollouts is None and found.prompts == []
    assert found.groups(np.zeros((2, 2))) == [[], []]


def test_questions_that_are_too_long_are_not_asked(letters: Any):
    lengths = [
        len(encode(letters, verifier_prompt(problem, text), "", False))
        for problem, text in ((SUM, TEXTS[0][0]), (PRODUCT, TEXTS[1][0]))
    ]
    assert lengths[1] < lengths[0]
    judge = Judge(letters, ["\\boxed{correct}"])
    found = judged(letters, judge, [[0], [0]], longest=lengths[1])
    assert found.verdicts_PQ.tolist() == [[-1], [1]]
    assert found.places_PQ.tolist() == [[-1], [0]]


def test_verifications_of_other_weights_are_refused(letters: Any):
    with pytest.raises(EngineError, match="version 4"):
        judged(letters, Judge(letters, ["x"]), [[0], [-1]], version=5)


def test_a_verification_can_be_trained_on():
    """The tiny model judges nothing, but it samples; its log-probs are those of the trainer."""
    policy = load_policy(CHECKPOINT, "cpu")
    engine = TransformersEngine(policy.model, policy.eos_token_ids, policy.pad_token_id)
    problems = [Problem("a", "3+0-1*6+0=", None), Problem("b", "1+2*3-4+5=", None)]
    texts = [["7+0>", "3-6+0>"], ["1+6>", "2"]]

    def tokens(problem: Problem) -> list[int]:
        question = problem.prompt.partition("=\n")[0].rpartition("\n")[2]
        return encode(policy.tokenizer, Problem("", f"{question}=", None), "", False)

    def asked() -> Asked:
        return ask(
            engine, policy, problems, texts, np.array([[0, 0, -1], [1, -1, 0]]), tokens, 40,
            Sampling(22, 1.5), torch.Generator().manual_seed(1), 0, Wording(),
        )  # fmt: skip

    found = asked()
    assert (found.verdicts_PQ == -1).all()
    assert found.rollouts is not None and found.prompts[0] == found.prompts[1]
    assert not torch.equal(found.rollouts.tokens_PNT[0], found.rollouts.tokens_PNT[1])
    again = asked().rollouts
    assert again is not None and torch.equal(found.rollouts.tokens_PNT, again.tokens_PNT)
    nan = float("nan")
    groups = found.groups(np.array([[1.0, -1.0, nan], [0.5, nan, 2.0]]))
    assert [[float(g.majority_K) for g in row] for row in groups] == [[1.0, -1.0], [0.5, 2.0]]
    flat = [group for row in groups for group in row]
    trainer = group_logprobs(Scorer(policy.model), flat, 1.5, 4096)
    for group, logprobs in zip(flat, trainer, strict=True):
        torch.testing.assert_close(
            logprobs[group.real_KT], group.old_KT[group.real_KT], atol=1e-4, rtol=0
        )


def test_the_tiny_model_cannot_verify():
    with pytest.raises(UserError, match=r"^rule = 'coverrl': .* --model and --problems$"):
        TrainConfig(rule="coverrl", guard=GuardConfig.off())
    TrainConfig(rule="coverrl", guard=GuardConfig.off(), model="folder", problems="math500")
