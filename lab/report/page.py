"""The page: one HTML file that needs nothing from outside, first screen, sections, provenance."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pandas as pd

from lab.base.arms import GUARD, MATCHED, about, title
from lab.base.columns import TextTable, finite_mean, floats
from lab.base.settings import flattened
from lab.base.stats import estimate, interval, mean_sd, plus_minus, some_of
from lab.compare.collection import MEASURED, Skipped
from lab.compare.tables import Finding, Quantity, metrics_of
from lab.measures import PAGE, Metric
from lab.report import digest, html
from lab.report.digest import ReportedComparison, StepStudy, Worlds, slugs
from lab.report.html import Child, Html, join, shown, table, tag, warned
from lab.report.predictions import agreements
from lab.report.problems import problem_sections
from lab.report.sections import SECTIONS, first, render
from lab.report.sweeps import ReportedSweep, sweep_section
from lab.trace.manifest import Manifest, now

NOISE = (
    "Every difference is paired by seed. It counts as within noise when its 95 % interval (t "
    "distribution over the pairs) contains zero; with few pairs only large differences can be "
    "shown, and with several comparisons on one page some cross the line by chance."
)

PLANTED = (
    "The tiny task is not a natural one. Some of its wrong rivals are planted: before any run the "
    "model was trained on a mixture of the right rule and two misconceptions, with slips. On the "
    "default problems the start model gives the right answer .61 of the probability mass, the "
    "other answers of the planted rules .085, and answers of neither .29. The task shows the "
    "mechanism in a real model under real GRPO; how often rivals are that strong in practice it "
    "cannot show."
)

SIMULATED = (
    "The simulator has no language model: a softmax policy over each problem's answers is moved by "
    "the same update and watched by the same guard. What it shows depends on the population and "
    "the coupling that were assumed."
)

LINEARISED = (
    "The simulator's policy measured is a real model, linearised over its token tree before any "
    "training and moved by the trainer's optimizer. No parameter of it was fitted to a run."
)

TABLE = (
    "Mean ± standard deviation over n replicates; (2 of 3) where not all of them have the number. "
    "TotalDeg is the share of problems that training made worse (Degraded and Marginal Degraded); "
    "L/D is Learned by Degraded, not defined where nothing degraded. The best pass@1 on the way is "
    "chosen with hindsight, from the true answers."
)

_DUEL = {
    "guard": (title(GUARD), title(MATCHED)),
    "rival": ("The best simple rival ({note})", title(GUARD)),
}
_MOST_ITEMS, _LONGEST = 50, 2000
"""Items of a list, and letters of a text, that are shown."""
GENERATOR = "ttrl-guard-lab report"
"""Marks a page as ours, so that it may be overwritten."""
_RUN_HEAD = ("arm", "seeds", "replicates", "status", "started (UTC)", "minutes from start to end")
_RUN_HEAD += ("commit", "backend")
_SHORT, _DATA = "In short", "The data"
"""Groups of the contents besides those of `SECTIONS`."""


def sentence(finding: Finding) -> str:
    """What the guard or the best rival gains, with uncertainty, and whether that is noise."""
    parts = [part for part in finding.parts if part.value.n]
    subject, reference = _DUEL[finding.key]
    numbers = " and ".join(_part_text(part) for part in parts)
    return f"{subject.format(note=finding.note)} {_outcome(parts)} {reference}: {numbers}."


def _part_text(part: Quantity) -> str:
    value = part.value
    facts = [interval(value.low, value.high)] if value.has_interval else []
    facts += [value.shows()] if value.within_noise else []
    return f"{part.label} {value.mean:+.1f} points ({', '.join(facts)})"


def _outcome(parts: Sequence[Quantity]) -> str:
    shown = [part.value.mean > 0 for part in parts if not part.value.within_noise]
    if not shown:
        return "shows no difference beyond noise from"
    if len(set(shown)) > 1:
        return "does better in one number and worse in the other than"
    some = " in one number, with the other within noise," if len(shown) < len(parts) else ""
    return f"does {'better' if shown[0] else 'worse'}{some} than"


def _world(world: ReportedComparison, slug: str) -> Html:
    findings = [f for f in world.findings[1:] if any(part.value.n for part in f.parts)]
    lacking = digest.missing(world)
    share = finite_mean(world.metrics, "unread")
    unread = f"Responses without a readable answer: {share:.1f} %."
    left = [
        _text_table(digest.overview_table(world)),
        tag("p", unread, class_="small-how") if world.comparison.world == "real" else None,
        tag("ul", *(tag("li", sentence(f)) for f in findings)) if findings else None,
        tag("p", lacking[0], ": ", tag("code", lacking[1]), class_="lacking") if lacking else None,
    ]
    drawn = shown(first(world), f"{slug}-first", world.name)
    return join([tag("h2", world.name), tag("div", tag("div", *left), drawn, class_="pair")])


def _study(study: StepStudy) -> Html:
    said = [tag("li", line) for line in study.words()]
    parts = [
        tag("h2", study.name),
        tag("ul", *said) if said else None,
        _text_table(study.table()),
        tag("p", study.how(), class_="small-how"),
    ]
    return join(parts)


def _text_table(texts: TextTable) -> Html:
    """A table of texts; a cell in ** as Markdown writes it is bold."""
    return table(texts.head, [[_bold(cell) for cell in row] for row in texts.rows])


def _bold(cell: str) -> Child:
    bold = len(cell) > 4 and cell.startswith("**") and cell.endswith("**")
    return tag("strong", cell[2:-2]) if bold else cell


def _arm_table(world: ReportedComparison) -> Html:
    parts = {arm: metrics_of(world.metrics, arm) for arm in world.comparison.arms}
    head = [tag("span", world.titles[a], _small(f"n = {len(rows)}")) for a, rows in parts.items()]
    rows = [
        [tag("span", m.title, _small(f" ({m.unit})")), *(_cell(part, m) for part in parts.values())]
        for m in PAGE
        if len(world.metrics[m.name].dropna())
    ]
    return join([tag("h3", world.name), table(["", *head], rows)])


def _cell(rows: pd.DataFrame, metric: Metric) -> Html:
    value = estimate(floats(rows, metric.name))
    if not value.n:
        has_fates = metric.name == "L/D" and rows["TotalDeg"].notna().any()
        return tag("span", "nothing degraded" if has_fates else "not measured")
    spread = plus_minus(value.sd, metric.digits) + some_of(value.n, len(rows))
    return tag("span", mean_sd(value.mean, digits=metric.digits), _small(spread))


def _small(text: str) -> Html:
    return tag("span", text, class_="spread")


def _arms(worlds: Worlds) -> Html:
    arms = {title: about(arm) for world in worlds for arm, title in world.titles.items()}
    notes = [PLANTED] if any(world.planted for world in worlds) else []
    for world in worlds:
        if world.comparison.world == "sim":
            policy = world.comparison.manifests[0].config.get("policy")
            notes.append(LINEARISED if policy == MEASURED else SIMULATED)
    said = [tag("p", note, class_="note") for note in dict.fromkeys(notes)]
    return join([html.definitions(arms.items()), *said])


def provenance(world: ReportedComparison) -> Html:
    """The runs of one comparison, what their settings share and where they differ."""
    runs = world.comparison.manifests
    shared, differing = _split(world.comparison.runs.values())
    settings = html.definitions((key, tag("code", text)) for key, text in shared.items())
    rows = [(tag("code", key), *texts) for key, texts in differing.items()]
    counts = Counter(world.metrics.index.get_level_values("arm"))
    made = [
        (world.titles[arm], _seeds(of_arm), counts[arm], *_facts(of_arm))
        for arm, of_arm in world.comparison.runs.items()
    ]
    notes = ["Notes on these runs:", *world.notes] if world.notes else []
    notices = _distinct(_shown(line) for run in runs for line in run.extra.get("notices") or ())
    software: dict[str, dict[str, None]] = {}
    for run in runs:
        for key, value in {**run.versions, **run.machine}.items():
            software.setdefault(key, {})[_shown(value)] = None
    versions = html.definitions((key, " or ".join(values)) for key, values in software.items())
    return tag(
        "div",
        tag("h3", world.name),
        warned(notes),
        table(_RUN_HEAD, made, class_="words"),
        warned(notices),
        tag("h4", "Commands to repeat"),
        *(tag("pre", command) for command in _distinct(run.command for run in runs)),
        tag("h4", "Settings that differ between the arms") if differing else None,
        table(("setting", *world.titles.values()), rows) if differing else None,
        _folded("Settings that all arms share", settings),
        _folded("Versions and machine", versions),
    )


def _folded(title: str, inside: Html, **attributes: str) -> Html:
    return tag("details", tag("summary", title), inside, **attributes)


def _facts(runs: Sequence[Manifest]) -> list[Html | str]:
    others = [run for run in runs if run.status != "finished"]
    finished = len(runs) - len(others)
    states = [tag("div", f"{finished} finished")] if finished else []
    states += [tag("div", _state(run), class_="flag") for run in others]
    minutes = [run.minutes for run in runs]
    return [
        join(states),
        min(run.started for run in runs).replace("T", " ").removesuffix("+00:00"),
        f"{sum(minutes):.1f}" if all(map(math.isfinite, minutes)) else "not known",
        ", ".join(_distinct(map(_commit, runs))),
        ", ".join(_distinct(run.backend or "not noted" for run in runs)),
    ]


def _commit(run: Manifest) -> str:
    number, dirty, _ = (run.commit or "not known").partition("-dirty")
    return number[:12] + dirty


def _state(run: Manifest) -> str:
    reason = f" ({_shown(run.error)})" if run.error else ""
    state = "still running or killed" if run.status == "running" else run.status
    return f"seed {_seeds([run])} {state} at {run.progress:.0%}{reason}"


def _seeds(runs: Sequence[Manifest]) -> str:
    return _shown(list(dict.fromkeys(seed for run in runs for seed in run.seeds)))


def _split(arms: Iterable[Sequence[Manifest]]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Settings that all runs share, and for each other one its values per arm, all as text."""
    # The settings first, and a setting before a fact of its name.
    flat = [[flattened(r.config | r.extra | r.config) for r in of_arm] for of_arm in arms]
    keys = dict.fromkeys(key for of_arm in flat for values in of_arm for key in values)
    keys.pop("seed", None)  # differs by design and is shown with every run
    shared: dict[str, str] = {}
    differing: dict[str, list[str]] = {}
    for key in keys:
        texts = [
            _distinct(_shown(values[key]) if key in values else "not set" for values in of_arm)
            for of_arm in flat
        ]
        if len(different := {text for of_arm in texts for text in of_arm}) == 1:
            shared[key] = different.pop()
        else:
            differing[key] = [", ".join(of_arm) for of_arm in texts]
    return shared, differing


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


def page(worlds: Worlds, skipped: Sequence[Skipped], sweeps: Sequence[ReportedSweep] = ()) -> str:
    """The report as HTML."""
    parts = list(_parts(worlds, skipped, sweeps))
    screen = [_world(world, slug) for world, slug in zip(worlds, slugs(worlds), strict=True)]
    screen += [*map(_study, digest.step_studies(worlds)), tag("p", digest.HOW, class_="small-how")]
    made = f"Made {now()} by guard-report from the run folders; nothing on this page is fetched."
    skip = tag("a", "Skip to the figures", href="#main", class_="skip")
    warnings = warned(f"{world.name}: {note}" for world in worlds for note in world.notes)
    sections = [tag("section", tag("h2", head, id=name), inside) for name, _, head, inside in parts]
    body = tag(
        "body",
        tag("header", skip, tag("h1", "TTRL-Guard Lab: report"), warnings),
        tag("section", *screen, class_="first") if worlds else None,
        _contents(parts),
        tag("main", *sections, id="main"),
        tag("footer", tag("p", made)),
        html.library(),
        tag("script", html.asset("problems.js")),
    )
    heading = f"TTRL-Guard Lab report: {' · '.join(item.name for item in (*worlds, *sweeps))}"
    return html.document(heading, GENERATOR, body, html.asset("problems.css"))


def _parts(
    worlds: Worlds, skipped: Sequence[Skipped], sweeps: Sequence[ReportedSweep]
) -> Iterator[tuple[str, str, str, Html]]:
    """Anchor, group, heading and content of each section."""
    if sweeps:
        yield "sweeps", _SHORT, "Sweeps of settings", sweep_section(sweeps)
    if predicted := agreements(worlds):
        yield "agreement", _SHORT, "Real runs and their simulation", predicted
    for section in SECTIONS if worlds else ():
        yield section.name, section.group, section.heading, render(section, worlds)
    if worlds:
        how = tag("p", f"{TABLE} {NOISE}", class_="how")
        arms = join([how, *map(_arm_table, worlds)])
        yield "table", _DATA, "All arms in one table", arms
        yield "problems", _DATA, "Every problem and its life", problem_sections(worlds)
        yield "arms", _DATA, "What the arms and the worlds are", _arms(worlds)
        yield "runs", _DATA, "The runs and their settings", join(map(provenance, worlds))
    if skipped:
        rows = [(str(item.folder), item.reason) for item in skipped]
        left_out = table(("folder", "why it was left out"), rows, class_="words")
        yield "left-out", _DATA, "Folders that were left out", left_out


def _contents(parts: Sequence[tuple[str, str, str, Html]]) -> Html:
    groups: dict[str, list[Html]] = {}
    for name, group, heading, _ in parts:
        groups.setdefault(group, []).append(tag("li", tag("a", heading, href=f"#{name}")))
    lists = [tag("div", tag("p", g), tag("ul", *links)) for g, links in groups.items()]
    folded = _folded("Contents", tag("div", *lists, class_="contents"), id="contents")
    return tag("nav", folded, aria_label="Contents")
