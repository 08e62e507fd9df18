"""Several arms from the same seeds (problems, order, draws), every difference, and what is printed.

Arms are compared at equal step and each at its own best.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lab.arm_settings import with_arm
from lab.base.arms import BASELINE, GUARD, VOTE, trains
from lab.base.columns import TextTable, finite_mean, floats, groups, ints, select, unique, where
from lab.base.files import make_folder, remove_folder
from lab.base.own_rules import load_rules
from lab.base.roles import Role, having, roles_of
from lab.base.settings import check_unchanged, from_values, to_values
from lab.base.stats import contrast_table, estimate
from lab.compare import effort
from lab.compare.collection import GRID, RESULTS
from lab.compare.effort import METRIC
from lab.compare.tables import facts, gap, rule_table, with_vote
from lab.measures import MEASURES, METRICS, Metric, measured
from lab.measures.fate import FATES, MIN_VISITS, fates
from lab.report.markdown import rule_markdown
from lab.study import Job, Outcome, Report, Study
from lab.trace.manifest import FILE_NAME, is_unused, locked, read_manifest
from lab.trace.trace import Trace, load
from sim.engine.rows import majority_right
from sim.engine.run import Simulation, simulate
from sim.settings.config import SimConfig
from sim.studies.jobs import check_shared, named
from sim.studies.sweep import check_workers, pooled
from sim.world.populations import ability_sampler
from sim.world.sampling import Floats

EQUAL, BEST = "equal step", "own best step"
ALL_VOTES = "maj_at_n"
"""Arm that trains nothing: the majority of the votes of all visits."""
TABLE = "comparison.parquet"
"""Every difference between the arms."""

_FACTOR = Metric(
    "step_factor", "factor on the step size", "factor", digits=3, head="factor",
    about="factor on the step size, 1 but in controls of matched effort",
)  # fmt: skip
_PRINTED = [metric for metric in (*METRICS, _FACTOR) if metric.head]
_OF_FATES = [m for m in _PRINTED if m.name in (*FATES, "TotalDeg", "L/D")]
_TABLES = (_OF_FATES, [m for m in _PRINTED if m not in _OF_FATES])
_UNITS = "In percent, except L/D, update and factor."
_STAR = "points [95 % t-interval, paired runs], * where it excludes 0; not corrected for many tests"
_MOST_LINES = 200
_COLUMNS = (("TotalDeg", BASELINE), ("TotalDeg", GUARD), (METRIC, BASELINE), (METRIC, VOTE))
"""Metrics whose differences are printed, and the arm that is taken off; the file has all."""


def contrasts(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return all paired differences between arms within every choice of the settings `by`.

    Args:
        rows: of `run_sweep`, or of the same form: settings, arm, replicate, status, measures.
        by: columns within whose values arms are compared. With several values of `step` among
            them, every arm is also compared at its own best step, and every guarded arm there
            with the best of its rivals.

    Returns:
        One row per setting, pair of arms and metric: at ("equal step" or "own best step"), the
        columns of `by` (step is NaN at the best), and the columns of
        `lab.base.stats.contrast_table`, against an arm or `BEST_RIVAL`. Metrics are `MEASURES` and
        `update`, the mean update norm in percent of TTRL's where it was run.
    """
    rows = where(rows, status="done")
    parts = [
        _differences(part, EQUAL, dict(zip(by, cell, strict=True)))
        for cell, part in groups(rows, by)
    ]
    others = [name for name in by if name != "step"]
    for cell, part in groups(rows, others) if "step" in by else ():
        if len(unique(part, "step")) > 1:
            settings = {**dict(zip(others, cell, strict=True)), "step": np.nan}
            best = effort.own_best(part, ["step"])
            both = effort.guarded_and_rival(best, effort.best_rival(part))
            parts.append(_differences(best, BEST, settings))
            parts.append(where(_differences(both, BEST, settings), against=effort.BEST_RIVAL))
    return pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)


def _differences(rows: pd.DataFrame, at: str, settings: Mapping[str, Any]) -> pd.DataFrame:
    index = pd.MultiIndex.from_frame(pd.DataFrame({n: rows[n] for n in ("arm", "replicate")}))
    metrics = pd.DataFrame({name: floats(rows, name) for name in MEASURES}, index)
    norms = where(rows, arm=BASELINE).set_index("replicate")["update_norm"]
    if len(norms):
        base_norms = norms.reindex(rows["replicate"]).to_numpy(float)
        metrics["update"] = 100 * floats(rows, "update_norm") / base_norms
    table, cell = contrast_table(metrics), {"at": at, **settings}
    return table.assign(**cell)[[*cell, *table]]


def compare(
    config: SimConfig,
    arms: Sequence[str],
    out: Path | str,
    progress: bool = False,
    workers: int = 1,
) -> dict[str, Trace]:
    """Run every arm from the same seeds into `out/<arm>`; arms that are finished there are kept.

    Args:
        config: settings shared by all arms; an arm brings its guard, labels, rule and step factor.
        arms: see `named`; controls run last.
        out: a new or empty folder, or that of a comparison with the same settings.
        workers: processes, one arm each.
    """
    check_workers(workers)
    check_shared(config, "step_factor")
    out = Path(out)

    def run(jobs: Sequence[Job], report: Report) -> list[Outcome]:
        tasks = [(job, progress and workers == 1) for job in jobs if not job.finished]
        with closing(pooled(_simulate, tasks, workers)) as ended:
            list(ended)
        return [Outcome(job, 1.0) for job in jobs]

    study = Study(
        folder=out,
        arms=[named(name, config).name for name in arms],
        seeds=[config.seed],
        config_of=lambda name: with_arm(config, named(name, config)),
        run_jobs=run,
        replicates=True,
    )
    jobs = study.all_jobs()
    shared = {"replicates", "first_replicate", "seed", "step", "lr"}
    free = having(roles_of(config), Role.ARM, Role.OPERATIONAL) - shared
    configs = {job.folder: job.config for job in jobs}
    there = {file.parent for file in out.glob(f"*/{FILE_NAME}")}
    for folder in [*(path for path in configs if path in there), *sorted(there - configs.keys())]:
        stored = to_values(from_values(read_manifest(folder).config, SimConfig, str(folder)))
        wanted, may_differ = configs.get(folder, config), () if folder in configs else free
        check_unchanged(folder, stored, to_values(wanted), may_differ)
    if config.policy != "measured":
        ability_sampler(config)  # refuses a bad histogram or trace before anything is written
    names = {GRID, TABLE, *study.arms}

    def is_own(path: Path) -> bool:
        # A stopped comparison leaves hidden folders, and folders without a run.
        left = path.name.startswith(".") or is_unused(path)
        return left or path.name in names or (path / FILE_NAME).is_file()

    make_folder(out, is_own)
    with locked(out):
        study.run()
    return {name: load(out / name) for name in study.arms}


def _simulate(task: tuple[Job, bool]) -> None:
    job, progress = task
    load_rules(job.config.rules)  # this may be a new process
    if job.begun:  # it has no checkpoints, and the same seed makes it again
        remove_folder(job.folder)
    simulate(job.config, job.folder, progress, arm=named(job.arm, job.config))


def rows_of(traces: dict[str, Trace], config: SimConfig) -> pd.DataFrame:
    """The measures of compared arms in the form of a sweep's rows.

    Returns:
        One row per arm and replicate: policy, step, arm, replicate, status, reason, the measures,
        step_factor, achieved_ratio (NaN for what is no control), key (the arm).
    """
    parts = []
    for name, trace in traces.items():
        extra = trace.run.extra
        ratio = extra.get("achieved_ratio")  # of controls; None where there was nothing to match
        labels = {"policy": config.policy, "step": config.step, "arm": name}
        labels |= {"status": "done", "reason": "", "key": name}
        labels |= {"step_factor": extra.get("step_factor", 1.0)}
        labels |= {"achieved_ratio": np.nan if ratio is None else ratio}
        measures = measured(trace, fates(trace.visits, partial=True)).join(facts(trace))
        parts.append(measures[list(MEASURES)].reset_index().assign(**labels))
    return pd.concat(parts, ignore_index=True)


def report(rows: pd.DataFrame, config: SimConfig, out: Path) -> None:
    """Write every difference between the arms, and print a summary of rows as of `rows_of`.

    Over several steps or policies the tables are those of the settings' own; at the other steps
    the arms are printed at their best alone.
    """
    voted = with_votes(rows, config)
    contrasts(voted, ["policy", "step"]).to_parquet(out / TABLE, index=False)
    at_step = where(voted, policy=config.policy, step=config.step)
    print_summary(at_step)
    size = f"step {config.step:g}" if config.lr is None else f"lr {config.lr:g}"
    _print_contrasts(at_step, f"Differences at equal {size}, policy {config.policy}")
    for (policy,), part in groups(rows, ["policy"]):
        if len(unique(part, "step")) > 1:
            shown = select(voted, voted["arm"].ne(ALL_VOTES))  # near the vote of a visit
            _print_own_best(where(shown, status="done", policy=policy), policy)
            if policy == config.policy:
                print("\n".join(effort.own_best_words(where(part, status="done"))))
    print(_STAR)
    if len(at_step) < len(voted):
        print(f"all steps: {out / GRID / RESULTS}; all differences: {out / TABLE}")
    print_failures(rows)


def with_votes(rows: pd.DataFrame, config: SimConfig) -> pd.DataFrame:
    """The rows, and before them both votes that need no training: maj@V, and maj@n of all samples.

    n is the number of responses that a run samples. One that is not among the arms is drawn here.
    """
    rows = with_vote(rows, ["policy", "step", "replicate", "status"])
    if ALL_VOTES not in unique(rows, "arm") and len(vote := where(rows, arm=VOTE)):
        n = config.n_votes * (1 + config.epochs)
        policies = unique(vote, "policy")
        drawn = {name: untrained_vote(replace(config, policy=name), n) for name in policies}
        place = ints(vote, "replicate") - config.first_replicate
        scores = [drawn[p][r] for p, r in zip(vote["policy"], place, strict=True)]
        scored = dict.fromkeys(("pass_final", "maj_final", "label_final"), scores)
        others = select(rows, rows["arm"].ne(VOTE))
        rows = pd.concat([vote, vote.assign(arm=ALL_VOTES, **scored), others], ignore_index=True)
    return rows


def untrained_vote(config: SimConfig, n_votes: int) -> Floats:
    """(R,) percent of problems whose majority of so many votes before training is right.

    The votes have random numbers of their own; a tie counts by its share, no vote as wrong.
    """
    simulation = Simulation(config)
    p_RNA = simulation.probabilities()
    rng = np.random.default_rng([config.seed, n_votes])
    total_RN1 = p_RNA.sum(axis=-1, keepdims=True)  # what it lacks of 1 is unparseable
    parsed = np.minimum(total_RN1[..., 0] * (1.0 - config.unparseable), 1.0)
    p_RNA /= np.where(total_RN1 > 0, total_RN1, 1.0)  # 0 where no response can be read
    counts_RNA = rng.multinomial(rng.binomial(n_votes, parsed), p_RNA)
    return 100.0 * majority_right(counts_RNA, simulation.truth_RN).mean(axis=1)


def print_summary(rows: pd.DataFrame, settings: Sequence[str] = ()) -> None:
    """Print means over the replicates, one line per setting and arm, and what the heads mean."""
    if settings:
        # Runs that several cells share once, with `any` for what they do not depend on. Votes that
        # train nothing have no key, and depend on all but the step.
        others = rows[["arm", *(name for name in settings if name != "step")]].astype(str)
        rows = rows.assign(key=rows["key"].fillna(others.agg(" ".join, axis=1)))
        by_key = rows.groupby(["key", "arm"])  # arms that are one run have a line each
        many = {n: pd.Series(by_key[n].transform("nunique", dropna=False)).gt(1) for n in settings}
        shown = {n: rows[n].astype(object).mask(shared, "any") for n, shared in many.items()}
        rows = rows.assign(**shown).drop_duplicates(["key", "arm", "replicate"], ignore_index=True)
    cells = list(groups(rows, [*settings, "arm"]))
    for columns in _TABLES:
        if not any(np.isfinite(floats(rows, metric.name)).any() for metric in columns):
            continue  # fates of short runs
        kept = cells if columns is not _OF_FATES else [c for c in cells if trains(str(c[0][-1]))]
        lines = [[*map(_value, key), *_numbers(part, columns)] for key, part in kept[:_MOST_LINES]]
        head = [*settings, "arm", *(metric.head for metric in columns)]
        print("\n".join(TextTable(head, lines).lines()))
        if len(kept) > _MOST_LINES:
            print(f"... {len(kept) - _MOST_LINES} more lines; all are in the file")
        said = [f"{m.head}: {m.about}" for m in columns if m.about]
        count = f"Mean over {len(unique(rows, 'replicate'))} replicate(s)."
        last = columns is _TABLES[-1]
        print(textwrap.fill(f"{'; '.join(said)}. {f'{_UNITS} {count}' if last else ''}", 100))
        print("\n" * (not last), end="")


def print_short(epochs: int) -> None:
    """Print that a run has no fates, where it is too short for them."""
    if epochs < MIN_VISITS:
        print(f"epochs = {epochs}: fates need at least {MIN_VISITS}; the run has scores alone")


def _print_contrasts(rows: pd.DataFrame, title: str) -> None:
    """Print the differences of every arm from TTRL, the guard and the vote before training."""
    # The difference of the vote from TTRL stands in TTRL's row.
    arms = [name for name in unique(rows, "arm") if name != VOTE]
    lines = [
        [arm, *(gap(rows, arm, against, metric, starred=True) for metric, against in _COLUMNS)]
        for arm in arms
    ]
    lines = [line for line in lines if any(line[1:])]
    if lines:
        head = ["arm", *(f"{metric} - {against}" for metric, against in _COLUMNS)]
        print("\n".join(["", title, *TextTable(head, lines).lines()]))


def _print_own_best(rows: pd.DataFrame, policy: str) -> None:
    best = effort.own_best(rows, ["step"])
    lines = []
    for (arm,), part in groups(best, ["arm"]):
        steps = ", ".join(f"{step:g}" for step in sorted(unique(part, "step")) if trains(arm))
        value = estimate(floats(part, METRIC))
        score = f"{value.mean:.1f}"
        score += f" [{value.low:.1f}, {value.high:.1f}]" if value.has_interval else ""
        degraded = f"{finite_mean(part, 'TotalDeg'):.1f}" if trains(arm) else "-"
        against = gap(best, arm, BASELINE, METRIC, starred=True)
        lines.append([arm, score, against, degraded, steps])
    head = ["arm", "pass_final", f"- {BASELINE}", "TotalDeg", "steps chosen"]
    several = len(unique(best, "replicate")) > 1
    how = "on the other half of the replicates" if several else "by its only replicate"
    print(f"\nEvery arm at its {BEST}, chosen {how}, policy {policy}")
    print("\n".join(TextTable(head, lines).lines()))


def print_rules(rows: pd.DataFrame, settings: Sequence[str]) -> None:
    """Print every arm at its own best step beside TTRL, a table for every other setting."""
    by = [name for name in settings if name != "step"]
    for cell, part in groups(where(rows, status="done").assign(seconds=np.nan), by):
        print(", ".join(f"{n} {_value(v)}" for n, v in zip(by, cell, strict=True)) + "\n")
        print(rule_markdown(rule_table(part)))


def print_failures(rows: pd.DataFrame) -> None:
    """Print the reasons of failed cells, each once."""
    failed = where(rows, status="failed")
    for (reason,), part in groups(failed, ["reason"]):
        cells, arms = len(unique(part, "cell")), ", ".join(unique(part, "arm"))
        print(f"failed in {cells} cell(s), arms {arms}: {reason}")


def _numbers(part: pd.DataFrame, columns: Iterable[Metric]) -> list[str]:
    if len(where(part, status="failed")) == len(part):
        return ["failed" for _ in columns]
    means = [(finite_mean(part, metric.name), metric.digits) for metric in columns]
    return ["-" if mean != mean else f"{mean:.{digits}f}" for mean, digits in means]


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
