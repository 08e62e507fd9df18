"""What a run says on the terminal: notices, results, the curve of evaluations, progress bars."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lab.progress import Bar
from real.ranks import speaks

if TYPE_CHECKING:
    from lab.trace.trace import Trace

ALARM = "alarm: "
"""Begins notices of faults of the training, which are told again at the end of a run."""

SAID: ContextVar[set[str] | None] = ContextVar("said", default=None)
"""Notices that were printed, where each is to be printed once."""
NUMBERS: ContextVar[Callable[[str], object]] = ContextVar("numbers", default=lambda _: None)
"""Shows numbers of a run of a comparison beside the comparison's progress."""


def say(notices: Iterable[str], source: str = "") -> None:
    """Print notices, one line each, on stderr, from one of several ranks."""
    said = SAID.get()
    for notice in notices if speaks() else ():
        if said is None or notice not in said:
            # Above a bar, if there is one.
            Bar.write(f"guard-train: notice: {source}{notice}", file=sys.stderr)
        if said is not None:
            said.add(notice)


@contextmanager
def holding(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """Give a variable a value for a while."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def advice_when_stopped(advice: str, needs: Path = Path()) -> Iterator[None]:
    """Print how to go on where the work within is interrupted, if what that needs is there."""
    try:
        yield
    except KeyboardInterrupt:
        say([f"to go on: {advice}"] * needs.exists())
        raise


def tell(lines: Iterable[str]) -> None:
    """Print results on stdout, from one of several ranks."""
    for line in lines if speaks() else ():
        print(line)


@contextmanager
def runs_bar(total: int, quiet: bool) -> Iterator[Callable[[float], None]]:
    """Draw a bar from the first report on, so that refused settings leave one line alone."""
    form = "{l_bar}{bar}| {n:.1f}/{total} runs [{elapsed}<{remaining}{postfix}]"
    with ExitStack() as drawn:
        words = deque([""], maxlen=1)

        @cache
        def bar() -> Bar:
            return drawn.enter_context(Bar(total=total, unit="run", bar_format=form, disable=quiet))

        def report(done: float) -> None:
            bar().set_postfix_str(words[-1], refresh=False)
            bar().update(done - bar().n)

        with holding(NUMBERS, words.append):
            yield report


@contextmanager
def phases_bar(quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """Draw one bar per phase of a measurement, from its first report on."""
    form = "{desc}: {percentage:3.0f}%|{bar}| [{elapsed}<{remaining}]"
    with ExitStack() as drawn:

        @cache
        def bar(phase: str) -> Bar:
            drawn.close()
            return drawn.enter_context(Bar(desc=phase, total=1.0, bar_format=form, disable=quiet))

        def report(phase: str, done: float) -> None:
            bar(phase).update(done - bar(phase).n)

        yield report


_SCORES = ("pass_at", "maj", "strict", "flexible", "held_out")


def summary(previous: Mapping[str, Any] | None, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary of the curve with one more evaluation, as in `run.json`.

    Points at or after the new one's step are dropped, since a resumed run makes them again.
    `points` are [step, pass@1], `first` and `last` all that was measured, `best` is chosen with
    hindsight, `area` the mean height of the curve over the steps; None without true answers.
    """
    scored = ((name, float(x)) for name, x in row.items() if name.startswith(_SCORES))
    scores = {name: score for name, score in scored if math.isfinite(score)}
    now = {"step": int(row["step"]), **scores}
    before: Mapping[str, Any] = previous or {"first": now, "points": []}
    points = [point for point in before["points"] if point[0] < now["step"]]
    if "pass_at_1" in scores:
        points.append([now["step"], scores["pass_at_1"]])
    best, area = None, None
    if points:
        step, score = max(points, key=lambda point: point[1])
        best = {"step": step, "pass_at_1": score}
        steps, heights = np.array(points, float).T
        span = steps[-1] - steps[0]
        area = float(np.trapezoid(heights, steps) / span if span else heights[-1])
    first = min(now, before["first"], key=lambda scores: scores["step"])
    return {"first": first, "last": now, "best": best, "area": area, "points": points}


def lines(curve: Mapping[str, Any]) -> list[str]:
    """Return the curve in lines for readers."""
    first, last, best = curve["first"], curve["last"], curve["best"]
    held_out, text = "held_out_pass_at_1", list[str]()
    if best is not None:
        text = [
            f"pass@1 best {best['pass_at_1']:.3f} at step {best['step']} (with hindsight), "
            f"mean over training {curve['area']:.3f}"
        ]
    elif held_out not in last:
        return ["no true answers: accuracy was not measured"]
    strict, flexible = (last.get(f"{name}_pass_at_1") for name in ("strict", "flexible"))
    if strict != flexible:
        text.append(f"pass@1 by the last box {strict:.3f}, else by the last number {flexible:.3f}")
    if held_out in last:
        text.append(f"pass@1 of held-out problems {first[held_out]:.3f} -> {last[held_out]:.3f}")
    ks = sorted(int(name.removeprefix("pass_at_")) for name in last if name.startswith("pass_at_"))
    pairs = ((k, first.get(f"pass_at_{k}"), last[f"pass_at_{k}"]) for k in ks if k > 1)
    parts = [f"pass@{k} {a:.3f} -> {b:.3f}" for k, a, b in pairs if a is not None]
    return [*text, ", ".join(parts)] if parts else text


def unread(visits: Any) -> float:
    """Return the share of responses without a readable answer, from visits by column name."""
    return float(np.mean(visits["n_unparseable"]) / np.mean(visits["n_votes"]))


def unread_shares(trace: Trace) -> tuple[float, float]:
    """Return `unread` before training and in the last epoch."""
    visits, epochs = trace.visits, trace.visits["epoch"]
    return unread(visits[epochs == epochs.min()]), unread(visits[epochs == epochs.max()])


def outcome(trace: Trace) -> Iterator[str]:
    """Result of a run, line by line."""
    run = trace.run
    if given_up := run.extra.get("answers_given_up"):
        yield (
            f"answers: {len(given_up)} hold a formula beyond the limits and equal their own text "
            f"alone, the first {given_up[0]}"
        )
    if evaluation := run.extra.get("evaluation"):  # which no other trainer's runs have
        first, last = evaluation["first"], evaluation["last"]
        if "pass_at_1" in last:
            yield (
                f"{run.title}: pass@1 {first['pass_at_1']:.3f} -> {last['pass_at_1']:.3f}, "
                f"majority {first['maj_accuracy']:.3f} -> {last['maj_accuracy']:.3f}"
            )
        yield from lines(evaluation)
    before, after = unread_shares(trace)
    yield f"responses without a readable answer: {before:.1%} -> {after:.1%}"
    yield from (line for line in run.extra.get("notices", []) if line.startswith(ALARM))
