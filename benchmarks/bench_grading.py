r"""Cost of the equality of answers: 512 ordinary MATH answers, CPU seconds of one core.

python benchmarks/bench_grading.py [ROUNDS]

8 problems x 64 responses a batch, each group with a right answer in several writings and some wrong
ones. "First sight": the process that runs math-verify is warm, but no answer was seen before; every
round asks about other numbers. "Again": the same batch once more, as in later epochs.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import psutil

from real.answers import AnswerIds, Equality

N_VOTES = 64
LIMIT = 1.0
"""Seconds that a batch may take."""

# Reference, other writings of it, wrong answers; N is another number in every round.
PROBLEMS = (
    (r"\left( N, \frac{\pi}{2} \right)", (r"(N,\pi/2)", r"(N, \dfrac{\pi}{2})", r"(N,0.5\pi)"),
     (r"(N,\pi)", r"(\frac{\pi}{2},N)", r"(N,-\frac{\pi}{2})")),
    (r"\frac{N}{3}", (r"\dfrac{N}{3}", "N/3", r"\frac{2\cdot N}{6}"),
     (r"\frac{3}{N}", "N", r"-\frac{N}{3}", r"\frac{N}{6}")),
    ("N", (r"N.0", r"\text{N}", "x=N", r"N^\circ", r"\boxed{N}"), ("1N", "2N", "-N", "3N", "N1")),
    (r"N\sqrt{13}", (r"\sqrt{13}\cdot N", r"N \sqrt{13}", r"\frac{26N}{2\sqrt{13}}"),
     (r"\sqrt{13}", r"-N\sqrt{13}", r"N\sqrt{26}", r"\frac{N\sqrt{13}}{2}")),
    (r"Nk+2", (r"2+Nk", r"N(k+\frac{2}{N})", r"Nk + 2"), ("Nk", "Nk-2", "2k+N", r"\frac{Nk}{2}")),
    (r"(0,9) \cup (9,N)", (r"(9,N) \cup (0,9)", r"\left(0,9\right)\cup\left(9,N\right)"),
     ("(0,N)", r"[0,9)\cup(9,N]", "(9,N)")),
    (r"x^5 - Nx^4 + x^3 - 1", (r"x^3-Nx^4+x^5-1", r"x^4(x-N)+x^3-1"),
     (r"x^5+Nx^4+x^3-1", r"x^5-Nx^4+x^3", r"x^5 - x^4 + N")),
    (r"\begin{pmatrix} -1/3 \\ N \end{pmatrix}",
     (r"\begin{bmatrix}-\frac13\\N\end{bmatrix}", r"\begin{pmatrix}-\frac{1}{3}\\N\\\end{pmatrix}"),
     (r"\begin{pmatrix} 1/3 \\ N \end{pmatrix}", r"\begin{pmatrix} N \\ -1/3 \end{pmatrix}")),
)  # fmt: skip


def batch(number: int, rng: np.random.Generator) -> tuple[list[str], list[list[str]]]:
    """References of the 8 problems and 64 responses to each, 60 % of them right."""
    truths, groups = [], []
    for reference, writings, wrong in PROBLEMS:
        right = (reference, *writings)
        votes = [
            str(rng.choice(right if rng.random() < 0.6 else wrong)).replace("N", str(number))
            for _ in range(N_VOTES)
        ]
        truths.append(reference.replace("N", str(number)))
        groups.append([rf"First, we note ... {'so ' * 200} \boxed{{{vote}}}." for vote in votes])
    return truths, groups


def cpu_seconds(equality: Equality) -> float:
    """Of this process and of those that run math-verify."""
    mine = time.process_time()
    if equality.checker.pid is None:
        return mine
    root = psutil.Process(equality.checker.pid)
    times = [process.cpu_times() for process in (root, *root.children(recursive=True))]
    return mine + sum(spent.user + spent.system for spent in times)


def graded(equality: Equality, answer_ids: AnswerIds, groups: list[list[str]]) -> tuple[float, int]:
    """CPU seconds for a batch, and how many problems have their truth as the majority answer."""
    start = cpu_seconds(equality)
    ids = [answer_ids.ids(problem, group) for problem, group in enumerate(groups)]
    right = sum(
        int(np.bincount(ids_V[ids_V >= 0]).argmax() == answer_ids.truth_id(problem))
        for problem, ids_V in enumerate(ids)
    )
    return cpu_seconds(equality) - start, right


def main(rounds: int) -> int:
    rng, equality = np.random.default_rng(0), Equality()
    start = time.perf_counter()
    _, groups = batch(11, rng)
    AnswerIds([None] * len(groups), equality).ids(0, groups[0])
    print(f"start and warm-up of the process: {time.perf_counter() - start:.1f} s wall")
    first, again = [], []
    for number in range(17, 17 + rounds):
        truths, groups = batch(number, rng)
        answer_ids = AnswerIds(truths, equality)
        seconds, right = graded(equality, answer_ids, groups)
        first.append(seconds)
        again.append(graded(equality, answer_ids, groups)[0])
        if right < len(groups):
            print(f"round {number}: the truth has the majority in {right} of {len(groups)}")
    for name, found in (("first sight", first), ("again", again)):
        print(f"{name}: median {np.median(found):.3f} s, worst {max(found):.3f} s per 512 answers")
    print(f"given up: {equality.n_given_up}")
    equality.close()
    ok = np.median(first) < LIMIT and equality.n_given_up == 0
    print(f"{'within' if ok else 'NOT within'} {LIMIT:.0f} s of one core")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 8))
