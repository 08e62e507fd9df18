"""Conversations of the tiny task: their form, what they plant, and how verdicts are read."""

from __future__ import annotations

import numpy as np
import pytest

from real.problems import Problem
from real.problems.problem import Turn
from real.tiny import arithmetic, build_tokenizer, judging
from real.tiny.arithmetic import PROMPT_TOKENS, RESPONSE_TOKENS, EvaluationRule
from real.tiny.tasks import EOS_ID, PAD_ID, encode, is_held_out
from real.vote.further import TinyWording, Wording

PROMPT = "3+0-1*6+0="
ATTEMPT = arithmetic.solution(PROMPT[:-1])
WORK = arithmetic.steps(PROMPT[:-1], EvaluationRule.LEFT_TO_RIGHT)


def test_three_turns_in_the_tasks_own_tokens():
    asked = judging.question(PROMPT, ATTEMPT)
    assert asked == r"3+0-6+0>3-6+0>7+0>\boxed{7}=3+0-1*6+0="
    said = judging.verification(WORK, right=False)
    assert said == r"3-1*6+0>2*6+0>2+0>2\boxed{-}"
    assert judging.request(PROMPT, ATTEMPT, said) == f"{asked}{said}={PROMPT}"
    assert len(encode(asked)) == PROMPT_TOKENS + RESPONSE_TOKENS
    assert len(encode(said)) + 1 == judging.VERIFICATION_TOKENS
    longest = len(encode(judging.request(PROMPT, ATTEMPT, said))) + RESPONSE_TOKENS
    assert longest == 87 <= judging.POSITIONS


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (judging.verification(WORK, right=True), 1),
        (judging.verification(WORK, right=False), 0),
        (ATTEMPT, -1),
        (r"2\boxed{*}", -1),
        (r"2\boxed{}", -1),
        ("2+", -1),
        ("", -1),
    ],
)
def test_verdicts_are_read_from_the_box(text, verdict):
    assert judging.read_verdict(text) == TinyWording().verdict(text) == verdict


def test_wordings_ask_for_the_same_three_turns():
    problem = Problem("a", PROMPT, "7", (Turn("system", "Be brief."),))
    tiny, words = TinyWording(), Wording()
    assert tiny.question(problem, ATTEMPT).prompt == judging.question(PROMPT, ATTEMPT)
    assert tiny.request(problem, ATTEMPT, "x").prompt == judging.request(PROMPT, ATTEMPT, "x")
    asked, again = words.question(problem, ATTEMPT), words.request(problem, ATTEMPT, "No.")
    assert [turn.role for turn in again.before] == ["system", "user", "assistant"]
    assert [turn.content for turn in again.before[1:]] == [asked.prompt, "No."]
    assert "\\boxed{}" in again.prompt
    for made in (tiny.question(problem, ATTEMPT), tiny.request(problem, ATTEMPT, "x"), again):
        assert made.answer is None and made.id.startswith("a/")


def test_conversations_plant_the_shares():
    n = 3000
    read, targets = (t.numpy() for t in judging.conversations(n, slip_rate=0.0, seed=0))
    assert read.shape == targets.shape == (n, 86)
    assert (targets[:, : PROMPT_TOKENS + RESPONSE_TOKENS - 1] == judging.UNSCORED).all()
    expected_sum = spread = n_accepted = 0.0
    for row, target in zip(read.tolist(), targets.tolist(), strict=True):
        attempt, expression, own, accepted = first_turns(row)
        assert not is_held_out(expression)
        answers = {rule: arithmetic.evaluate(expression, rule) for rule in EvaluationRule}
        assert accepted == (attempt == own)
        # A judge's answer is that of a rule drawn by its share, whatever the attempt was.
        parts = arithmetic.shares(expression)
        chance = sum(part for rule, part in parts.items() if answers[rule] == attempt)
        expected_sum += chance
        spread += chance * (1 - chance)
        n_accepted += accepted
        check_second_turn(row, target, attempt, accepted, set(answers.values()))
    assert abs(n_accepted - expected_sum) < 4 * np.sqrt(spread)


def test_conversations_follow_their_seed():
    first, again, other = (judging.conversations(20, 0.01, seed)[0] for seed in (3, 3, 4))
    assert (first == again).all() and (first != other).any()


def decode(ids: list[int]) -> str:
    return str(build_tokenizer().decode(ids, skip_special_tokens=True))


def first_turns(row: list[int]) -> tuple[str, str, str, bool]:
    """Attempted answer, problem, the judge's answer, whether it accepts."""
    attempt, problem, verification = decode(row[: judging.FIRST_TURNS]).split("=")
    own, sign = verification.removesuffix("}").split(r"\boxed{")
    assert sign in judging.VERDICTS
    return attempt[-2], problem, own[-1], sign == "+"


def check_second_turn(
    row: list[int], target: list[int], attempt: str, accepted: bool, answers: set[str]
) -> None:
    assert target[judging.FIRST_TURNS - 1] == EOS_ID
    assert target[judging.SIGN] == row[judging.SIGN + 1] == encode("+" if accepted else "-")[0]
    rest, scored = row[judging.FIRST_TURNS :], target[judging.FIRST_TURNS :]
    if accepted:
        assert set(rest) == {PAD_ID} and set(scored) == {judging.UNSCORED}
        return
    retry = decode(rest)[1 + PROMPT_TOKENS :]
    assert scored[-RESPONSE_TOKENS:] == [*encode(retry), EOS_ID]
    assert retry[-2] in answers - {attempt}
