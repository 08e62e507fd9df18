r"""The parts that the tiny tasks share, and two of the tasks: Collatz steps and closed answers.

They are described in docs/your-model.md. Errors on Collatz steps are the checkpoint's own, mostly
carries that it loses. Of a closed answer only the digit in the box is free: what training loses, it
loses to an answer that the start gave too.
"""

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from guard_core.config import floor_share
from lab.base.errors import UserError
from real.problems.problem import Problem

_FOLDER = Path(__file__).parent

PAD, EOS, UNKNOWN, BOX = "<pad>", "<eos>", "<unk>", "\\boxed{"
VOCABULARY_SIZE = 32

_NAMED = (PAD, EOS, UNKNOWN, *"0123456789+-*=>", BOX, "}")
TOKENS = (*_NAMED, *(f"<spare_{i}>" for i in range(VOCABULARY_SIZE - len(_NAMED))))
"""Token texts in id order; the spare ones only fill the vocabulary up to 32."""
IDS = {token: i for i, token in enumerate(TOKENS)}
PAD_ID, EOS_ID = IDS[PAD], IDS[EOS]


def build_tokenizer() -> PreTrainedTokenizerFast:
    r"""A fast tokenizer: one character one token, except that ``\boxed{`` is one token.

    It adds no token of its own on encoding, drops characters that the tasks do not have, and
    decodes without extra spaces.
    """
    # Transformers reads the vocabulary of any folder with a Qwen2 model back as byte-level BPE,
    # whatever class and pre-tokenizer were saved. So this is a byte-level BPE without merges.
    backend = Tokenizer(BPE(vocab=IDS, merges=[]))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = ByteLevelDecoder()
    backend.add_tokens([AddedToken(BOX, normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=64,
    )


def encode(text: str) -> list[int]:
    """Token ids of prompt or response text, without the end token; KeyError for other text."""
    return [IDS[piece] for piece in re.findall(r"\\boxed\{|.", text, flags=re.DOTALL)]


def response_text(trace: Sequence[str]) -> str:
    """The response that shows ``trace``: scratch steps, then the boxed answer, no end token."""
    return f"{''.join(f'{step}>' for step in trace[:-1])}{BOX}{trace[-1]}}}"


PROBLEM_SEED = 0

_HELD_OUT = 8
"""One question in this many is kept from pretraining; problem sets are drawn from those only."""
_MOST = 0.9
"""Share of a part's questions that can be asked for: the last ones would take long to find."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Questions whose answers a program knows. Their texts and responses have fixed lengths."""

    prefix: str
    checkpoint: Path
    prompt_tokens: int
    """Tokens of a question and ``=``."""
    response_tokens: int
    """Tokens of a well-formed response, with the end token."""
    n_questions: int
    draw: Callable[[np.random.Generator], str]
    """Return one question, uniform over all."""
    answer: Callable[[str], str]
    example: Callable[[str, float, np.random.Generator], str]
    """Return a response to learn from, given a question and the chance of a slip in each step."""
    reworded: Callable[[str], str | None] = lambda _: None
    """Return other words of a prompt; None where there are none."""
    stands: Callable[[int, str], bool] = lambda _place, _question: True
    """Return whether a question may stand at a place of a problem set."""

    def sample_distinct(self, n: int, rng: np.random.Generator, held_out: bool) -> list[str]:
        """Return ``n`` distinct questions, all held out or none; for fewer, the first of them."""
        part = self.n_questions * (1 if held_out else _HELD_OUT - 1) / _HELD_OUT
        if n > _MOST * part:
            raise UserError(
                f"{n} different questions: the task {self.prefix} has {_MOST * part:.0f} at most; "
                "ask for fewer"
            )
        distinct: dict[str, None] = {}
        while len(distinct) < n:
            question = self.draw(rng)
            stands = not held_out or self.stands(len(distinct), question)
            if stands and is_held_out(question) == held_out:
                distinct.setdefault(question)
        return list(distinct)

    def problems(self, n: int = 64, seed: int = PROBLEM_SEED) -> list[Problem]:
        """Return ``n`` distinct held-out problems, uniformly drawn; for fewer, the first ones."""
        questions = self.sample_distinct(n, np.random.default_rng(seed), held_out=True)
        return [
            Problem(f"{self.prefix}-{seed}-{i:03d}", f"{question}=", self.answer(question))
            for i, question in enumerate(questions)
        ]


def is_held_out(question: str) -> bool:
    """Return whether pretraining never uses a question: one in eight, by a checksum of its text."""
    return zlib.crc32(question.encode()) % _HELD_OUT == 0


_COLLATZ_DIGITS, _COLLATZ_STEPS = 5, 3
_MODULUS = 10**_COLLATZ_DIGITS


def collatz_steps(number: str) -> list[str]:
    """The numbers after each Collatz step modulo 100000, the answer last; all have five digits."""
    value, trace = int(number), list[str]()
    for _ in range(_COLLATZ_STEPS):
        value = (3 * value + 1) % _MODULUS if value % 2 else value // 2
        trace.append(f"{value:05d}")
    return trace


COLLATZ = Task(
    prefix="collatz",
    checkpoint=_FOLDER / "collatz_checkpoint",
    prompt_tokens=_COLLATZ_DIGITS + 1,
    response_tokens=_COLLATZ_STEPS * (_COLLATZ_DIGITS + 1) + 2,
    n_questions=_MODULUS,
    draw=lambda rng: f"{rng.integers(_MODULUS):05d}",
    answer=lambda number: collatz_steps(number)[-1],
    example=lambda number, _slip_rate, _rng: response_text(collatz_steps(number)),
)

_ROW = 12
TEMPERATURE = 0.6
"""Sampling temperature at which the shares of the votes hold, and the accuracy is measured."""
_REST = 0.08
"""Share of the votes for the eight digits that are not in the question."""
_RIGHT = 40
"""Lead of the answer in problems whose majority is right."""
_IN_SETS = 6600
"""Questions that the limit on problem sets counts: those of the rarest lead decide it."""


def lead(question: str) -> int:
    """Percent of the votes by which the answer leads the rival, at most 80, as pretraining has it.

    The shipped model's leads have a standard deviation of about 18 between questions.
    """
    return min(max(10 * (2 * question.count(question[-1]) - _ROW), -80), 80)


def vote_shares(question: str) -> np.ndarray:
    """(10,) shares of the digits among the votes for a closed question before training."""
    shares_A = np.full(10, _REST / 8)
    for digit, ahead in ((question[0], -lead(question)), (question[-1], lead(question))):
        shares_A[int(digit)] = (1 - _REST + ahead / 100) / 2
    return shares_A


def _draw_row(rng: np.random.Generator) -> str:
    pair = rng.choice(10, 2, replace=False)
    return "".join(map(str, pair[[0, *rng.integers(2, size=_ROW - 2), 1]]))


def _closed_example(question: str, _slip_rate: float, rng: np.random.Generator) -> str:
    weights_A = vote_shares(question) ** TEMPERATURE
    return f"{BOX}{rng.choice(10, p=weights_A / weights_A.sum())}}}"


CLOSED = Task(
    prefix="closed",
    checkpoint=_FOLDER / "closed_checkpoint",
    prompt_tokens=_ROW + 1,
    response_tokens=4,
    n_questions=90 * 2 ** (_ROW - 2),
    draw=_draw_row,
    answer=lambda question: question[-1],
    example=_closed_example,
)


def closed(wrong: float, rival_lead: int) -> Task:
    """The task with a share of problems whose wrong majority leads by so many percent of votes."""

    def stands(place: int, question: str) -> bool:
        is_wrong = floor_share(wrong, place + 1) > floor_share(wrong, place)
        return lead(question) == (-rival_lead if is_wrong else _RIGHT)

    return replace(CLOSED, n_questions=_IN_SETS, stands=stands)
