r"""Equal answers and near misses, as exact text, math-verify and this project judge them.

python benchmarks/bench_answers.py [--kinds [KIND ...]]

`answer_pairs.tsv` holds two answers a line, their kind, and whether they are equal. A merge is a
pair of different answers that a judge calls equal, a split the reverse. `\u200b` in the file stands
for that character; pairs of the kind `boxes` are whole responses, the others are put into a box.

The exit status is 1 if this project merges a pair, or splits more than 2 % of the equal ones.
math-verify takes most of the time, about 100 CPU seconds.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from operator import eq
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import math_verify

from lab.base.columns import TextTable
from real.answers import UNPARSEABLE, Equality, classes

FILE = Path(__file__).with_name("answer_pairs.tsv")
MAX_SPLIT, SIZE, ROUNDS = 0.02, 64, 3
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
    return [
        pair
        for pair in pairs
        if (judge(pair.one, pair.other) or judge(pair.other, pair.one)) != pair.equal
    ]


def counts(found: Sequence[Pair]) -> str:
    splits = sum(pair.equal for pair in found)
    return f"{len(found) - splits} / {splits}"


def groups(start: int) -> dict[str, list[str]]:
    """Groups of 64 responses to time; no response of one start is one of another."""
    numbers = range(start, start + SIZE)
    typical = (r"{n}", r"\frac{{{n}}}{{7}}", r"({n},\frac{{{n}}}{{3}}]", r"-{n}.5")
    return {
        "integers, fractions, intervals": [box(typical[n % 4].format(n=n)) for n in numbers],
        "different formulas": [box(rf"{n}x^2+\sqrt{{{n}}}") for n in numbers],
        "equal formulas": [box(rf"{n}(x+1)^2-{n - 1}(x^2+2x+1)") for n in numbers],
    }


def group_by(judge: Judge, responses: Sequence[str]) -> None:
    """Compare every response with the first one of each class, as votes are counted."""
    if judge is same_here:
        classes(responses, None, Equality())
        return
    firsts: list[str] = []
    for response in responses:
        if not any(judge(first, response) for first in firsts):
            firsts.append(response)


def cpu_ms(judge: Judge, name: str) -> float:
    """CPU milliseconds of a group; the least of up to three."""
    taken: list[float] = []
    while len(taken) < ROUNDS and sum(taken) < 1_000:
        responses = groups(2 + SIZE * len(taken))[name]  # other texts: answers are cached
        start = process_time()
        group_by(judge, responses)
        taken.append(1e3 * (process_time() - start))
    return min(taken)


def main() -> int:
    """Print both tables."""
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
    taken = [[name, *(f"{cpu_ms(j, name):,.1f}" for j in JUDGES.values())] for name in groups(2)]
    for title, cells in (("merges / splits", rows), (f"CPU ms of {SIZE} answers", taken)):
        print("", *TextTable([title, *JUDGES], cells).markdown(), sep="\n")
    ours = found["this project"]
    if args.kinds is not None:
        for pair in ours:
            if not args.kinds or pair.kind in args.kinds:
                print(f"{pair.kind}: {'split' if pair.equal else 'merged'}: {pair[2:]}")
    n_split = sum(pair.equal for pair in ours)
    return int(n_split < len(ours) or n_split > MAX_SPLIT * n_equal)


if __name__ == "__main__":
    sys.exit(main())
