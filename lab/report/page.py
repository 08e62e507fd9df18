"""The page as a whole: one file that needs nothing from outside."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from lab.collection import Skipped
from lab.manifest import now
from lab.report import words
from lab.report.digest import World
from lab.report.html import Html, definitions, join, raw, tag
from lab.report.numbers import arm_table, cards
from lab.report.plots import library
from lab.report.runs import left_out, provenance
from lab.report.sections import figure_sections, render

GENERATOR = "ttrl-guard-lab report"
"""Marks a page as ours, so that it may be overwritten."""

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
"""The browser itself refuses to load anything from outside."""


def page(worlds: Sequence[World], skipped: Sequence[Skipped]) -> str:
    """The report as HTML.

    Args:
        worlds: the comparisons, side by side.
        skipped: folders that were left out.
    """
    parts = _parts(worlds, skipped)
    contents = [tag("li", tag("a", heading, href=f"#{name}")) for name, heading, _ in parts]
    sections = [_section(name, heading, inside) for name, heading, inside in parts]
    body = tag(
        "body",
        _header(worlds, contents),
        tag("main", *sections, id="main"),
        _footer(),
        library(),
        _asset("js", "script"),
    )
    return f"<!doctype html>\n{tag('html', _head(worlds), body, lang='en')}\n"


def _parts(worlds: Sequence[World], skipped: Sequence[Skipped]) -> list[tuple[str, str, Html]]:
    """Anchor, heading and content of every section."""
    parts = [
        ("numbers", "The numbers that matter", _numbers(worlds)),
        ("arms", "What the arms are", _arms(worlds)),
        ("table", "All arms in one table", _tables(worlds)),
        *((s.name, s.heading, render(s, worlds)) for s in figure_sections()),
        ("runs", "The runs and their settings", join(provenance(world) for world in worlds)),
    ]
    if skipped:
        parts.append(("left-out", "Folders that were left out", left_out(skipped)))
    return parts


def _section(name: str, heading: str, inside: Html) -> Html:
    return tag("section", tag("h2", heading, id=name), inside)


def _head(worlds: Sequence[World]) -> Html:
    names = " · ".join(world.name for world in worlds)
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name_="generator", content=GENERATOR),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"TTRL-Guard Lab report: {names}"),
        _asset("css", "style"),
    )


def _header(worlds: Sequence[World], contents: Sequence[Html]) -> Html:
    summary = [tag("p", tag("strong", w.name), f" {words.summary(w)}") for w in worlds]
    return tag(
        "header",
        tag("a", "Skip to the report", href="#main", class_="skip"),
        tag("h1", "TTRL-Guard Lab: report"),
        tag("p", words.QUESTION, class_="lead"),
        *summary,
        tag("p", words.PLANTED, class_="note") if any(w.planted for w in worlds) else None,
        _warnings(worlds),
        tag("nav", tag("ol", *contents), aria_label="Contents"),
    )


def _warnings(worlds: Sequence[World]) -> Html | None:
    notes = [f"{world.name}: {note}" for world in worlds for note in world.comparison.notes]
    if not notes:
        return None
    first = tag("p", "Some runs did not finish; their numbers are those of what was written.")
    return tag("div", first, *(tag("p", note) for note in notes), class_="warn")


def _numbers(worlds: Sequence[World]) -> Html:
    columns = [tag("div", tag("h3", world.name), cards(world), _nature(world)) for world in worlds]
    how = tag("p", words.NOISE, class_="how")
    return join([how, tag("div", *columns, class_="worlds")])


def _nature(world: World) -> Html | None:
    """What a simulated world can and cannot show."""
    return tag("p", words.SIMULATED, class_="note") if world.comparison.world == "sim" else None


def _arms(worlds: Sequence[World]) -> Html:
    titles = {arm: title for world in worlds for arm, title in world.titles.items()}
    return definitions(
        (title, words.ARMS.get(arm, "Not one of the named arms: see its settings below."))
        for arm, title in titles.items()
    )


def _tables(worlds: Sequence[World]) -> Html:
    parts = [join([tag("h3", world.name), arm_table(world)]) for world in worlds]
    return join([tag("p", words.TABLE, class_="how"), *parts])


def _footer() -> Html:
    text = f"Made {now()} by guard-report from the run folders; nothing on this page is fetched."
    return tag("footer", tag("p", text))


def _asset(kind: str, element: str) -> Html:
    content = files("lab").joinpath("assets", f"report.{kind}").read_text(encoding="utf-8")
    return tag(element, raw(content))
