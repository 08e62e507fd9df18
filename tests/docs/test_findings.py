"""Numbers in the text of README and findings are those that the rows of docs/data give."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from lab.base.arms import VOTE
from lab.base.columns import where
from lab.base.stats import differences, estimate, sign_flip, with_interval
from lab.compare.agreement import MEASURED, OTHER_HALF
from lab.compare.tables import with_vote
from sim.theory import lock_in

ROOT = Path(__file__).parents[2]
HARDEST = "llama-math500"
"""The row in which the readings of the guard part."""
TASKS = ("arithmetic", "collatz")


def text_of(*names):
    return " ".join(" ".join((ROOT / name).read_text(encoding="utf-8") for name in names).split())


@pytest.fixture(scope="module")
def pages(tool):
    """The module that makes the tables, and the rows of every file, read once."""
    page = tool("protocol_page")
    files = [f"confirm-{task}" for task in TASKS]
    return page, {name: page.read(name) for name in (*files, "sim-llama", "sim-null")}


def products():
    """All runs on products at 3e-5: four seeds of the first study and seven further ones."""
    first, further = (
        pd.read_csv(ROOT / "docs" / "data" / f"language-{name}.csv") for name in ("model", "seeds")
    )
    own = where(where(first, task="multiplication"), lr=3e-5)
    return with_vote(pd.concat([own, further], ignore_index=True), ["seed"])


def shown(estimate):
    return with_interval(estimate.mean, estimate.low, estimate.high)


def saved(estimate):
    """A difference of TotalDeg as the points that it saves."""
    return f"{-estimate.mean:.1f} points [{-estimate.high:.1f}, {-estimate.low:.1f}]"


def test_the_readme_s_intervals_are_those_of_the_findings():
    readme, findings = text_of("README.md"), text_of("docs/findings.md")
    shown_there = set(re.findall(r"\[[-+.\d]+, [-+.\d]+\]", readme))
    assert len(shown_there) > 15
    assert [interval for interval in shown_there if interval not in findings] == []


def test_differences_of_the_tiny_tasks(pages):
    page, rows = pages
    text = text_of("README.md", "docs/findings.md")
    for arm, lr in (("guard", 5e-5), ("guard", 3e-4), ("frozen", 3e-4), ("memory", 3e-4)):
        for task in TASKS:
            own = page.where(rows[f"confirm-{task}"], lr=lr)
            words = shown(page.over_sets(own, arm))
            assert words in text.replace(" points [", " ["), (arm, lr, task)
    for arm in ("guard", "frozen", "memory"):
        for task in TASKS:
            own = page.where(rows[f"confirm-{task}"], lr=5e-5)
            assert page.over_sets(own, arm).within_noise, (arm, task)
            assert page.over_sets(own, "guard").high < 2


def test_means_of_the_tiny_tasks(pages):
    page, rows = pages
    text = text_of("README.md", "docs/findings.md")
    ends = {}
    for task in TASKS:
        table = rows[f"confirm-{task}"]
        for arm in ("recommended", "ttrl"):
            means = page.where(table, arm=arm).groupby("lr")["pass_final"].mean()
            ends[task, arm] = f"{means.min():.0f}", f"{means.max():.0f}", f"{means.min():.1f}"
        met = page.conditions(table).rows
        assert [row[2] for row in met] == ["yes", "no", "yes", "no"]
        assert met[1][1].partition(";")[0] in text and met[3][1].strip("*") in text
        assert f"start {table['pass_start'].mean():.1f}" in met[1][1]
    first, second = (ends[task, "recommended"] for task in TASKS)
    assert f"of {first[0]} to {first[1]} % at" in text
    assert f"task it is {second[0]} to {second[1]} %" in text
    first, second = (ends[task, "ttrl"] for task in TASKS)
    assert f"TTRL falls from {first[1]} to {first[0]} and" in text
    assert f"TTRL falls from {second[1]} to {second[0]}." in text
    start = rows["confirm-arithmetic"]["pass_start"].mean()
    assert f"TTRL falls from {start:.1f} to {first[2]} %" in text


def test_own_best_rates_of_the_first_tiny_task(pages):
    page, rows = pages
    text = text_of("docs/findings.md")
    best = {row[0]: row[-1] for row in page.means(rows["confirm-arithmetic"]).rows}
    for arm in ("TTRL", "TTRL-Guard", "Vote memory", "True labels (ceiling)"):
        assert best[arm].replace(" \\[", " [") in text.replace(" % [", " ["), arm


def test_the_simulator(pages):
    page, rows = pages
    readme, findings = text_of("README.md"), text_of("docs/findings.md")
    llama = page.where(rows["sim-llama"], lr=0.06)
    assert llama.groupby("arm").size().eq(20).all()
    mean = llama.groupby("arm")[["TotalDeg", "lost_once"]].mean()
    total, half = mean["TotalDeg"], page.where(rows["sim-llama"], lr=0.03, arm="ttrl")
    effort = saved(page.over_sets(llama, "guard", "matched", "TotalDeg"))
    assert effort in readme and effort in findings and f"of {total['ttrl']:.1f} %" in readme
    words = f"from {total['ttrl']:.1f} to {half['TotalDeg'].mean():.1f} %"
    assert words in findings and f"lowers it to {total['guard']:.1f} %" in findings
    for arm in ("frozen", "memory"):
        assert saved(page.over_sets(llama, arm, "guard", "TotalDeg")) in findings
    once = f"{mean['lost_once']['ttrl']:.0f} % of"
    assert once in readme and once in findings
    runs = products()
    own = runs[runs["arm"] == "ttrl"]
    once = np.average(own["lost_once"], weights=own["TotalDeg"])
    assert f"products it is {once:.0f} %" in readme
    assert f"and {once:.0f} % on the pretrained model's products" in findings
    null = page.where(rows["sim-null"], arm="ttrl").groupby("task").mean(numeric_only=True)
    assert null["TotalDeg"]["independent llama-math500"] < 0.1
    degraded = null["Degraded"]["features llama-math500"]
    assert f"TTRL degrades {degraded:.1f} % of the problems".replace(" 0.", " .") in findings


def test_the_readings_of_the_guard(tool):
    page = tool("readings")
    readme, findings = text_of("README.md"), text_of("docs/findings.md")
    table = pd.read_csv(page.PAPER, comment="#")
    errors = page.paper_errors(table).set_index("arm")["fates"]
    guards = ("guard", "guard,flip_rate=instant", "guard_release")
    one, two = ([f"{errors[name]:.{digits}f}" for name in guards] for digits in (1, 2))
    words = "{} points for the text, {} with the one-step flip rate and {} for"
    assert words.format(*one) in readme
    rest = page.paper_errors(table[table["row"] != HARDEST]).set_index("arm")["fates"]
    without = [f"{rest[name]:.2f}" for name in (*guards, "ttrl")]
    copied = page.paper_errors(copies(table[table["row"] != HARDEST])).set_index("arm")["fates"]
    assert "the errors are {}, {} and {}".format(*without[:3]) in findings
    assert f"that of the copy {copied['guard']:.2f}" in findings
    assert (
        "without it they are {:.1f}, {:.1f} and {:.1f}".format(*(rest[n] for n in guards)) in readme
    )
    assert "{}, {} (one-step flip rate) and {} points".format(*two) in findings
    own = table[(table["row"] == HARDEST) & (table["cell"] == "Degraded")]
    own = own.set_index("kind")["predicted"]
    shown = "{:.1f}, {:.1f} and {:.1f} % Degraded, the paper 24.0".format(*(own[g] for g in guards))
    assert shown in readme and shown in findings
    given = page.weighted(HARDEST, False)
    n_draws = pd.read_csv(page.DRAWS)["draw"].nunique()
    assert f"Of {n_draws} mechanisms drawn from a wide prior, {len(given)} agree" in findings
    (low, high), *others = [
        [f"{float(end):.0f}" for end in cell.partition("[")[2].partition("]")[0].split(", ")]
        for cell in page.predictions().rows[0][-3:]
    ]
    words = "{} to {}, under the scripts {} to {}".format(*others[0], *others[1])
    assert words in findings and f"{low} to {high} % Degraded" in findings
    assert f"from {others[0][0]} to {others[0][1]} % Degraded" in readme
    assert page.weighted(HARDEST, True)["draw"].nunique() == 2 and "Two mechanisms" in findings


def copies(table):
    """The rows of the guard as a copy of TTRL's predicts them."""
    base = table[table["kind"] == "ttrl"].set_index(["row", "cell"])["published"]
    guard = table[table["kind"] == "guard"]
    keys = pd.MultiIndex.from_frame(guard[["row", "cell"]])
    both = guard.assign(predicted=base.reindex(keys).to_numpy())
    return pd.concat([table[table["kind"] == "ttrl"], both], ignore_index=True)


def test_the_vote_before_training(pages):
    """Differences to it on products and on the tiny tasks, and intervals that lie above it."""
    page, rows = pages
    readme, findings = text_of("README.md"), text_of("docs/findings.md")
    runs = products()
    final = {name: own.set_index("seed")["pass_final"] for name, own in runs.groupby("arm")}
    for name in ("ttrl", "memory", "recommended"):
        gap = estimate(differences(final[name], final[VOTE]))
        assert gap.n == 11
        assert shown(gap) in readme.replace(" points [", " [")
        assert shown(gap) in findings.replace(" points [", " [")
    assert f"{final[VOTE].mean():.1f} %" in readme and f"{final[VOTE].mean():.1f} %" in findings
    further = runs[runs["seed"] > 4].set_index("seed")
    parts = dict([*further.groupby("arm")])
    gap = estimate(differences(parts["recommended"]["pass_final"], parts["memory"]["pass_final"]))
    assert shown(gap) in readme and shown(gap) in findings
    lost = parts["memory"]["held_out_pass_at_1_start"] - parts["memory"]["held_out_pass_at_1_final"]
    lost = estimate(lost)
    assert f"{lost.mean:.1f} points [{lost.low:.1f}, {lost.high:.1f}] on held-out" in findings
    first = runs[runs["seed"] <= 4].set_index("seed")
    gaps = differences(*(first[first["arm"] == a]["pass_final"] for a in ("memory", "ttrl")))
    assert f"sign-flip p {sign_flip(gaps):.3f}".replace("0.", ".") in readme
    one = binomtest(1, 15).proportion_ci(method="exact")
    assert f"{100 * one.low:.1f} to {100 * one.high:.0f} %".removeprefix("0") in findings
    above, n = 0, 0
    for task in TASKS:
        table = with_vote(rows[f"confirm-{task}"], ["lr", "problem_seed", "seed", "place"])
        for lr in sorted(table["lr"].unique()):
            for arm in sorted({*table["arm"]} - {VOTE, "truth"}):
                found = page.over_sets(page.where(table, lr=lr), arm, VOTE)
                above, n = above + (found.low > 0), n + 1
    assert (
        (above, n) == (2, 54) and "Of 54 intervals" in readme and "Of the 54 intervals" in findings
    )
    sets = page.read("readings-tiny")
    for task in TASKS:
        for base, lr in (("ttrl", 3e-4), ("ttrl", 2e-4), (VOTE, 3e-4)):
            own = with_vote(page.where(sets, task=task, lr=lr), ["problem_seed", "seed", "place"])
            keys = ["problem_seed", "seed"]
            ends = (own[own["arm"] == a].set_index(keys)["pass_final"] for a in ("memory", base))
            gap = estimate(differences(*ends).groupby(level=0).mean())
            assert gap.n == 12 and shown(gap) in readme, (task, base, lr)


def test_the_vote_of_the_rules_page():
    runs = pd.read_csv(ROOT / "docs" / "data" / "tiny-arms.csv").query("seed < 3")
    vote = runs.drop_duplicates("seed")["maj_start"].mean()
    assert f"right on {vote:.1f} % in these seeds" in text_of("docs/rules.md")
    means = pd.read_csv(ROOT / "docs" / "data" / "tiny-rules-means.csv").set_index("arm")
    assert means.loc["Vote before training"].eq(round(vote, 1)).all()


def test_the_study_of_the_readings(pages):
    page, _ = pages
    findings, rows = text_of("docs/findings.md"), page.read("readings-tiny")
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
        told = own["shown"][:4] if cell.startswith("closed") else own["shown"]
        assert [words for words in told if words.strip("*") not in findings] == []
    lower = table[table["cell"].str.endswith(", 0.0002")]
    assert len(lower) == 18
    (found,) = lower[(lower["low"] > 0) | (lower["high"] < 0)].itertuples()
    assert found.cell == "collatz, 0.0002" and found.shown.strip("*") in findings
    assert found.comparison.endswith("`replayed,instant`")
    places = {
        ("closed", 3e-4): "rises from {:.0f} to {:.0f} %",
        ("collatz", 3e-4): "TTRL falls from {:.0f} to {:.0f} %.",
        ("arithmetic", 3e-4): "TTRL falls from {:.0f} to {:.0f} %.",
    }
    for (task, lr), words in places.items():
        means = page.where(rows, task=task, lr=lr, arm="ttrl")[["pass_start", "pass_final"]].mean()
        assert words.format(*means) in findings


def test_step_sizes_of_the_simulator(pages):
    _, rows = pages
    text = text_of("docs/findings.md")
    means = rows["sim-llama"].groupby(["arm", "lr"])["pass_final"].mean()
    start = rows["sim-llama"]["pass_start"].mean()
    for arm in ("ttrl", "guard", "matched", "memory"):
        assert means[arm].max() < start and len(means[arm]) == 8
    for words in (f"{start:.1f} %, at any", f"reach {means['frozen'].max():.1f} %"):
        assert words in text
    assert f"true labels {means['truth'].max():.1f} %" in text


def test_the_chain_of_two_answers():
    text = text_of("docs/findings.md")
    wrong = lock_in(0.55, 0.1, 64, 32)
    assert f"wrong with probability {100 * wrong:.1f} %" in text


def test_the_measured_model(tool):
    page, text = tool("tables"), text_of("README.md")
    errors = {}
    for name in ("seed0", "seed23", "seed24", "seed25"):
        found = page.mean_errors(page.read(name)).set_index("prediction")["final"]
        errors[name] = f"{found[MEASURED]:.1f}", f"{found[OTHER_HALF]:.1f}"
    (own, other), *held_out = errors.values()
    start = pd.read_csv(ROOT / "docs" / "data" / "tiny-arms.csv").drop_duplicates("seed")
    cells = page.read("seed0").query("prediction == @MEASURED")
    assert (
        f"errs by {page.vote_error(cells, start['maj_start'].mean()):.1f} points on the 15" in text
    )
    words = f"error is {own} points, where half of the real seeds misses the other half by {other}"
    assert words in text
    own, other = zip(*held_out, strict=True)
    assert "{}, {} and {} points ({}, {} and {})".format(*own, *other) in text


def test_the_language_model_s_numbers(tool):
    """The sentences of both pages, and the verdict's numbers, from the rows of the study."""
    every = pd.read_csv(ROOT / "docs" / "data" / "language-model.csv")
    runs = where(every, task="multiplication")
    own = runs[runs["lr"] == 3e-5].set_index("seed")
    final = {name: part["pass_final"] for name, part in own.groupby("arm")}
    plain = own[own["arm"] == "ttrl"]
    text = text_of("docs/findings.md")
    falls = f"from {plain['pass_start'].mean():.1f} to {final['ttrl'].mean():.1f} %"
    assert falls in text and f"{plain['leak'].mean():.0f} % of TTRL's last votes" in text
    for name in ("guard", "memory"):
        gap = estimate(differences(final[name], final["ttrl"]), 1 - 0.05 / 6)
        assert gap.n == 4 and shown(gap).replace(" [", " points [") in text
        assert f"{final[name].mean():.1f} %, {gap.mean:+.1f} points" in text
    more = pd.read_csv(ROOT / "docs" / "data" / "language-seeds.csv").set_index("seed")
    new = {name: part["pass_final"] for name, part in more.groupby("arm")}
    for page in ("README.md", "docs/findings.md"):
        assert f"TTRL's {new['ttrl'].mean():.1f} %" in text_of(page)
        for name in ("guard", "memory", "recommended"):
            gap = estimate(differences(new[name], new["ttrl"]), 1 - 0.05 / 3)
            assert gap.n == 7 and shown(gap).replace(" [", " points [") in text_of(page)
    told = pd.read_csv(ROOT / "docs" / "data" / "forecast-language.csv")
    means = every.groupby(["task", "lr", "arm"])["pass_final"].mean()
    own = means[pd.MultiIndex.from_frame(told[means.index.names])]
    assert told["real"].tolist() == pytest.approx(own.tolist(), abs=1e-3)
    for (task, lr), own in told.groupby(["task", "lr"]):
        missed = [(own["real"] - own[name]).abs().mean() for name in ("predicted", "unrounded")]
        name, rate = {"letters": "letters"}.get(task, "products"), f"{lr:.0e}".replace("e-0", "e-")
        same = where(where(every, task=task), lr=lr).drop_duplicates("seed")["maj_start"]
        missed.append(tool("tables").vote_error(own, same.mean()))
        row = "| {}, {} | {} | {:.1f} | {:.1f} | {:.1f} |".format(name, rate, len(own), *missed)
        assert row in text_of("docs/language-model.md")
    exact = pd.read_csv(ROOT / "docs" / "data" / "language-float32.csv").set_index(["lr", "seed"])
    single = exact["pass_final"].groupby("lr").mean()
    for page in ("README.md", "docs/findings.md", "docs/language-model.md"):
        assert f"in single precision TTRL falls to {single[1e-5]:.1f} %" in text_of(page)
    gap = estimate(differences(exact.loc[3e-5, "pass_final"], final["ttrl"]))
    leak = exact.loc[3e-5, "leak"].mean()
    assert gap.within_noise
    text = text_of("docs/language-model.md")
    assert f"At 3e-5 it falls to {single[3e-5]:.1f} %" in text
    assert f"{leak:.0f} % of the last votes" in text
    assert shown(gap).replace(" [", " points [") in text
    slow = runs[runs["lr"] == 1e-5].set_index("seed")
    plain = slow[slow["arm"] == "ttrl"]["pass_final"]
    for name in ("guard", "memory", "recommended"):
        gap = estimate(differences(slow[slow["arm"] == name]["pass_final"], plain), 1 - 0.05 / 6)
        assert gap.within_noise
        assert shown(gap) in text_of("docs/language-model.md")
