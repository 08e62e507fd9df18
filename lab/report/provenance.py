"""Provenance of the numbers: the runs, their settings, versions and commands."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lab.base.settings import flattened
from lab.compare.collection import Skipped
from lab.report.digest import ReportedComparison
from lab.report.html import Html, definitions, join, table, tag
from lab.trace.manifest import Manifest

_OF_THE_RUN = "seed"
"""Differs by design and is shown with every run."""
_MOST_ITEMS, _LONGEST = 50, 2000
"""Items of a list, and letters of a text, that are shown."""
UNFINISHED = {
    "running": "still running or killed",
    "interrupted": "interrupted",
    "failed": "failed",
}


def provenance(world: ReportedComparison) -> Html:
    """The runs of one comparison, what their settings share and where they differ."""
    runs = world.comparison.manifests
    shared, differing = _split(world.comparison.runs)
    settings = definitions((key, tag("code", _shown(value))) for key, value in shared.items())
    return tag(
        "div",
        tag("h3", world.name),
        _notes(world.notes),
        _run_table(world),
        _said(runs),
        tag("h4", "Commands to repeat"),
        *(tag("pre", command) for command in _distinct(run.command for run in runs)),
        _difference_table(world, differing),
        _folded("Settings that all arms share", settings),
        _folded("Versions and machine", _software(runs)),
    )


def left_out(skipped: Sequence[Skipped]) -> Html:
    """Folders that could not be used, with the reason."""
    rows = [(str(item.folder), item.reason) for item in skipped]
    return table(("folder", "why it was left out"), rows, class_="words")


def _notes(notes: Sequence[str]) -> Html | None:
    if not notes:
        return None
    lines = [tag("p", note) for note in ("Notes on these runs:", *notes)]
    return tag("div", *lines, class_="warn")


def _said(runs: Sequence[Manifest]) -> Html | None:
    """Notices of the runs, such as prompts that were left out."""
    lines = _distinct(_shown(line) for run in runs for line in run.extra.get("notices") or ())
    return tag("div", *(tag("p", line) for line in lines), class_="warn") if lines else None


def _run_table(world: ReportedComparison) -> Html:
    head = ("arm", "seeds", "replicates", "status", "started (UTC)", "minutes", "commit", "backend")
    counts = Counter(world.metrics.index.get_level_values("arm"))
    rows = [
        (world.titles[arm], _seeds(own), counts[arm], *_facts(own))
        for arm, own in world.comparison.runs.items()
    ]
    return table(head, rows, class_="words")


def _facts(runs: Sequence[Manifest]) -> list[Html | str]:
    """Facts that the runs of one arm share, or all of them where they differ."""
    finished = sum(run.status not in UNFINISHED for run in runs)
    states = [tag("div", f"{finished} finished")] if finished else []
    states += [tag("div", _state(run), class_="flag") for run in runs if run.status in UNFINISHED]
    minutes = [run.minutes for run in runs]
    return [
        join(states),
        min(run.started for run in runs).replace("T", " ").removesuffix("+00:00"),
        f"{sum(minutes):.1f}" if all(map(math.isfinite, minutes)) else "not known",
        ", ".join(_distinct((run.commit or "not known")[:12] for run in runs)),
        ", ".join(_distinct(run.backend or "not noted" for run in runs)),
    ]


def _state(run: Manifest) -> str:
    reason = f" ({_shown(run.error)})" if run.error else ""
    return f"seed {_seeds([run])} {UNFINISHED[run.status]} at {run.progress:.0%}{reason}"


def _seeds(runs: Sequence[Manifest]) -> str:
    return _shown(list(dict.fromkeys(seed for run in runs for seed in run.seeds)))


def _difference_table(
    world: ReportedComparison, differing: Mapping[str, Mapping[str, str]]
) -> Html | None:
    if not differing:
        return None
    arms = world.comparison.arms
    head = ("setting", *(world.titles[arm] for arm in arms))
    rows = [(tag("code", key), *(found[arm] for arm in arms)) for key, found in differing.items()]
    return join([tag("h4", "Settings that differ between the arms"), table(head, rows)])


def _split(
    runs: Mapping[str, Sequence[Manifest]],
) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """Settings that all runs share, and for each other one its values per arm as text."""
    flat = {arm: [_flat(run) for run in own] for arm, own in runs.items()}
    keys = dict.fromkeys(key for own in flat.values() for values in own for key in values)
    shared: dict[str, Any] = {}
    differing: dict[str, dict[str, str]] = {}
    for key in keys:
        if key == _OF_THE_RUN:
            continue
        texts = {
            arm: _distinct(_shown(values[key]) if key in values else "not set" for values in own)
            for arm, own in flat.items()
        }
        if len({text for found in texts.values() for text in found}) == 1:
            shared[key] = next(own[0][key] for own in flat.values())
        else:
            differing[key] = {arm: ", ".join(found) for arm, found in texts.items()}
    return shared, differing


def _flat(run: Manifest) -> dict[str, Any]:
    """Settings and facts of a run, nested names joined by dots."""
    facts = {key: value for key, value in run.extra.items() if key not in run.config}
    return flattened(run.config) | flattened(facts)


def _software(runs: Sequence[Manifest]) -> Html:
    """Versions and machines; several values where the runs differ."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for key, value in {**run.versions, **run.machine}.items():
            found.setdefault(key, {})[_shown(value)] = None
    return definitions((key, " or ".join(values)) for key, values in found.items())


def _folded(title: str, inside: Html) -> Html:
    return tag("details", tag("summary", title), inside)


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(value for value in values if value))


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list) and value:
        more = [f"and {len(value) - _MOST_ITEMS} more"] if len(value) > _MOST_ITEMS else []
        return ", ".join([*map(_shown, value[:_MOST_ITEMS]), *more])
    # What is empty must be seen to be: as "", [] or null.
    text = value if isinstance(value, str) and value else json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} letters)"
