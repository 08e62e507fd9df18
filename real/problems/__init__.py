"""Problem sets: lists of prompts, each with an id and perhaps a reference answer."""

from real.problems.load import NAMED, load_problems
from real.problems.problem import Problem, ProblemSet, Turn, fingerprint

__all__ = ["NAMED", "Problem", "ProblemSet", "Turn", "fingerprint", "load_problems"]
