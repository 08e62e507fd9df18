"""Where the time of a training run goes: seconds per phase on the embedded tiny task.

python benchmarks/bench_real.py [EPOCHS]
"""

from __future__ import annotations

import resource
import sys
import time

from lab.arms import arm
from real import TrainConfig, train

PHASES = ("rollout", "grade", "guard", "update")


def main(epochs: int) -> None:
    for name in ("ttrl", "guard"):
        wall, cpu = time.perf_counter(), time.process_time()
        trace = train(TrainConfig(guard=arm(name).guard, epochs=epochs), progress=False)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        steps = trace.steps
        spent = {phase: float(steps[f"seconds_{phase}"].sum()) for phase in PHASES}
        total = sum(spent.values())
        print(f"{name}: {wall:.1f} s wall, {cpu:.1f} s of one core, {epochs} epochs of 64 problems")
        for phase, seconds in spent.items():
            print(f"  {phase:8s} {seconds:6.2f} s  {seconds / total:6.1%}")
        print(
            f"  tokens sampled per second {steps['tokens_sampled'].sum() / spent['rollout']:,.0f}"
        )
        print(f"  tokens trained per second {steps['tokens'].sum() / spent['update']:,.0f}")
        skipped = steps["n_skipped"].sum() / steps["n_problems"].sum()
        print(f"  problems skipped          {skipped:.1%}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory {peak:.0f} MiB")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
