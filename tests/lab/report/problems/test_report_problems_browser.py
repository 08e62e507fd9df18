"""The table of problems and the lives that it opens, in a real browser."""

import numpy as np
import pytest

from lab.figures.problems import life_figure
from lab.measures.problems import problem_life, vote_areas
from lab.report.html import asset, library, tag
from lab.report.problems import problem_sections

TABLE = "#problem-table-0"


def tables_page(worlds):
    """The tables alone, so that no test waits for the figures of the report."""
    style = tag("style", asset("problems.css"), asset("report.css"))
    scripts = [library(), tag("script", asset("problems.js"))]
    page = tag("body", tag("main", problem_sections(worlds)), *scripts)
    return f"<!doctype html><meta charset='utf-8'>{style}{page}"


@pytest.fixture(scope="module")
def report(with_texts, without_votes, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "r.html"
    path.write_text(tables_page([with_texts, without_votes]), encoding="utf-8")
    return path


def table_of(page, table=TABLE):
    page.locator(table).scroll_into_view_if_needed()
    page.wait_for_selector(f"{table} tbody tr")
    return page.locator(table)


def shown(page, problem, arm, replicate):
    page.wait_for_selector(f".life-plot[data-shown='{problem}-{arm}-{replicate}']")
    return page.evaluate(
        """() => document.querySelector('.life-plot').data.map(trace => ({
            meta: trace.meta, name: trace.name, x: Array.from(trace.x), y: Array.from(trace.y),
            fillcolor: trace.fillcolor, custom: trace.customdata && Array.from(trace.customdata),
        }))"""
    )


def numbers(table):
    return [int(text) for text in table.locator("tbody th button").all_text_contents()]


def opened(page, problem, world=0):
    table = table_of(page, f"#problem-table-{world}")
    table.get_by_role("button", name=str(problem), exact=True).click()
    return shown(page, problem, 0, 0)


def expected(trace, replicate, problem):
    names = trace.answer_texts(replicate, problem)
    life = problem_life(trace.visits, replicate, problem)
    return life_figure(life, vote_areas(trace, replicate, problem, top=5), names).data


def test_search_finds_numbers_and_ids_and_the_fates_of_an_arm(visit, report, with_texts):
    page = visit(report)
    table = table_of(page)
    count = table.locator("output")
    assert count.inner_text() == "shown 10 of 10"
    search = table.get_by_role("searchbox", name="Search")
    search.fill("7")
    assert numbers(table) == [7]
    for name, problem in (("ID-4", 4), ("62", 9)):
        search.fill(name)
        assert numbers(table) == [problem]
    search.fill("")
    table.get_by_label("Numbers of").select_option("replicate 0 (seed 0)")
    table.get_by_label("Arm", exact=True).select_option("TTRL-Guard")
    table.get_by_label("Fate", exact=True).select_option("Always Wrong")
    fates = with_texts.comparison.fates("guard")
    own = fates[fates["replicate"] == 0].set_index("problem")["fate"]
    wanted = own.index[own == "Always Wrong"].tolist()
    assert 0 < len(wanted) < 10
    assert numbers(table) == wanted
    assert count.inner_text() == f"shown {len(wanted)} of 10"


def test_columns_are_sorted_by_keyboard_and_the_unknown_is_last(visit, report, with_texts):
    page = visit(report)
    table = table_of(page)
    table.get_by_role("button", name="initial label accuracy").first.focus()
    page.keyboard.press("Enter")
    fates = with_texts.comparison.fates("ttrl")
    mean = fates.groupby("problem", observed=True)["ila"].mean().round(3)
    assert numbers(table) == [*mean.sort_values(kind="stable").index, 1]
    assert table.locator("th[aria-sort=ascending]").inner_text().startswith("ILA")
    page.keyboard.press("Enter")  # the focus stays on the column
    down = numbers(table)
    assert down[-1] == 1
    assert mean[down[:-1]].is_monotonic_decreasing
    table.get_by_role("button", name="commonest fate").first.click()
    assert table.locator("td.fate[data-arm='0']").last.inner_text() == "not known"


@pytest.mark.parametrize("world", [0, 1], ids=["votes", "shares"])
def test_a_life_is_drawn_as_life_figure_draws_it(visit, report, world, with_texts, without_votes):
    found = opened(visit(report), 4, world)
    wanted = expected((with_texts, without_votes)[world].comparison.traces["ttrl"], 0, 4)
    assert [t["name"] for t in found] == [t.name for t in wanted]
    for drawn, other in zip(found, wanted, strict=True):
        assert drawn["fillcolor"] == other.fillcolor and drawn["x"] == other.x.tolist()
        np.testing.assert_allclose(np.array(drawn["y"], float), other.y, atol=6e-3)


def test_a_life_is_of_the_replicate_whose_numbers_are_shown(visit, report):
    page = visit(report)
    table = table_of(page)
    table.get_by_label("Numbers of").select_option("replicate 1 (seed 0)")
    table.get_by_role("button", name="4", exact=True).click()
    shown(page, 4, 0, 1)


def test_the_keyboard_alone_opens_and_closes_a_life(visit, report):
    page = visit(report)
    table_of(page).locator("tbody button").first.focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    shown(page, 1, 0, 0)
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog:not([open])", state="attached")
    assert page.evaluate("document.activeElement.textContent") == "1"


@pytest.mark.parametrize("width", [1280, 390])
def test_markup_in_answers_and_ids_is_shown_as_text(visit, report, width, evil):
    page = visit(report, width)
    names = [trace["name"] for trace in opened(page, 3)]
    assert any(name.startswith("&lt;img src=x") for name in names)
    legend = page.locator(".life-plot .legendtext").all_text_contents()
    assert any(text.startswith("<img src=x") for text in legend)
    assert page.locator("dialog img, .problems img, .problems b, dialog b").count() == 0
    assert page.locator("#life-title").inner_text().startswith(f"Problem 3 (id-3-{evil})")
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    box = page.locator(".life-plot .main-svg").first.bounding_box()
    assert box["width"] <= width
