"""The page as a whole: one file that needs nothing from outside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files

from lab.compare.agreement import MEASURED
from lab.compare.collection import Skipped
from lab.report.content import words
from lab.report.content.digest import ReportedComparison
from lab.report.elements.html import Html, definitions, join, raw, tag
from lab.report.elements.plots import library, plot
from lab.report.problems.sections import problem_assets, problem_sections
from lab.report.sections.across import ACROSS, ACROSS_NAME, HOW, across
from lab.report.sections.agreement import (
    AGREEMENT,
    AGREEMENT_NAME,
    agreements,
    render_agreements,
)
from lab.report.sections.guarding import GUARDING
from lab.report.sections.numbers import arm_table, cards
from lab.report.sections.outcome import OUTCOME
from lab.report.sections.papers import paper_tables
from lab.report.sections.provenance import left_out, provenance
from lab.report.sections.section import Drawing, Section, render
from lab.report.sections.training import TRAINING
from lab.report.sections.trap import TRAP
from lab.trace.provenance import now

GENERATOR = "ttrl-guard-lab report"
"""Marks a page as ours, so that it may be overwritten."""

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
"""The browser itself refuses to load anything from outside."""


@dataclass(frozen=True, slots=True)
class _PageSection:
    """A section as it stands on the page and in its contents."""

    name: str
    """Of its anchor."""
    group: str
    heading: str
    inside: Html


def page(worlds: Sequence[ReportedComparison], skipped: Sequence[Skipped]) -> str:
    """The report as HTML.

    Args:
        worlds: the comparisons, side by side.
        skipped: folders that were left out.
    """
    parts = list(_parts(worlds, skipped))
    style, script = problem_assets()
    body = tag(
        "body",
        _header(worlds, _contents(parts)),
        tag("main", *(_section(p.name, p.heading, p.inside) for p in parts), id="main"),
        _footer(),
        library(),
        _asset("report.js", "script"),
        tag("script", raw(script)),
    )
    return f"<!doctype html>\n{tag('html', _head(worlds, style), body, lang='en')}\n"


def figure_sections() -> list[Section]:
    """The sections in the order of the page."""
    return [*OUTCOME, *TRAINING, *TRAP, *GUARDING]


def render_across(drawing: Drawing) -> Html:
    """The figure of all comparisons, and how to read it.

    Args:
        drawing: from `across`.
    """
    return join(
        [tag("p", HOW, class_="how"), plot(drawing.figure, f"{ACROSS_NAME}-0", drawing.alt)]
    )


def _parts(
    worlds: Sequence[ReportedComparison], skipped: Sequence[Skipped]
) -> Iterator[_PageSection]:
    yield _PageSection("numbers", "In short", "The numbers that matter", _numbers(worlds))
    yield _PageSection("arms", "In short", "What the arms are", _arms(worlds))
    yield _PageSection("table", "In short", "All arms in one table", _tables(worlds))
    drawing = across(worlds)
    if drawing is not None:
        yield _PageSection(ACROSS_NAME, "In short", ACROSS, render_across(drawing))
    if predicted := agreements(worlds):
        yield _PageSection(AGREEMENT_NAME, "In short", AGREEMENT, render_agreements(predicted))
    for section in figure_sections():
        yield _PageSection(section.name, section.group, section.heading, render(section, worlds))
    heading = "Comparison with the paper's printed numbers"
    yield _PageSection("paper", "The paper", heading, paper_tables(worlds))
    title = "Every problem and its life"
    yield _PageSection("problems", "The data", title, problem_sections(worlds))
    runs = join(provenance(world) for world in worlds)
    yield _PageSection("runs", "The data", "The runs and their settings", runs)
    if skipped:
        yield _PageSection("left-out", "The data", "Folders that were left out", left_out(skipped))


def _contents(parts: Sequence[_PageSection]) -> Html:
    """Links by group; folded by the page's script where the screen is narrow."""
    groups: dict[str, list[Html]] = {}
    for part in parts:
        link = tag("li", tag("a", part.heading, href=f"#{part.name}"))
        groups.setdefault(part.group, []).append(link)
    lists = [tag("div", tag("p", g), tag("ul", *links)) for g, links in groups.items()]
    inside = tag("div", *lists, class_="contents")
    folded = tag("details", tag("summary", "Contents"), inside, open=True, id="contents")
    return tag("nav", folded, aria_label="Contents")


def _section(name: str, heading: str, inside: Html) -> Html:
    return tag("section", tag("h2", heading, id=name), inside)


def _head(worlds: Sequence[ReportedComparison], style: str) -> Html:
    names = " · ".join(world.name for world in worlds)
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name_="generator", content=GENERATOR),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"TTRL-Guard Lab report: {names}"),
        _asset("report.css", "style"),
        tag("style", raw(style)),
    )


def _header(worlds: Sequence[ReportedComparison], contents: Html) -> Html:
    summary = [tag("p", tag("strong", w.name), f" {words.summary(w)}") for w in worlds]
    return tag(
        "header",
        tag("a", "Skip to the report", href="#main", class_="skip"),
        tag("h1", "TTRL-Guard Lab: report"),
        tag("p", words.QUESTION, class_="lead"),
        *summary,
        tag("p", words.PLANTED, class_="note") if any(w.planted for w in worlds) else None,
        _warnings(worlds),
        contents,
    )


def _warnings(worlds: Sequence[ReportedComparison]) -> Html | None:
    notes = [f"{world.name}: {note}" for world in worlds for note in world.notes]
    if not notes:
        return None
    first = tag("p", "The numbers below are those of what the runs have written so far.")
    return tag("div", first, *(tag("p", note) for note in notes), class_="warn")


def _numbers(worlds: Sequence[ReportedComparison]) -> Html:
    columns = [tag("div", tag("h3", world.name), cards(world), _nature(world)) for world in worlds]
    how = tag("p", words.NOISE, class_="how")
    return join([how, tag("div", *columns, class_="worlds")])


def _nature(world: ReportedComparison) -> Html | None:
    """Note on what a simulated world can and cannot show."""
    if world.comparison.world != "sim":
        return None
    is_measured = world.comparison.manifests[0].config.get("policy") == MEASURED
    return tag("p", words.MEASURED if is_measured else words.SIMULATED, class_="note")


def _arms(worlds: Sequence[ReportedComparison]) -> Html:
    titles = {arm: title for world in worlds for arm, title in world.titles.items()}
    return definitions(
        (title, words.ARMS.get(arm, "Not one of the named arms: see its settings below."))
        for arm, title in titles.items()
    )


def _tables(worlds: Sequence[ReportedComparison]) -> Html:
    parts = [join([tag("h3", world.name), arm_table(world)]) for world in worlds]
    return join([tag("p", words.TABLE, class_="how"), *parts])


def _footer() -> Html:
    text = f"Made {now()} by guard-report from the run folders; nothing on this page is fetched."
    return tag("footer", tag("p", text))


def _asset(name: str, element: str) -> Html:
    content = files("lab").joinpath("assets", name).read_text(encoding="utf-8")
    return tag(element, raw(content))
