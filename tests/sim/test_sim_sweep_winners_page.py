"""The best arm per setting in words, as tables and as a page."""

import pandas as pd
import pytest

from lab.errors import UserError
from sim.studies.sweep.winners import best_scores, winners_of
from sim.studies.sweep.winners_page import FROZEN, TIES, winner_words, write_winners

NAMES = ["step", "kappa_att", "kappa_corr"]


@pytest.fixture(scope="module")
def rows(scored):
    """Frozen labels win without transfer, TTRL with it, except where the coupling is strong."""
    none = {
        (kappa, step, arm): 60 + own
        for kappa in (0.0, 0.2)
        for step in (0.01, 0.1)
        for arm, own in (("ttrl", 0), ("guard", 1), ("frozen", 5 + 10 * step), ("truth", 20))
    }
    much = {
        (kappa, step, arm): 60 + own
        for kappa in (0.0, 0.2)
        for step in (0.01, 0.1)
        for arm, own in (("ttrl", 20), ("guard", 20 - 10 * kappa), ("frozen", 8), ("truth", 30))
    }
    parts = [scored(none, kappa_corr=0.0), scored(much, kappa_corr=0.4)]
    return pd.concat(parts, ignore_index=True)


def test_the_words_count_what_the_table_holds(rows):
    table = winners_of(rows, NAMES, 0)
    scores = best_scores(rows, NAMES[1:], "step")
    lines = winner_words(table, scores, NAMES)
    at_values = table[table["step"].notna()]
    alone = at_values[at_values["ties"] == ""]
    won = alone["winner"].value_counts()
    assert lines[0].startswith(
        f"In {len(alone)} of 8 cells of step, kappa_att and kappa_corr one arm is ahead of all "
        "others beyond noise: Frozen labels 4"
    )
    assert won["frozen"] == 4 and won.get("guard", 0) == 0
    tied = (at_values["ties"] != "").sum()
    assert f"In {tied} the best arm is tied" in lines[0]
    assert f"TTRL-Guard wins alone in 0 and ties in {tied}." in lines[1]
    assert TIES in lines and FROZEN in lines
    assert "Winners at kappa_corr 0: Frozen labels 4." in lines
    assert any(line.startswith("Winners at kappa_corr 0.4: ") for line in lines)
    at_best = next(line for line in lines if "every arm at its own best step," in line)
    assert at_best.startswith("In 3 of 4 cells of kappa_att and kappa_corr")
    gains = next(line for line in lines if line.startswith("What training gains"))
    assert "from kappa_corr 0 to 0.4: TTRL +5.0 to +25.0" in gains
    assert "Frozen labels +11.0 to +13.0" in gains
    ends = [line for line in lines if line.startswith("warning: the best step of ")]
    assert len(ends) == 2 and all("Frozen labels" in line for line in ends[:1])


def test_page_and_tables(rows, tmp_path, capsys):
    lines = write_winners(rows, NAMES, 0, tmp_path)
    assert lines[-1] == str(tmp_path / "winners.html")
    assert "kappa_corr 0.4" in capsys.readouterr().out
    found = pd.read_csv(tmp_path / "winners.csv")
    assert len(found) == 8 + 4 and list(found.columns[:4]) == [*NAMES, "winner"]
    assert len(pd.read_csv(tmp_path / "own_best.csv")) == 4 * 4
    page = (tmp_path / "winners.html").read_text()
    assert page.count('class="plot"') == 2 and "Frozen labels never change" in page
    assert "://" not in page.split("<script>")[0]
    write_winners(rows, NAMES, 0, tmp_path)
    (tmp_path / "winners.html").write_text("mine")
    with pytest.raises(UserError, match=r"winners.html: exists and is no page"):
        write_winners(rows, NAMES, 0, tmp_path)


def test_one_setting_and_settings_without_a_step(rows, tmp_path):
    few = rows[(rows["kappa_att"] == 0) & (rows["kappa_corr"] == 0)]
    lines = write_winners(few, ["step"], 0, tmp_path)
    assert lines[1].startswith("In 2 of 2 cells of step one arm is ahead")
    other = rows[rows["step"] == 0.1]
    (tmp_path / "b").mkdir()
    lines = write_winners(other, ["kappa_att", "kappa_corr"], 0, tmp_path / "b")
    assert lines[1].startswith("In 3 of 4 cells of kappa_att and kappa_corr")
    assert not any("own best step" in line for line in lines)
    assert not (tmp_path / "b" / "own_best.csv").exists()


def test_too_many_small_charts_are_said(rows, tmp_path):
    many = pd.concat([rows.assign(load_sd=n / 10) for n in range(30)], ignore_index=True)
    few = many[many["arm"].isin(["ttrl", "frozen"]) & (many["step"] == 0.1)]
    write_winners(few, ["kappa_att", "load_sd", "kappa_corr"], 0, tmp_path)
    page = (tmp_path / "winners.html").read_text()
    assert "30 small charts are too many to draw; all cells are in winners.csv" in page
    assert page.count('class="plot"') == 0
