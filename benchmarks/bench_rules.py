"""Cost of each rule relative to plain TTRL: `python benchmarks/bench_rules.py --world sim|real`.

sim: CPU time per visit, see `rules_in_sim`. A rule beyond 3 times plain TTRL's visit may
have compiled rewards (`sim.rules`); SCOPE takes longer even so.

real: what a rule adds to a step of the trainer, see `rules_in_real`; at most 1 % of plain TTRL's
step, without another generation pass. Median and 95 % interval over steps, one CPU thread. The
tiny task's step is far smaller than any real one, and what a batch costs whatever its model weighs
most there: `--layers 4 --width 256 --tokens 64` shows what is left of it in a larger model (ten
seconds a step, so choose rules with `--rules`), and the last lines what long texts cost. `us/token`
is added CPU per token of the votes. `trained` and `update` are tokens and CPU of the update as a
multiple of plain TTRL's: the responses that a rule's rewards train are no cost of the rule.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import long_texts
import rules_in_real
import rules_in_sim
from medians import Middle, middle
from rule_cost import BUDGET, RuleCost

from guard_core import ConfigError
from lab.errors import UserError

_COLUMNS = (
    f"{'rule':<20}{'ms':>8}  {'95 %':<15}{'% of step':>9}  {'95 %':<13}{'% wall':>7}"
    f"{'us/token':>10}{'trained':>9}{'update':>8}"
)
_SHOWN = 5e-5
"""Seconds; smaller parts are not listed."""


def of_sim(options: argparse.Namespace) -> None:
    """Print the table of the simulator."""
    print(f"{'rule':<18}{'ns/visit':>10}{'ratio':>8}")
    table = rules_in_sim.rows(options.replicates, options.problems, options.rounds)
    for name, time, ratio in table:
        over = "" if ratio <= rules_in_sim.BUDGET else "  over budget"
        print(f"{name:<18}{time:>10.0f}{ratio:>8.2f}{over}")


def of_real(options: argparse.Namespace) -> None:
    """Print the tables of the trainer."""
    size = rules_in_real.Size(options.layers, options.width, options.tokens)
    print(
        f"model of {size.layers} layers x {size.width}; {size.batch_size} problems x "
        f"{size.n_votes} responses of {size.tokens} tokens, {size.n_samples} trained; "
        f"{options.steps} steps"
    )
    costs = table_of(rules_in_real.rule_costs(options.rules, size, options.steps))
    print("\nwhere it goes, ms of CPU:")
    for cost in costs:
        parts = sorted(cost.parts.items(), key=lambda part: -part[1])
        shown = ", ".join(f"{name} {1e3 * time:.2f}" for name, time in parts if time >= _SHOWN)
        print(f"{cost.name:<20}{shown}")
    if any("stats" in cost.parts for cost in costs):
        pairs = rules_in_real.sampling_pairs(size, options.pairs)
        off = middle([without for without, _ in pairs]).times(1e3)
        gap = middle([measured - without for without, measured in pairs]).times(1e3)
        print(
            f"\nsampling a batch's votes takes {off.median:.1f} ms, with stats in {len(pairs)} "
            f"pairs {gap.median:+.2f} ms {interval(gap, 2)}"
        )
    of_long_texts()


def of_long_texts() -> None:
    """Print what is fixed per token, and how fast a trainer may be for the budget."""
    print("\nresponses of 1,000 tokens, us of CPU per token of the votes; 1 % of a step up to")
    for name, seconds in long_texts.seconds_a_token().items():
        rate = BUDGET / seconds
        print(f"{name:<20}{1e6 * seconds:.2f}  {rate:>9,.0f} of them a second in the whole step")


def table_of(found: Iterable[RuleCost]) -> list[RuleCost]:
    """Print a line for every rule as it is measured."""
    costs: list[RuleCost] = []
    for cost in found:
        if not costs:
            print(_COLUMNS)
        costs.append(cost)
        added, cpu = cost.added.times(1e3), cost.cpu_share.times(100)
        print(
            f"{cost.name:<20}{added.median:>8.2f}  {interval(added, 2):<15}{cpu.median:>9.2f}  "
            f"{interval(cpu, 2):<13}{100 * cost.wall_share.median:>7.2f}"
            f"{1e6 * cost.added_a_token:>10.3f}{cost.trained_ratio:>9.2f}{cost.update_ratio:>8.2f}"
            f"  {remark(cost)}".rstrip(),
            flush=True,
        )
    steps = [step.whole.cpu for cost in costs for step in cost.plain]
    print(f"plain TTRL's step: {1e3 * middle(steps).median:.0f} ms of CPU; the budget is 1 % of it")
    return costs


def remark(cost: RuleCost) -> str:
    """On the budget, and on further passes of the model."""
    said = []
    if cost.over_budget:
        said.append("OVER BUDGET" if cost.is_sure else "over budget, not surely")
    elif not cost.is_sure and cost.further("generation") is None:
        said.append("in budget, not surely")
    if more := cost.further("generation"):
        said.append(
            f"generates again: {more.responses:.0f} responses in {more.passes:.1f} passes, "
            f"{more.tokens:.0%} of the votes' tokens, {cost.generation_share:+.0%} of a step"
        )
    if more := cost.further("forward"):
        said.append(
            f"forward pass: {more.responses:.0f} different responses, {more.tokens:.0%} of the "
            "votes' tokens"
        )
    return "; ".join(said)


def interval(value: Middle, digits: int) -> str:
    """The bounds in brackets; nothing where there are too few numbers for any."""
    return f"[{value.low:.{digits}f}, {value.high:.{digits}f}]" if value.low == value.low else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", choices=["sim", "real"], default="sim")
    sim = parser.add_argument_group("sim")
    sim.add_argument("--replicates", type=int, default=64)
    sim.add_argument("--problems", type=int, default=500)
    sim.add_argument("--rounds", type=int, default=3)
    trainer = parser.add_argument_group("real")
    trainer.add_argument("--rules", nargs="+", default=rules_in_real.names_of_all())
    trainer.add_argument("--steps", type=int, default=9, help="six or more give intervals")
    trainer.add_argument("--pairs", type=int, default=20, help="of samplings, stats on and off")
    trainer.add_argument("--layers", type=int, default=rules_in_real.Size.layers)
    trainer.add_argument("--width", type=int, default=rules_in_real.Size.width)
    trainer.add_argument("--tokens", type=int, default=rules_in_real.Size.tokens)
    options = parser.parse_args()
    try:
        of_sim(options) if options.world == "sim" else of_real(options)
    except (ConfigError, UserError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
