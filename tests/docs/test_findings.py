"""Numbers in the text of README and of the pages with results are those that docs/data gives."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from lab.base.arms import VOTE
from lab.base.columns import where
from lab.base.stats import differences, estimate
from lab.compare.agreement import COPY, MEASURED, OTHER_HALF
from lab.compare.tables import with_vote
from sim.theory import lock_in

ROOT = Path(__file__).parents[2]
DATA = ROOT / "docs" / "data"
HARDEST = "llama-math500"
"""The row in which the readings of the guard differ."""
TASKS = ("arithmetic", "collatz")
TABLE = re.compile(r"<!-- table: .*?<!-- end -->", re.DOTALL)
INTERVAL = re.compile(r"([-+]?[\d.]+)\*{0,2}(?: %| points)? \\?\[([-+]?[\d.]+), ([-+]?[\d.]+)\]")
NOT_KEPT = "## The flip rate predicts lost problems poorly"
"""Of this section's runs no rows are kept."""


def text_of(name):
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


def intervals(text):
    """Mean, low and high of every interval, by the digits shown."""
    return {tuple(map(float, found)) for found in INTERVAL.findall(" ".join(text.split()))}


def rounded(found):
    return tuple(round(x, 1) for x in (found.mean, found.low, found.high))


@pytest.fixture(scope="module")
def page(tool):
    return tool("protocol_page")


@pytest.fixture(scope="module")
def study():
    """Runs on products: final pass@1 by learning rate, arm and seed, the vote as an arm."""
    first, further = (pd.read_csv(DATA / f"language-{name}.csv") for name in ("model", "seeds"))
    runs = pd.concat([where(first, task="multiplication"), further], ignore_index=True)
    return with_vote(runs, ["lr", "seed"]).set_index(["lr", "arm", "seed"]).sort_index()


@pytest.fixture(scope="module")
def single(study):
    return pd.read_csv(DATA / "language-float32.csv").set_index(["lr", "seed"]).sort_index()


def computed(page, study, single):
    """Intervals of the text that no table has: TTRL's rivals at 1e-5, precision, later arms."""
    slow = study["pass_final"].loc[1e-5]
    for name in ("guard", "memory", "recommended"):
        yield estimate(differences(slow[name], slow["ttrl"]), 1 - 0.05 / 6)
    for name in ("ttrl", "memory", "recommended"):
        yield estimate(differences(slow[name], slow[VOTE]))
    low = study["pass_final"].loc[3e-5, "ttrl"]
    yield estimate(differences(single.loc[3e-5, "pass_final"], low[low.index <= 4]))
    finals = page.read("confirm-beyond").set_index(["seed", "arm"])["pass_final"].unstack()
    for base in ("frozen", "memory"):
        yield estimate(differences(finals["recommended"], finals[base]), 1 - 0.05 / 2)
    rows = pd.concat([page.read("confirm-arithmetic"), page.read("confirm-others")])
    finals = where(rows, lr=3e-4).set_index(["problem_seed", "seed", "arm"])["pass_final"].unstack()
    yield estimate(differences(finals["braked"], finals["ttrl"]))


@pytest.mark.parametrize("name", ["README.md", "docs/findings.md", "docs/language-model.md"])
def test_every_interval_of_the_text_is_in_a_table_or_follows_from_rows(name, page, study, single):
    known = {rounded(found) for found in computed(page, study, single)}
    known |= intervals((DATA / "confirm-means.csv").read_text())
    for path in (ROOT / "docs").glob("*.md"):
        known |= intervals(" ".join(TABLE.findall(path.read_text(encoding="utf-8"))))
    text = TABLE.sub("", (ROOT / name).read_text(encoding="utf-8")).partition(NOT_KEPT)[0]
    shown = intervals(text)
    assert shown and sorted(shown - known) == []


def test_the_readme_is_short_and_answers_first():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first, rest = text.partition("## Documentation")[::2]
    assert len(first.split()) <= 900 and rest
    (table,) = TABLE.findall(text)
    assert len(re.findall(r"^\|", table, re.MULTILINE)) <= 6 and "no training" in table
    assert first.index("git clone") < 3400 and first.index(table) < first.index("git clone")


def test_means_of_the_tiny_tasks(page):
    text = text_of("docs/findings.md")
    for task, recommended, plain in (
        ("arithmetic", "{0:.0f} to {1:.0f} % on the first", "from {1:.0f} to {0:.0f}"),
        ("collatz", "{0:.0f} to {1:.0f} % on the second", "from {1:.0f} to {0:.0f}"),
    ):
        table = page.read(f"confirm-{task}")
        for arm, words in (("recommended", recommended), ("ttrl", plain)):
            means = where(table, arm=arm).groupby("lr")["pass_final"].mean()
            assert words.format(means.min(), means.max()) in text, (task, arm)
        assert [row[2] for row in page.conditions(table).rows] == ["yes", "no", "yes", "no"]
        for name in ("guard", "frozen", "memory"):
            own = page.over_sets(where(table, lr=5e-5), name)
            assert own.within_noise and page.over_sets(where(table, lr=5e-5), "guard").high < 2
        table = with_vote(table, ["lr", "problem_seed", "seed", "place"])
        free = sorted({*table["arm"]} - {VOTE, "truth", "ttrl"})
        slow = [where(table, lr=lr) for lr in (5e-5, 1.5e-4)]
        assert max(page.over_sets(own, arm).mean for own in slow for arm in free) < 6


def test_label_free_arms_against_the_vote_before_training(page):
    above, n = 0, 0
    for task in TASKS:
        table = page.read(f"confirm-{task}")
        table = with_vote(table, ["lr", "problem_seed", "seed", "place"])
        for lr in sorted(table["lr"].unique()):
            for arm in sorted({*table["arm"]} - {VOTE, "truth"}):
                found = page.over_sets(where(table, lr=lr), arm, VOTE)
                above, n = above + (found.low > 0), n + 1
    assert (above, n) == (2, 54)
    assert "Of the 54 intervals" in text_of("docs/findings.md")


def test_the_simulator(page, study):
    text, rows = text_of("docs/findings.md"), page.read("sim-llama")
    llama = where(rows, lr=0.06, arm="ttrl")
    assert f"give {llama['TotalDeg'].mean():.1f} %" in text
    assert f"is {llama['lost_once'].mean():.0f} % of TotalDeg" in text
    own = study.loc[3e-5, "ttrl"]
    once = np.average(own["lost_once"], weights=own["TotalDeg"])
    assert f"on the pretrained model's products {once:.0f} %" in text
    null = where(page.read("sim-null"), arm="ttrl").groupby("task").mean(numeric_only=True)
    assert null["TotalDeg"]["independent llama-math500"] < 0.1
    degraded = f"{null['Degraded']['features llama-math500']:.1f}".removeprefix("0")
    assert f"TTRL degrades {degraded} % of the problems" in text
    means = rows.groupby(["arm", "lr"])["pass_final"].mean()
    start = rows["pass_start"].mean()
    assert all(means[arm].max() < start for arm in ("ttrl", "guard", "matched", "memory"))
    assert f"model, {start:.1f} %, at any" in text and means["frozen"].max() > start
    assert f"wrong with probability {100 * lock_in(0.55, 0.1, 64, 32):.1f} %" in text


def test_the_readings_of_the_guard_on_the_paper_s_rows(tool):
    page, text = tool("readings"), text_of("docs/calibration.md")
    table = pd.read_csv(page.PAPER, comment="#")
    rest = table[table["row"] != HARDEST]
    guards = ("guard", "guard,flip_rate=instant", "guard_release")
    errors = page.paper_errors(rest).set_index("arm")["fates"]
    assert (
        "err by {:.2f}, {:.2f} and {:.2f} points".format(*(errors[name] for name in guards)) in text
    )
    copy, all_copy = (
        page.paper_errors(copies(rows)).set_index("arm")["fates"]["guard"] for rows in (rest, table)
    )
    assert f"by {copy:.2f} in place of {all_copy:.2f}" in text
    given, n_draws = page.weighted(HARDEST, False), pd.read_csv(page.DRAWS)["draw"].nunique()
    assert f"Of {n_draws} mechanisms" in text and f"{len(given)} fit the TTRL row" in text
    assert page.weighted(HARDEST, True)["draw"].nunique() == 2 and "Two mechanisms" in text
    ends = [
        re.findall(r"\[([\d.]+), ([\d.]+)\]", cell)[0] for cell in page.predictions().rows[0][-3:]
    ]
    low, high = min(float(e[0]) for e in ends), max(float(e[1]) for e in ends)
    assert f"from {low:.0f} to {high:.0f} % Degraded" in text_of("docs/findings.md")


def copies(table):
    """The rows of the guard as a copy of TTRL's predicts them."""
    base = table[table["kind"] == "ttrl"].set_index(["row", "cell"])["published"]
    guard = table[table["kind"] == "guard"]
    keys = pd.MultiIndex.from_frame(guard[["row", "cell"]])
    both = guard.assign(predicted=base.reindex(keys).to_numpy())
    return pd.concat([table[table["kind"] == "ttrl"], both], ignore_index=True)


def test_the_study_of_the_readings(page):
    text, rows = text_of("docs/findings.md"), page.read("readings-tiny")
    table = page.comparisons(rows)
    assert set(table["pairs"]) == {36}
    concluded = {
        "closed, 0.0003": ["no difference"] * 4,
        "arithmetic, 0.0003": ["inconclusive", "helps", "inconclusive", "inconclusive"],
        "collatz, 0.0003": ["no difference", *["inconclusive"] * 3],
    }
    for cell, conclusions in concluded.items():
        own = table[table["cell"] == cell]
        assert [*own["conclusion"]] == [*conclusions, "", ""]
        means = where(rows, task=cell.partition(",")[0], lr=3e-4, arm="ttrl")
        start, end = means["pass_start"].mean(), means["pass_final"].mean()
        move = "rises" if end > start else "falls"
        assert f"{move} from {start:.0f} to {end:.0f} %" in text
    lower = table[table["cell"].str.endswith(", 0.0002")]
    (found,) = lower[(lower["low"] > 0) | (lower["high"] < 0)].itertuples()
    assert found.cell == "collatz, 0.0002" and "`replayed" in found.comparison


def test_the_vote_of_the_rules_page():
    runs = pd.read_csv(DATA / "tiny-arms.csv").query("seed < 3")
    vote = runs.drop_duplicates("seed")["maj_start"].mean()
    assert f"right on {vote:.1f} % in these seeds" in text_of("docs/rules.md")
    means = pd.read_csv(DATA / "tiny-rules-means.csv").set_index("arm")
    assert means.loc["Vote before training"].eq(round(vote, 1)).all()


def test_the_measured_model(tool):
    page, text, errors = tool("tables"), text_of("docs/agreement.md"), {}
    for name in ("seed0", "seed23", "seed24", "seed25"):
        found = page.mean_errors(page.read(name)).set_index("prediction")["final"]
        errors[name] = f"{found[MEASURED]:.1f}", f"{found[OTHER_HALF]:.1f}"
    (own, other), *held_out = errors.values()
    assert f"to {own} points over 15 cells of problem set 0 (other half {other})" in text
    own, other = zip(*held_out, strict=True)
    assert "{}, {} and {} on".format(*own) in text and "({}, {}, {})".format(*other) in text
    start = pd.read_csv(DATA / "tiny-arms.csv").drop_duplicates("seed")["maj_start"].mean()
    cells = page.read("seed0").query("prediction == @MEASURED")
    assert f"errs by {page.vote_error(cells, start):.1f} on the 15 cells" in text
    finals = page.mean_errors(page.read("seed0")).set_index("prediction")["final"]
    others = (finals[name] for name in ("independent", "attractor", COPY))
    said = "by {:.1f} (`independent`) and {:.1f} (`attractor`), and TTRL's runs as a prediction"
    assert f"{said} of every arm by {{:.1f}}".format(*others) in text


def test_the_language_model(tool, study, single):
    text, final = text_of("docs/language-model.md"), study["pass_final"]
    plain = final.loc[3e-5, "ttrl"]
    assert f"right on {final.loc[3e-5, VOTE].mean():.0f} %" in text
    assert f"TTRL ends at {plain[plain.index <= 4].mean():.1f} %" in text
    one = binomtest(1, 15).proportion_ci(method="exact")
    rare = f"{100 * one.low:.1f} to {100 * one.high:.0f} %".removeprefix("0")
    falls = f"in single precision TTRL falls to {single.loc[1e-5, 'pass_final'].mean():.1f} %"
    assert rare in text and falls in text
    assert f"it falls to {single.loc[3e-5, 'pass_final'].mean():.1f} %" in text
    assert f"{single.loc[3e-5, 'leak'].mean():.0f} % of the last votes" in text
    assert f"At 1e-5 TTRL ends at {final.loc[1e-5, 'ttrl'].mean():.1f} %" in text
    told = pd.read_csv(DATA / "forecast-language.csv")
    every = pd.read_csv(DATA / "language-model.csv")
    means = every.groupby(["task", "lr", "arm"])["pass_final"].mean()
    own = means[pd.MultiIndex.from_frame(told[means.index.names])]
    assert told["real"].tolist() == pytest.approx(own.tolist(), abs=1e-3)
    for (task, lr), own in told.groupby(["task", "lr"]):
        missed = [(own["real"] - own[name]).abs().mean() for name in ("predicted", "unrounded")]
        name, rate = {"letters": "letters"}.get(task, "products"), f"{lr:.0e}".replace("e-0", "e-")
        same = where(where(every, task=task), lr=lr).drop_duplicates("seed")["maj_start"]
        missed.append(tool("tables").vote_error(own, same.mean()))
        row = "| {}, {} | {} | {:.1f} | {:.1f} | {:.1f} |".format(name, rate, len(own), *missed)
        assert row in text
