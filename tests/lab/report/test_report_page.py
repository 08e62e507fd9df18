import html
import json
import re

import numpy as np
import pytest
from page_parts import PER_WORLD, figures_of, outline, without_scripts

from lab.compare.tables import comparison_table, headline
from lab.report.digest import read
from lab.report.export import figures
from lab.report.html import Absent, library
from lab.report.markdown import markdown
from lab.report.page import page
from lab.report.problems import BUDGET
from lab.report.sections import Section, render

EVIL = "<img src=x onerror=\"document.title='owned'\"></script><script>alert(1)</script>"


@pytest.fixture(scope="module")
def content(worlds):
    return page(worlds, [])


def test_both_worlds_stand_side_by_side_and_every_figure_has_its_name(content, worlds):
    plain = without_scripts(content)
    for section in (*PER_WORLD, "overhead", "problems"):
        part = plain.split(f'id="{section}"')[1].split("</section>")[0]
        assert "Simulator: llama-math500" in part and "Real model: tiny" in part
    names = [*PER_WORLD[2:-1], "fates", "first", "guard-guard", "prediction-guard"]
    names += [f"paired-{arm}" for arm in ("ttrl", "matched", "vote")]
    expected = {f"{slug}-{name}" for slug in ("sim-llama-math500", "real-tiny") for name in names}
    assert set(figures_of(content)) == {f"{name}-data" for name in expected}
    assert set(figures(worlds, [])) == expected


def test_a_page_of_the_demo_stays_below_three_megabytes(content):
    lives = sum(map(len, re.findall(r' id="life-\d[^>]*>([^<]*)<', content)))
    assert lives > 10_000
    # The demo has three comparisons; its tables of 500 problems take 60,000 characters each.
    rest = (len(content) - len(library()) - lives) / 2 + 60_000
    assert len(library()) + BUDGET + 3 * rest < 3_000_000


def test_figures_hold_the_data_of_the_tables(content, worlds):
    bars = figures_of(content)["sim-llama-math500-fates-data"]["data"]
    degraded = next(trace for trace in bars if trace["name"] == "Degraded")
    shares = worlds[0].metrics["Degraded"].groupby(level="arm").mean()
    expected = [shares[arm] for arm in worlds[0].comparison.arms]
    assert degraded["x"] == pytest.approx(expected, rel=1e-4)


def test_the_numbers_are_those_of_the_headline(content, worlds):
    plain = without_scripts(content)
    for world in worlds:
        _, guard, _ = headline(world.comparison)
        for part in guard.parts:
            assert f"{part.label} {part.value.mean:+.1f} points" in plain


def test_the_table_has_every_arm_with_its_replicates(content, worlds):
    plain = without_scripts(content)
    summary = comparison_table(worlds[0].metrics).loc["ttrl"]
    mean, sd = (summary["pass_final", what] for what in ("mean", "sd"))
    assert f'{mean:.1f}<span class="spread"> ± {sd:.1f}</span>' in plain
    assert '<th scope="col">' in plain and '<th scope="row"' in plain
    row = plain.split(">L/D<")[1].split("</tr>")[0]
    assert worlds[0].metrics.loc["frozen", "L/D"].isna().all() and "nothing degraded" in row
    assert plain.count(">n = 4<") == 5 and plain.count(">n = 3<") == 5


def test_flip_rates_are_in_percent(content, worlds):
    peaks = worlds[0].dynamics.groupby(["arm", "replicate"])["flip_rate"].max()
    row = content.split("highest flip rate of an epoch (% of problems)")[1].split("</tr>")[0]
    means = [100 * peaks[arm].mean() for arm in worlds[0].comparison.arms]
    assert [*map(float, re.findall("<td>([0-9.]+) ", row))] == pytest.approx(means, abs=0.06)


def test_lost_problems_are_counted_among_those_with_a_known_answer(make_trace, save, tmp_path):
    accuracy = [[1.0] * 5 + [0.0] * 5, [np.nan] * 10, [np.nan] * 10]
    save(make_trace("ttrl", [accuracy], np.full((1, 10), 0.5)), tmp_path / "ttrl")
    content = page(*read([tmp_path]))
    assert "Lost problems per replicate on average: TTRL 1.0." in content


def test_planted_rivals_are_declared_where_the_tiny_task_is_shown(content, worlds):
    assert "wrong rivals are planted" in content
    assert not worlds[0].planted


def test_nothing_comes_from_outside(content):
    found = outline(content)
    assert found.sources == []
    assert all(link.startswith("#") for link in found.links)
    assert {link[1:] for link in found.links} <= set(found.ids)
    assert "@import" not in content
    assert "default-src 'none'" in html.unescape(content)


def test_headings_are_in_order_and_ids_are_unique(content):
    found = outline(content)
    assert found.headings[0] == found.headings.count(1) == 1
    assert all(b - a <= 1 for a, b in zip(found.headings, found.headings[1:], strict=False))
    assert len(set(found.ids)) == len(found.ids)


def test_contents_name_every_section_by_group(content):
    plain = without_scripts(content)
    nav = plain.split("<nav")[1].split("</nav>")[0]
    linked = re.findall(r'href="#([^"]+)"', nav)
    assert linked == re.findall(r'<section><h2 id="([^"]+)"', plain)
    assert nav.index("The guard") < nav.index("#guard") < nav.index("#overhead")
    assert nav.count("<ul>") == 5 and "open" not in nav


def test_a_section_without_data_is_one_line(worlds):
    empty = Section("nothing", "", "", "How to read it.", lambda _: [Absent("Not <measured>.")])
    part = render(empty, worlds)
    assert part.count("Not &lt;measured&gt;.") == 1
    assert "<h3>" not in part and "How to read it" not in part


def test_every_figure_is_described(content):
    described = re.findall(r'class="plot" role="img" aria-label="([^"]+)"', content)
    assert len(described) == len(set(described)) == 2 * len(PER_WORLD) + 8


def test_markup_in_a_run_is_shown_and_never_executed(add_run, tmp_path):
    evil = {"title": EVIL, "task": EVIL, "backend": EVIL, "extra": {EVIL: EVIL}}
    for name in ("ttrl", "guard", "matched", f"arm {EVIL}"):
        config = {"note": EVIL, EVIL: {"deep": [EVIL, 1.5]}, "labels": name}
        add_run(tmp_path / re.sub(r"\W", "", name), name, 0, 2, config=config, **evil)
    for path in tmp_path.glob("*/run.json"):
        run = json.loads(path.read_text())
        run |= {"command": EVIL, "commit": EVIL, "machine": {EVIL: EVIL}, "versions": {"x": EVIL}}
        run |= {"status": "failed", "error": EVIL, "started": EVIL, "ended": EVIL}
        path.write_text(json.dumps(run))
    (tmp_path / "<b>broken").mkdir()
    (tmp_path / "<b>broken" / "run.json").write_text("{")
    content = page(*read([tmp_path]))
    assert not {"img", "b", "i"} & set(outline(content).tags)
    plain = without_scripts(content)
    assert plain.count("&lt;img src=x") > 10 and "&lt;b&gt;broken" in plain
    assert len(re.findall("<script", content)) == len(re.findall("</script>", content))
    drawn = figures_of(content)
    assert {"fates", "scissor"} <= {name.split("-")[-2] for name in drawn}
    assert "<img" not in json.dumps(drawn) and "&lt;img" in json.dumps(drawn)


def test_settings_and_provenance(content, worlds):
    plain = without_scripts(content)
    runs_part = plain.split('id="runs"')[1]
    differing = runs_part.split("Settings that differ between the arms")[1].split("</table>")[0]
    assert "guard.frs" in differing and "guard.label_from" in differing
    assert "guard.W" not in differing
    assert "<dt>guard.W</dt><dd><code>5</code></dd>" in runs_part
    assert "<td>0, 1, 2</td><td>3</td><td><div>3 finished</div></td>" in runs_part
    run = worlds[0].comparison.runs["ttrl"][0]
    assert run.versions["numpy"] in runs_part and run.command.split()[0] in runs_part


def test_the_guard_skips_as_much_in_words_as_in_the_table(make_trace, save, tmp_path):
    trace = make_trace("guard", np.full((1, 2, 4), 0.5), np.full((1, 4), 0.5))
    visits = trace.visits.assign(skipped=trace.visits["visit"] == 3)
    trace.visits = visits[(visits["visit"] < 3) | (visits["problem"] == 0)]
    save(trace, tmp_path / "guard")
    ((world,), _) = read([tmp_path])
    assert world.metrics["skipped"].item() == 20
    assert world.metrics["update"].isna().all(), "no TTRL run to relate it to"
    assert "20.0 % were skipped" in page([world], [])


def test_arms_of_one_title_are_told_apart(add_run, tmp_path):
    for arm in ("scope", "mine"):  # a rule of a user's own that inherits its title
        add_run(tmp_path / arm, arm, title="SCOPE")
    ((world,), _) = read([tmp_path])
    assert world.titles == {"mine": "SCOPE (mine)", "scope": "SCOPE (scope)"}
    assert "| SCOPE (mine) | SCOPE (scope) |" in markdown([world])
