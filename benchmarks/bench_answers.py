r"""Equal answers and near misses, as exact text, math-verify and this project judge them.

python benchmarks/bench_answers.py [--kinds [KIND ...]]

`answer_pairs.tsv` holds two answers a line, their kind, and whether they are equal. A merge is a
pair of different answers that a judge calls equal, a split the reverse. `\u200b` in the file stands
for that character; pairs of the kind `boxes` are whole responses, the others are put into a box.

The exit status is 1 if this project merges a pair, or splits more than 2 % of the equal ones.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from operator import eq
from pathlib import Path
from typing import Any, NamedTuple

import math_verify

from lab.base.columns import TextTable
from real.answers import UNPARSEABLE, Equality, classes

FILE = Path(__file__).with_name("answer_pairs.tsv")
MAX_SPLIT = 0.02
EQUALITY = Equality()


class Pair(NamedTuple):
    """Two responses, and whether their answers are equal."""

    kind: str
    equal: bool
    one: str
    other: str


def read_pairs() -> list[Pair]:
    """The pairs of `FILE`, in its order."""
    pairs = []
    for line in FILE.read_text(encoding="utf-8").splitlines()[1:]:
        kind, equal, *answers = line.split("\t")
        texts = [re.sub(r"\\u([0-9a-f]{4})", lambda m: chr(int(m[1], 16)), a) for a in answers]
        one, other = texts if kind == "boxes" else map(box, texts)
        pairs.append(Pair(kind, {"yes": True, "no": False}[equal], one, other))
    return pairs


def box(answer: str) -> str:
    return rf"\boxed{{{answer}}}"


@cache
def parsed(response: str) -> list[Any]:
    return math_verify.parse(response, parsing_timeout=None)  # seconds would depend on the load


def same_by_math_verify(reference: str, response: str) -> bool:
    return math_verify.verify(parsed(reference), parsed(response), timeout_seconds=None)


def same_here(one: str, other: str) -> bool:
    first, second = classes((one, other), None, EQUALITY)[0]
    return first == second != UNPARSEABLE


Judge = Callable[[str, str], bool]
JUDGES: dict[str, Judge] = {
    "exact text": eq,
    "math-verify": same_by_math_verify,
    "this project": same_here,
}


def wrong(judge: Judge, pairs: Sequence[Pair]) -> list[Pair]:
    """Pairs that the judge merges or splits; equal is what it calls so in either order."""
    sides = ((pair, pair[2:]) for pair in pairs)
    return [p for p, both in sides if (judge(*both) or judge(*both[::-1])) != p.equal]


def counts(found: Sequence[Pair]) -> str:
    splits = sum(pair.equal for pair in found)
    return f"{len(found) - splits} / {splits}"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kinds", nargs="*", help="print wrong pairs, of these kinds or of all")
    args = parser.parse_args()
    pairs = read_pairs()
    found = {name: wrong(judge, pairs) for name, judge in JUDGES.items()}
    rows = []
    for kind in dict.fromkeys(pair.kind for pair in pairs):
        cells = (counts([pair for pair in some if pair.kind == kind]) for some in found.values())
        rows.append([f"{kind} ({sum(pair.kind == kind for pair in pairs)})", *cells])
    n_equal = sum(pair.equal for pair in pairs)
    total = f"all: {len(pairs) - n_equal} different / {n_equal} equal"
    rows.append([total, *map(counts, found.values())])
    print(*TextTable(["merges / splits", *JUDGES], rows).markdown(), sep="\n")
    ours = found["this project"]
    if args.kinds is not None:
        for pair in ours:
            if not args.kinds or pair.kind in args.kinds:
                print(f"{pair.kind}: {'split' if pair.equal else 'merged'}: {pair[2:]}")
    n_split = sum(pair.equal for pair in ours)
    return int(n_split < len(ours) or n_split > MAX_SPLIT * n_equal)


if __name__ == "__main__":
    sys.exit(main())
