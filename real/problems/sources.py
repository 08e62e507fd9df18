"""Sources of problems, as far as they can be checked without torch."""

from __future__ import annotations

from dataclasses import replace

from lab.errors import UserError
from real.problems import Problem, ProblemSet, load_problems
from real.settings.config import TrainConfig


def read_problems(config: TrainConfig) -> ProblemSet:
    """Return the problems that the settings name, before a check of their length.

    Raises:
        UserError: the source is wrong, has no such number of problems, or lacks needed answers.
    """
    if config.problems is None:
        # Imported here: the package imports transformers, which reading a file does not need.
        from real.tiny import problems as tiny_problems

        made = tiny_problems(config.n_problems or 64, config.problem_seed)
        name = "tiny-verifying" if config.tiny_verifies else "tiny"
        name += f"-{config.problem_seed}" if config.problem_seed else ""
        return ProblemSet(name, [Problem(p.id, p.prompt, p.answer) for p in made])
    problems = load_problems(config.problems, config.fields, config.data_dir, config.hub)
    n_problems = len(problems) if config.n_problems is None else config.n_problems
    if n_problems > len(problems):
        raise UserError(
            f"n_problems = {n_problems}: {config.problems} holds {len(problems)}; ask for fewer"
        )
    chosen = replace(problems, problems=problems.problems[:n_problems])
    unknown = next((p.id for p in chosen if p.answer is None), None)
    if config.labels == "truth" and unknown is not None:
        raise UserError(
            f"labels = 'truth': problem {unknown!r} of {config.problems} has no answer; "
            "add it or train on votes"
        )
    return chosen
