import itertools
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
    """Intervals of the text that no table has: rivals at 1e-5, precision, later arms, search."""
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
    for name in ("braked", "early_stop"):
        yield estimate(differences(finals[name], finals["ttrl"]))
    searched = pd.read_csv(DATA / "choice-search.csv").groupby(["candidate", "seed"])["pass_final"]
    best = "memory kl_coef=0.05 hysteresis=0.25"
    yield estimate(differences(searched.mean()[best], searched.mean()["memory"]))


@pytest.mark.parametrize(
    "name", ["README.md", "docs/findings.md", "docs/language-model.md", "docs/protocol.md"]
)
def test_every_interval_of_the_text_is_in_a_table_or_follows_from_rows(name, page, study, single):
    known = {rounded(found) for found in computed(page, study, single)}
    known |= intervals((DATA / "confirm-means.csv").read_text())
    for path in (ROOT / "docs").glob("*.md"):
        known |= intervals(" ".join(TABLE.findall(path.read_text(encoding="utf-8"))))
    text = TABLE.sub("", (ROOT / name).read_text(encoding="utf-8"))
    shown = intervals(text)
    assert shown and sorted(shown - known) == []


def test_the_readme_is_short_and_answers_first():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first, rest = text.partition("## Documentation")[::2]
    assert len(first.split()) <= 900 and rest
    (table,) = TABLE.findall(text)
    assert len(re.findall(r"^\|", table, re.MULTILINE)) <= 6 and "no training" in table
    assert first.index("git clone") < 3400 and first.index(table) < first.index("git clone")


def tiny_tasks(page):
    words = {
        "arithmetic": ("{0:.0f} to {1:.0f} % on the first", "from {1:.0f} to {0:.0f}"),
        "collatz": ("{0:.0f} to {1:.0f} % on the second", "from {1:.0f} to {0:.0f}"),
    }
    beyond = n = 0
    for task, forms in words.items():
        rows = page.read(f"confirm-{task}")
        for arm, form in zip(("recommended", "ttrl"), forms, strict=True):
            means = where(rows, arm=arm).groupby("lr")["pass_final"].mean()
            yield form.format(means.min(), means.max())
        rows = with_vote(rows, ["lr", "problem_seed", "seed", "place"])
        for lr, arm in rows.groupby(["lr", "arm"]).groups:
            if arm not in (VOTE, "truth"):
                found = page.over_sets(where(rows, lr=lr), arm, VOTE)
                beyond, n = beyond + (found.low > 0), n + 1
    assert beyond == 2
    yield f"Of the {n} intervals"


def simulator(page, study):
    rows = page.read("sim-llama")
    llama, own = where(rows, lr=0.06, arm="ttrl"), study.loc[3e-5, "ttrl"]
    yield f"give {llama['TotalDeg'].mean():.1f} %"
    yield f"is {llama['lost_once'].mean():.0f} % of TotalDeg"
    once = np.average(own["lost_once"], weights=own["TotalDeg"])
    yield f"on the pretrained model's products {once:.0f} %"
    null = where(page.read("sim-null"), arm="ttrl", task="features llama-math500")
    degraded = f"{null['Degraded'].mean():.1f}".removeprefix("0")
    yield f"TTRL degrades {degraded} % of the problems"
    yield f"model, {rows['pass_start'].mean():.1f} %, at any"
    yield f"wrong with probability {100 * lock_in(0.55, 0.1, 64, 32):.1f} %"


def readings(page, tool):
    ends = [re.findall(r"\[([\d.]+), ([\d.]+)\]", c)[0] for c in tool.predictions().rows[0][-3:]]
    low, high = min(float(e[0]) for e in ends), max(float(e[1]) for e in ends)
    yield f"from {low:.0f} to {high:.0f} % Degraded"
    for task in ("closed", *TASKS):
        rows = where(page.read("readings-tiny"), task=task, lr=3e-4, arm="ttrl")
        start, end = rows["pass_start"].mean(), rows["pass_final"].mean()
        yield f"{'rises' if end > start else 'falls'} from {start:.0f} to {end:.0f} %"


def calibration(tool):
    table = pd.read_csv(tool.PAPER, comment="#")
    errors = tool.paper_errors(table[table["row"] != HARDEST]).set_index("arm")["fates"]
    guards = ("guard", "guard,flip_rate=instant", "guard_release")
    yield "err by {:.2f}, {:.2f} and {:.2f} points".format(*(errors[name] for name in guards))
    yield f"Of {pd.read_csv(tool.DRAWS)['draw'].nunique()} mechanisms"
    yield f"{len(tool.weighted(HARDEST))} fit the TTRL row"


def measured_model(tool):
    start = pd.read_csv(DATA / "tiny-arms.csv").drop_duplicates("seed")["maj_start"].mean()
    cells = tool.read("seed0").query("prediction == @MEASURED")
    yield f"errs by {tool.vote_error(cells, start):.1f} on the 15 cells"
    errors = [
        tool.mean_errors(tool.read(f"seed{n}")).set_index("prediction")["final"]
        for n in (0, 23, 24, 25)
    ]
    own, other = ([f"{found[name]:.1f}" for found in errors] for name in (MEASURED, OTHER_HALF))
    yield f"to {own[0]} points over 15 cells of problem set 0 (other half {other[0]})"
    yield "{}, {} and {} on".format(*own[1:])
    yield "({}, {}, {})".format(*other[1:])
    others = [f"{errors[0][name]:.1f}" for name in ("independent", "attractor", COPY)]
    yield "by {} (`independent`) and {} (`attractor`), and TTRL's runs as a".format(*others)
    yield f"prediction of every arm by {others[-1]}"


def seeds_errors(runs, task):
    """Mean error over the arms: of one half of the seeds for the other, and of TTRL's half."""
    if task == "letters":  # over the random halves of `lab.agreement`
        table = pd.read_csv(DATA / "agreement-letters.csv").groupby("prediction")["final"].mean()
        return [table[OTHER_HALF], table[COPY]]
    finals = runs.pivot(index="seed", columns="arm", values="pass_final")
    halves = [finals.index.isin(half) for half in itertools.combinations(finals.index, 2)]
    means = [(finals[half].mean(), finals[~half].mean()) for half in halves]
    own = pd.DataFrame([(first - other).abs() for first, other in means])
    copied = pd.DataFrame([(first["ttrl"] - other).abs() for first, other in means])
    return [own.mean().mean(), copied.mean().mean()]


def language_model(tool, study, single):
    final = study["pass_final"]
    plain = final.loc[3e-5, "ttrl"]
    yield f"right on {final.loc[3e-5, VOTE].mean():.0f} %"
    yield f"TTRL ends at {plain[plain.index <= 4].mean():.1f} %"
    one = binomtest(1, 15).proportion_ci(method="exact")
    yield f"{100 * one.low:.1f} to {100 * one.high:.0f} %".removeprefix("0")
    yield f"in single precision TTRL falls to {single.loc[1e-5, 'pass_final'].mean():.1f} %"
    yield f"it falls to {single.loc[3e-5, 'pass_final'].mean():.1f} %"
    yield f"At 1e-5 TTRL ends at {final.loc[1e-5, 'ttrl'].mean():.1f} %"
    every = pd.read_csv(DATA / "language-model.csv")
    forecast = pd.read_csv(DATA / "forecast-language.csv")
    collapsed = where(where(forecast, task="multiplication", arm="ttrl"), lr=3e-5)
    yield f"TTRL at 3e-5 is predicted at {collapsed['tokens'].item():.1f} %"
    for (task, lr), own in forecast.groupby(["task", "lr"]):
        by = ("predicted", "tokens", "unrounded")
        missed = [(own["real"] - own[name]).abs().mean() for name in by]
        name, rate = "letters" if task == "letters" else "products", f"{lr:.0e}".replace("-0", "-")
        same = where(where(every, task=task), lr=lr).drop_duplicates("seed")["maj_start"]
        missed.append(tool.vote_error(own, same.mean()))
        missed += seeds_errors(where(where(every, task=task), lr=lr), task)
        shown = " | ".join(f"{value:.1f}".replace("nan", "-") for value in missed)
        yield f"| {name}, {rate} | {len(own)} | {shown} |"


def test_numbers_of_the_text_are_those_of_the_rows(page, tool, study, single):
    tables, studied = tool("tables"), tool("readings")
    vote = pd.read_csv(DATA / "tiny-arms.csv").query("seed < 3").drop_duplicates("seed")
    pages = {
        "findings": [*tiny_tasks(page), *simulator(page, study), *readings(page, studied)],
        "calibration": calibration(studied),
        "rules": [f"right on {vote['maj_start'].mean():.1f} % in these seeds"],
        "agreement": measured_model(tables),
        "language-model": language_model(tables, study, single),
    }
    for name, phrases in pages.items():
        text = text_of(f"docs/{name}.md")
        assert [phrase for phrase in phrases if phrase not in text] == [], name
