"""Problem sets: lists of prompts, each with an id and perhaps a reference answer."""

from real.problems.load import NAMED, load_problems
from real.problems.problem import Problem, ProblemSet, Turn, fingerprint
from real.problems.rows import FieldMap

__all__ = ["NAMED", "FieldMap", "Problem", "ProblemSet", "Turn", "fingerprint", "load_problems"]
