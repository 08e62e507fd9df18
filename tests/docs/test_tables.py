"""Tables stand in the pages as text, and are those that the data and the code give."""

import itertools
import re

import numpy as np
import pandas as pd
import pytest

from guard_core.rules import RULES
from lab.base.errors import UserError

MACRO = re.compile(r"^[A-Z]{4,} [\w.+-]+( [\w.+-]+)?$", re.MULTILINE)


@pytest.fixture
def tables(tool):
    return tool("tables")


def test_no_table_of_a_page_is_stale(tables):
    pages = {page.name: page.read_text(encoding="utf-8") for page in tables.PAGES}
    stale = [name for name, text in pages.items() if tables.updated(text) != text]
    assert stale == [], "run: python docs/tools/tables.py"
    assert sum(text.count("<!-- table: ") for text in pages.values()) >= 15
    assert [name for name, text in pages.items() if MACRO.search(text)] == []


def test_a_table_is_replaced_and_a_wrong_one_refused(tables):
    page = "a\n\n<!-- table: rules -->\nout of date\n<!-- end -->\n\nb"
    made = tables.updated(page)
    assert "| [`ttrl`](https://arxiv.org/abs/2504.16084) |" in made and "out of date" not in made
    assert made.endswith("<!-- end -->\n\nb")
    assert tables.updated(made) == made
    with pytest.raises(UserError, match="rules: has no <!-- end -->"):
        tables.updated(page.replace("<!-- end -->", page))
    with pytest.raises(UserError, match="rules: has no <!-- end -->"):
        tables.updated(page.replace("<!-- end -->", ""))
    with pytest.raises(UserError, match="nothing: unknown, give one of agreement,"):
        tables.updated(page.replace("rules", "nothing"))


def test_a_wrong_page_is_named_and_stays_as_it_is(tables, monkeypatch, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- table: nothing -->\n<!-- end -->\n")
    monkeypatch.setattr(tables, "PAGES", [page])
    with pytest.raises(SystemExit, match=f"{page}: table nothing: unknown"):
        tables.main()
    assert "nothing" in page.read_text()
    page.write_text("<!-- table: rules -->\n<!-- end -->\n")
    tables.main()
    assert page.read_text().count("\n") > len(RULES)


def test_every_rule_has_a_row(tables):
    head, _, *rows = tables.rules().markdown()
    columns = len(re.findall(r"(?<!\\)\|", head))
    assert columns == 7 and len(rows) == len(RULES)
    for row, (name, kind) in zip(rows, RULES.items(), strict=True):
        assert re.match(rf"\| \[`{name}`\]\(https://arxiv\.org/abs/[\d.]+\) \| ", row)
        assert (
            row.removesuffix(" |").endswith((".", ":"))
            and (kind.__doc__ or "").split("\n")[0][:20] in row
        )
        assert len(re.findall(r"(?<!\\)\|", row)) == columns
    assert any("`threshold = 0.0`, `keep = 1.0`" in row for row in rows)


def test_p_by_sign_flips_is_the_share_of_patterns_as_far_from_zero(tables):
    sign_flip = tables.sign_flip
    values = [3.0, 1.0, 2.0, np.nan]
    patterns = [abs(sum(s)) for s in itertools.product((3, -3), (1, -1), (2, -2))]
    assert sign_flip(np.array(values)) == np.mean(np.array(patterns) >= 6) == 0.25
    assert sign_flip(np.array([3.0, -1.0, 2.0])) == np.mean(np.array(patterns) >= 4) == 0.5
    assert sign_flip(pd.Series([1.0, 2.0, 3.0, 4.0])) == 0.125  # the best that four pairs can do
    assert sign_flip(np.zeros(3)) == 1 and np.isnan(sign_flip(np.ones(21)))
    assert np.isnan(sign_flip(np.array([])))


def test_the_rate_is_the_largest_at_which_few_labels_flip_at_visit_2(tables, monkeypatch):
    """Seed 11 keeps the first rate, 12 the second, and the others reach the last."""
    flips = {11: (0.08, 0.2, 0.0), 12: (0.1, 0.05, 0.2)}
    made = [
        {
            "arm": arm,
            "lr": lr,
            "seed": seed,
            "pass_final": 50.0 + seed + 10 * place - 2 * (arm == "ttrl"),
            "flips_by_visit": f"0.0 0.0 {flips.get(seed, (0.5, 0.5, 0.5))[place]} 0.0",
        }
        for seed in range(11, 19)
        for place, lr in enumerate(tables.RATES)
        for arm in tables.THREE
    ]
    rows = pd.DataFrame(made)
    monkeypatch.setattr(tables, "rows_of", lambda name: rows.copy())
    *arms, flipped, choose, last = tables.rate().rows
    assert arms[1][0] == "Vote memory" and arms[1][1].startswith("64.5 ")
    assert flipped[1:] == ["40", "41", "40"] and choose[1:] == ["1", "1", "6"]
    # 20 and 10 points are lost by the first two seeds, and 2 by every one.
    gap = np.array([-22.0, -12, *[-2.0] * 6])
    assert last[1].startswith(f"{np.mean(50 + np.arange(11, 19) + 20 + gap):.1f} ")
    assert last[2].startswith(f"{gap.mean():+.1f} [")
    assert last[2].endswith(" from Vote memory at 3.33e-06: does not hold")
    rows["pass_final"] -= 9 * (rows["arm"] == "memory") + 9 * (rows["arm"] == "recommended")
    assert tables.rate().rows[-1][2].endswith(" from TTRL at 3.33e-06: holds")
    rows = rows.drop(index=71)
    assert len(tables.rate().rows) == 5


def test_a_share_of_first_votes_has_its_differences_to_ttrl_and_to_the_vote(tables, monkeypatch):
    gains, spread = {30: -9.0, 50: 0.0, 70: 0.0, 90: 9.0}, (-1, 1, -1, 1, -1, 1)
    made = [
        {
            "task": f"first-{share}",
            "problem_seed": 0,
            "place": 0,
            "arm": arm,
            "seed": seed,
            "maj_start": float(share),
            "pass_final": share - 10 + (spread[seed - 1] + gain) * (arm == "memory"),
        }
        for seed in range(1, 7)
        for share, gain in gains.items()
        for arm in tables.THREE
    ]
    monkeypatch.setattr(tables, "rows_of", lambda name: pd.DataFrame(made))
    rows = {row[0]: row[1:] for row in tables.first().rows}
    # t of 5 degrees of freedom at level 1 - .05/20, and the spread of six pairs.
    half = 5.6042 * np.std(spread, ddof=1) / np.sqrt(6)
    for share, gain in gains.items():
        final, memory, recommended, *over_vote = rows[f"{share} %"]
        interval = f"{gain:+.1f} [{gain - half:+.1f}, {gain + half:+.1f}]"
        assert memory == (f"**{interval}**" if gain else interval)
        assert (final, recommended) == (f"{share - 10:.1f}", "0.0")
        assert over_vote[0] == over_vote[2] == "**-10.0 [-10.0, -10.0]**"
        assert f"{gain - 10:+.1f} [" in over_vote[1]
