"""The embedded tiny task: last-digit arithmetic in which some of the wrong rivals are planted.

A generator (`task`), its 32 tokens (`vocabulary`), the supervised recipe that makes the starting
checkpoint (`pretrain`), and that checkpoint itself (`CHECKPOINT`, a local Hugging Face folder).
`VERIFYING` is one that was also taught to judge responses (`judging`, `verifying`).
"""

from pathlib import Path

from real.tiny.task import PROBLEM_SEED, PROMPT_TOKENS, RESPONSE_TOKENS, Problem, problems
from real.tiny.vocabulary import build_tokenizer

CHECKPOINT = Path(__file__).parent / "checkpoint"
VERIFYING = Path(__file__).parent / "verifying_checkpoint"

__all__ = [
    "CHECKPOINT",
    "PROBLEM_SEED",
    "PROMPT_TOKENS",
    "RESPONSE_TOKENS",
    "VERIFYING",
    "Problem",
    "build_tokenizer",
    "problems",
    "starting_checkpoint",
]


def starting_checkpoint(verifies: bool) -> Path:
    """The folder of the model before training; of the one that was taught to judge, if asked."""
    return VERIFYING if verifies else CHECKPOINT
