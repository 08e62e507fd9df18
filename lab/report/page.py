"""The page: one HTML file that needs nothing from outside, written without harm to others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.base.errors import UserError
from lab.base.files import unwritable, whole
from lab.compare.agreement import MEASURED
from lab.compare.collection import Skipped
from lab.compare.tables import METRICS, Metric
from lab.report import words
from lab.report.digest import ReportedComparison, read
from lab.report.first import AGREEMENT, AGREEMENT_NAME, agreements, first_screen, render_agreements
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
from lab.report.provenance import left_out, provenance
from lab.report.sections import GUARDING, OUTCOME, TRAINING, TRAP, Section, render
from lab.trace.manifest import now

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
    return tag("p", words.MEASURED if is_measured else words.SIMULATED, class_="note")


def _arms(worlds: Sequence[ReportedComparison]) -> Html:
    arms = {
        title: words.about(world.comparison.variants.get(arm, arm))
        for world in worlds
        for arm, title in world.titles.items()
    }
    planted = tag("p", words.PLANTED, class_="note") if any(w.planted for w in worlds) else None
    natures = dict.fromkeys(note for world in worlds if (note := _nature(world)) is not None)
    return join([definitions(arms.items()), planted, *natures])


def _tables(worlds: Sequence[ReportedComparison]) -> Html:
    parts = [join([tag("h3", world.name), _arm_table(world)]) for world in worlds]
    return join([*parts, tag("p", f"{words.TABLE} {words.NOISE}", class_="how")])


def _arm_table(world: ReportedComparison) -> Html:
    """Mean and spread of every metric, metrics down and arms across."""
    counts = Counter(world.metrics.index.get_level_values("arm"))
    head = ["", *(_arm_head(world.titles[arm], counts[arm]) for arm in world.comparison.arms)]
    rows = [_row(world, metric) for metric in METRICS if _measured(world, metric)]
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
