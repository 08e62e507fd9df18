"""The page: one HTML file that needs nothing from outside, and the provenance of its numbers."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.base.errors import UserError
from lab.base.files import unwritable, whole
from lab.base.settings import flattened
from lab.compare.agreement import MEASURED
from lab.compare.collection import Skipped
from lab.measures.metrics import PAGE, Metric
from lab.report.digest import ReportedComparison, read
from lab.report.first import (
    AGREEMENT,
    AGREEMENT_NAME,
    LINEARISED,
    NOISE,
    PLANTED,
    SIMULATED,
    TABLE,
    about,
    agreements,
    first_screen,
    render_agreements,
)
from lab.report.html import (
    Html,
    definitions,
    document,
    is_made_by,
    join,
    library,
    mean_and_sd,
    raw,
    table,
    tag,
)
from lab.report.problems import problem_assets, problem_sections
from lab.report.sections import GUARDING, OUTCOME, TRAINING, TRAP, Section, render
from lab.trace.manifest import Manifest, now

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


GENERATOR = "ttrl-guard-lab report"
"""Marks a page as ours, so that it may be overwritten."""


@dataclass(frozen=True, slots=True)
class _PageSection:
    """A section as it stands on the page and in its contents."""

    name: str
    """Of its anchor."""
    group: str
    heading: str
    inside: Html


def page(worlds: Sequence[ReportedComparison], skipped: Sequence[Skipped]) -> str:
    """The report as HTML."""
    parts = list(_parts(worlds, skipped))
    style, script = problem_assets()
    body = tag(
        "body",
        _header(worlds),
        first_screen(worlds),
        _contents(parts),
        tag("main", *(_section(p.name, p.heading, p.inside) for p in parts), id="main"),
        _footer(),
        library(),
        tag("script", raw(script)),
    )
    title = f"TTRL-Guard Lab report: {' · '.join(world.name for world in worlds)}"
    return document(title, GENERATOR, body, tag("style", raw(style)))


def figure_sections() -> list[Section]:
    """The sections in the order of the page."""
    return [*OUTCOME, *TRAINING, *TRAP, *GUARDING]


def _parts(
    worlds: Sequence[ReportedComparison], skipped: Sequence[Skipped]
) -> Iterator[_PageSection]:
    if predicted := agreements(worlds):
        yield _PageSection(AGREEMENT_NAME, "In short", AGREEMENT, render_agreements(predicted))
    for section in figure_sections():
        yield _PageSection(section.name, section.group, section.heading, render(section, worlds))
    yield _PageSection("table", "The data", "All arms in one table", _tables(worlds))
    title = "Every problem and its life"
    yield _PageSection("problems", "The data", title, problem_sections(worlds))
    yield _PageSection("arms", "The data", "What the arms and the worlds are", _arms(worlds))
    runs = join(provenance(world) for world in worlds)
    yield _PageSection("runs", "The data", "The runs and their settings", runs)
    if skipped:
        yield _PageSection("left-out", "The data", "Folders that were left out", left_out(skipped))


def _contents(parts: Sequence[_PageSection]) -> Html:
    """Links by group, folded: the numbers come first."""
    groups: dict[str, list[Html]] = {}
    for part in parts:
        link = tag("li", tag("a", part.heading, href=f"#{part.name}"))
        groups.setdefault(part.group, []).append(link)
    lists = [tag("div", tag("p", g), tag("ul", *links)) for g, links in groups.items()]
    inside = tag("div", *lists, class_="contents")
    folded = tag("details", tag("summary", "Contents"), inside, id="contents")
    return tag("nav", folded, aria_label="Contents")


def _section(name: str, heading: str, inside: Html) -> Html:
    return tag("section", tag("h2", heading, id=name), inside)


def _header(worlds: Sequence[ReportedComparison]) -> Html:
    return tag(
        "header",
        tag("a", "Skip to the figures", href="#main", class_="skip"),
        tag("h1", "TTRL-Guard Lab: report"),
        _warnings(worlds),
    )


def _warnings(worlds: Sequence[ReportedComparison]) -> Html | None:
    notes = [f"{world.name}: {note}" for world in worlds for note in world.notes]
    if not notes:
        return None
    return tag("div", *(tag("p", note) for note in notes), class_="warn")


def _nature(world: ReportedComparison) -> Html | None:
    """Note on what a simulated world can and cannot show."""
    if world.comparison.world != "sim":
        return None
    is_measured = world.comparison.manifests[0].config.get("policy") == MEASURED
    return tag("p", LINEARISED if is_measured else SIMULATED, class_="note")


def _arms(worlds: Sequence[ReportedComparison]) -> Html:
    arms = {
        title: about(world.comparison.variants.get(arm, arm))
        for world in worlds
        for arm, title in world.titles.items()
    }
    planted = tag("p", PLANTED, class_="note") if any(w.planted for w in worlds) else None
    natures = dict.fromkeys(note for world in worlds if (note := _nature(world)) is not None)
    return join([definitions(arms.items()), planted, *natures])


def _tables(worlds: Sequence[ReportedComparison]) -> Html:
    parts = [join([tag("h3", world.name), _arm_table(world)]) for world in worlds]
    return join([*parts, tag("p", f"{TABLE} {NOISE}", class_="how")])


def _arm_table(world: ReportedComparison) -> Html:
    """Mean and spread of every metric, metrics down and arms across."""
    counts = Counter(world.metrics.index.get_level_values("arm"))
    head = ["", *(_arm_head(world.titles[arm], counts[arm]) for arm in world.comparison.arms)]
    rows = [_row(world, metric) for metric in PAGE if _measured(world, metric)]
    return table(head, rows)


def _arm_head(title: str, count: int) -> Html:
    return tag("span", title, tag("span", f"n = {count}", class_="spread"))


def _measured(world: ReportedComparison, metric: Metric) -> bool:
    return bool(world.metrics[metric.name].notna().to_numpy().any())


def _row(world: ReportedComparison, metric: Metric) -> list[Html]:
    name = tag("span", metric.title, tag("span", f" ({metric.unit})", class_="spread"))
    return [name, *(_cell(world, arm, metric) for arm in world.comparison.arms)]


def _cell(world: ReportedComparison, arm: str, metric: Metric) -> Html:
    mean, sd = (float(world.summary.loc[arm, (metric.name, what)]) for what in ("mean", "sd"))
    undefined = "nothing degraded" if metric.name == "L/D" else "not measured"
    return mean_and_sd(mean, sd, metric.digits, undefined)


def _footer() -> Html:
    text = f"Made {now()} by guard-report from the run folders; nothing on this page is fetched."
    return tag("footer", tag("p", text))


@dataclass(frozen=True, slots=True)
class Written:
    """Files that were written."""

    path: Path
    worlds: list[ReportedComparison]
    """The comparisons on the page."""
    skipped: list[Skipped]
    """Folders that were left out."""


def write_report(
    folders: Sequence[Path | str], output: Path | str | None = None, *, force: bool = False
) -> Written:
    """Read runs and write their report.

    Args:
        folders: run folders, or folders that hold some at any depth.
        output: the page; `report.html` in the first folder if left out.
        force: overwrite a file that is not a report.

    Returns:
        The page's path and what is on it.

    Raises:
        UserError: no run can be used, or the page cannot be written or would overwrite another
            file; in that case nothing is changed.
    """
    if not folders:
        raise UserError("no folder given; name folders that a run was written to")
    target = Path(folders[0]) / "report.html" if output is None else Path(output)
    # Before the work, which takes seconds: the answer does not depend on it.
    if output is not None or target.exists():
        _check(target, force)
    worlds, skipped = read(folders)
    content = page(worlds, skipped)
    with whole(target) as temporary:
        temporary.write_text(content, encoding="utf-8", errors="backslashreplace")
    return Written(target, worlds, skipped)


def _check(target: Path, force: bool) -> None:
    try:
        folder, homeless = target.is_dir(), not target.parent.is_dir()
        foreign = not folder and target.exists() and not is_made_by(target, GENERATOR)
    except OSError as error:
        raise unwritable(target, error) from error
    if folder:
        raise UserError(f"{target}: is a folder; give the name of an HTML file")
    if homeless:
        raise UserError(f"{target}: its folder does not exist; make it or choose another")
    if foreign and not force:
        raise UserError(
            f"{target}: exists and is not a report; choose another -o or add --force to replace it"
        )
