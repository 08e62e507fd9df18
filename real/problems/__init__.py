"""Problem sets: lists of prompts, each with an id and perhaps a reference answer."""

from real.problems.fields import FieldMap
from real.problems.load import load_problems
from real.problems.named import NAMED
from real.problems.problem import Problem, ProblemSet, Turn, fingerprint

__all__ = ["NAMED", "FieldMap", "Problem", "ProblemSet", "Turn", "fingerprint", "load_problems"]
