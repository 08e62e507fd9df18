"""The embedded tiny tasks: arithmetic with planted rivals, Collatz steps, and ten closed answers.

Their checkpoints are local Hugging Face folders; `VERIFYING` was also taught to judge responses.
"""

from collections.abc import Mapping
from pathlib import Path

from real.model.folder import model_folder
from real.problems.load import read_problems
from real.problems.problem import Problem, ProblemSet
from real.settings.groups import ProblemSettings
from real.tiny.arithmetic import ARITHMETIC
from real.tiny.tasks import CLOSED, COLLATZ, PROBLEM_SEED, Task, build_tokenizer, closed

TASKS: Mapping[str, Task] = {"arithmetic": ARITHMETIC, "collatz": COLLATZ, "closed": CLOSED}

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
    "model_of",
    "problems",
    "problems_of",
]


def model_of(config: ProblemSettings) -> Path:
    """The folder of the model that settings name, or of the task's model before training."""
    if config.own_model is not None:
        return model_folder(config.own_model)
    return VERIFYING if config.tiny_verifies else TASKS[config.tiny_task].checkpoint


def problems_of(
    config: ProblemSettings, held_out: bool = False, with_answers: bool = False
) -> ProblemSet:
    """The task's problem set, or that of the source that settings name; see `read_problems`."""
    if not config.is_tiny:
        return read_problems(config, held_out, with_answers)
    is_closed = config.tiny_task == "closed"
    task = closed(config.tiny_wrong, config.tiny_lead) if is_closed else TASKS[config.tiny_task]
    n_problems = config.n_problems or 64
    made = task.problems(n_problems + config.n_held_out, config.problem_seed)
    name = "tiny" if config.tiny_task == "arithmetic" else f"tiny-{config.tiny_task}"
    name += "-verifying" if config.tiny_verifies else ""
    name += f"-{config.problem_seed}" if config.problem_seed else ""
    return ProblemSet(name, made[n_problems:] if held_out else made[:n_problems])
