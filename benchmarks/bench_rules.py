"""What each rule costs beside plain TTRL: `python benchmarks/bench_rules.py --world sim`.

Simulator: 500 problems, V = 64, K = 32, 10 answers, batch 8, attractor policy, 64 replicates side
by side; CPU time per visit without the trace, the best of a few epochs, in turn with all others.
"""

from __future__ import annotations

import argparse

from guard_core.rules import RULES
from lab.arms import arm
from sim import SimConfig
from sim.costs import cpu_per_visit
from sim.run import of_arm

BUDGET = 1.30


def rows(replicates: int, problems: int, rounds: int) -> list[tuple[str, float, float]]:
    """Name, nanoseconds per visit, ratio to TTRL, cheapest first."""
    base = SimConfig(replicates=replicates, n_problems=problems)
    times: dict[str, float] = {}
    # A few at a time beside TTRL: every run holds memory, and TTRL's time is that of the moment.
    names = [name for name in RULES if name != "ttrl"]
    ratios: dict[str, float] = {"ttrl": 1.0}
    for start in range(0, len(names), 7):
        group = ["ttrl", *names[start : start + 7]]
        found = cpu_per_visit({name: of_arm(base, arm(name)) for name in group}, rounds)
        times |= found
        ratios |= {name: time / found["ttrl"] for name, time in found.items()}
    return sorted(((n, times[n], ratios[n]) for n in times), key=lambda row: row[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", choices=["sim"], default="sim")
    parser.add_argument("--replicates", type=int, default=64)
    parser.add_argument("--problems", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{'rule':<18}{'ns/visit':>10}{'ratio':>8}")
    for name, time, ratio in rows(options.replicates, options.problems, options.rounds):
        over = "" if ratio <= BUDGET else "  over budget"
        print(f"{name:<18}{time:>10.0f}{ratio:>8.2f}{over}")


if __name__ == "__main__":
    main()
