"""The table of all problems, which opens each problem's life (drawn by the page's scripts)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from lab.figures.style import FATE_COLOURS
from lab.report.content.digest import ReportedComparison
from lab.report.elements.html import Html, join, raw, tag
from lab.report.problems.columns import WORST_FIRST, problem_columns, problem_ids, redrawn
from lab.report.problems.life_data import BUDGET, TOP, Key, packed_lives
from lab.report.problems.life_template import life_templates
from lab.report.problems.packing import Array, pack

HOW = (
    "One row per problem; click it, or press Enter on its number, for its life: the votes of each "
    "visit, the label, the flip rate FR, the weight and the route. Over all replicates the fate is "
    "the commonest one (the worse of two) and stands with how many share it, the other numbers are "
    "means. The search takes a problem's number, or words that one arm's title and fate hold: "
    "“Degraded guard” finds what the guard lost, “degraded -marginal” leaves out the marginally "
    "degraded."
)
REDRAWN = (
    "Every replicate of this simulation drew its own problems: the same number in two replicates "
    "means two problems, but in one replicate it is the same problem under every arm. So the table "
    "shows one replicate at a time."
)
SCRIPTS = ("lives.js", "life_view.js", "problems.js")
"""In the order in which they must stand on the page."""
STYLE = "problems.css"

_FATE = ("fate", "fate", "commonest fate")
_LABEL_ACCURACY = (
    ("ila", "ILA", "initial label accuracy in percent (first three visits)"),
    ("fla", "FLA", "final label accuracy in percent (last five visits)"),
)
_MATCH_RATE = (
    ("first", "first MR", "match rate in percent (first three visits)"),
    ("last", "last MR", "match rate in percent (last five visits)"),
)
_FLIPS = ("flips", "flips", "label changes in training")


def problem_sections(worlds: Sequence[ReportedComparison], budget: int = BUDGET) -> Html:
    """The table of each comparison, with the numbers and lives that its script draws from.

    Args:
        worlds: the comparisons, in the order of the page.
        budget: characters for all lives; see `packed_lives` for which are left out.
    """
    lives = packed_lives(worlds, budget)
    parts = [_world(world, place, lives[place]) for place, world in enumerate(worlds)]
    templates = _data("life-templates", _json(life_templates(TOP)))
    return join([tag("p", HOW, class_="how"), *parts, templates])


def problem_assets() -> tuple[str, str]:
    """Style and script of the tables; the script wants to stand after the tables."""
    folder = files("lab").joinpath("assets")
    scripts = [folder.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS]
    return folder.joinpath(STYLE).read_text(encoding="utf-8"), "\n".join(scripts)


def _world(world: ReportedComparison, place: int, lives: Mapping[Key, str]) -> Html:
    name = f"problem-table-{place}"
    opened = [sorted(r for arm, r in lives if arm == k) for k in range(len(world.comparison.arms))]
    several = len(world.comparison.pairs) > 1
    columns = problem_columns(world, dict(enumerate(opened)) if several else {})
    about = _about(world, place, opened, columns)
    blocks = [_data(f"life-{place}-{arm}-{r}", text) for (arm, r), text in lives.items()]
    hidden = tag("noscript", tag("p", "The table of problems needs JavaScript.", class_="absent"))
    return join(
        [
            tag("h3", world.name),
            tag("p", REDRAWN, class_="note") if redrawn(world) else None,
            tag("p", _which(world, opened), class_="how"),
            tag("div", hidden, id=name, class_="problems", data_about=f"{name}-about"),
            _data(f"{name}-about", _json(about | {"numbers": f"{name}-numbers"})),
            _data(f"{name}-numbers", pack(columns)),
            *blocks,
        ]
    )


def _about(
    world: ReportedComparison, place: int, opened: list[list[int]], columns: Mapping[str, Array]
) -> dict[str, Any]:
    """Data of the script other than the numbers; it treats all text as text."""
    arms = world.comparison.arms
    fates = np.stack([columns[f"{k}.fate"] for k in range(len(arms))])
    kinds = [_FATE, *_LABEL_ACCURACY] if fates.any() else []
    kinds += [] if fates.all() else _MATCH_RATE
    return {
        "world": place,
        "title": world.name,
        "caption": f"All problems, {world.name}; ILA, FLA and MR in percent",
        "hint": "12, or Degraded guard" if fates.any() else "12",
        "arms": [{"name": arm, "title": world.titles[arm]} for arm in arms],
        "ids": problem_ids(world),
        "replicates": _replicates(world),
        "lives": opened,
        "redrawn": redrawn(world),
        "fates": [{"name": name, "colour": FATE_COLOURS[name]} for name in WORST_FIRST],
        "kinds": [dict(zip(("key", "name", "meaning"), k, strict=True)) for k in [*kinds, _FLIPS]],
    }


def _replicates(world: ReportedComparison) -> list[str]:
    """A name per replicate number; the number is that of the trace of all seeds."""
    pairs = world.comparison.pairs
    alone = len({seed for seed, _ in pairs}) == len(pairs)
    return [f"seed {seed}" if alone else f"{n} (seed {seed})" for n, (seed, _) in enumerate(pairs)]


def _which(world: ReportedComparison, opened: list[list[int]]) -> str:
    """Lives that are on the page."""
    n = len(world.comparison.pairs)
    everyone = len(set(map(tuple, opened))) == 1
    if everyone and len(opened[0]) == n:
        return f"The lives of all {n} replicates can be opened." if n > 1 else ""
    why = "to keep the page small; lab.measures.life reads the others from the run folder"
    if everyone:
        return f"The lives of {_span(opened[0])} of {n} replicates can be opened, {why}."
    arms = zip(world.comparison.arms, opened, strict=True)
    each = ", ".join(f"{world.titles[arm]} {_span(own)}" for arm, own in arms)
    return f"The lives of these of {n} replicates can be opened, {why}: {each}."


def _span(numbers: list[int]) -> str:
    if not numbers:
        return "none"
    whole = len(numbers) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]} to {numbers[-1]}" if whole else ", ".join(map(str, numbers))


def _data(name: str, text: str) -> Html:
    """Text for the script, which the browser neither runs nor shows."""
    return tag("script", raw(text), type="text/plain", id=name)


def _json(value: Any) -> str:
    """JSON that cannot end its element: `<` only stands in its strings."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e")
