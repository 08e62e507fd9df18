"""The embedded tiny tasks: arithmetic with planted rivals, Collatz steps, and ten closed answers.

Generators (`arithmetic`, `tasks`), the supervised recipes that make the starting checkpoints
(`pretrain`), and those checkpoints themselves (local Hugging Face folders). `VERIFYING` was also
taught to judge responses of the arithmetic (`judging`).
"""

from collections.abc import Mapping
from pathlib import Path

from real.problems.problem import Problem
from real.tiny.arithmetic import ARITHMETIC
from real.tiny.tasks import CLOSED, COLLATZ, PROBLEM_SEED, Task, build_tokenizer

TASKS: Mapping[str, Task] = {"arithmetic": ARITHMETIC, "collatz": COLLATZ, "closed": CLOSED}
"""By the names that the setting `tiny_task` has."""

problems = ARITHMETIC.problems
CHECKPOINT = ARITHMETIC.checkpoint
VERIFYING = Path(__file__).parent / "verifying_checkpoint"

__all__ = [
    "ARITHMETIC",
    "CHECKPOINT",
    "CLOSED",
    "COLLATZ",
    "PROBLEM_SEED",
    "TASKS",
    "VERIFYING",
    "Problem",
    "Task",
    "build_tokenizer",
    "problems",
    "starting_checkpoint",
]


def starting_checkpoint(task: str, verifies: bool = False) -> Path:
    """The folder of a task's model before training; of the one that judges, if asked.

    Args:
        verifies: only for the arithmetic.
    """
    return VERIFYING if verifies else TASKS[task].checkpoint
