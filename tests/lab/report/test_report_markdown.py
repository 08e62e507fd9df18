import numpy as np

from lab.compare.collection import gather
from lab.report.digest import digest
from lab.report.markdown import markdown


def cells_of(text, label):
    """The cells of the first table row with this label."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {label}"))
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_every_number_is_the_mean_with_its_spread(worlds):
    text = markdown(worlds[1:])
    finals = worlds[1].metrics["pass_final"].groupby("arm", sort=False)
    expected = [f"{own.mean():.1f} ± {own.std():.1f} ({len(own)})" for _, own in finals]
    assert cells_of(text, "pass@1 at the end (%)")[2:] == expected and "Step sizes" not in text


def test_differences_beyond_noise_are_bold(worlds):
    line = cells_of(markdown(worlds[:1]).split("Paired differences")[1], "Frozen labels")
    pair = worlds[0].pairs["ttrl"].set_index(["arm", "metric"]).loc[("frozen", "pass_final")]
    assert line[1] == f"**{pair['mean']:+.1f} \\[{pair['low']:+.1f}, {pair['high']:+.1f}]**"


def at_steps(make_trace, finals):
    """Digests of runs by (arm, step size), which start at .5 and end at a pass@1."""
    traces = []
    for (arm, step), final in finals.items():
        score_RE = np.linspace(np.full(2, final * 0 + 0.5), np.full(2, final), 9).T
        trace = make_trace(arm, np.repeat(score_RE[:, None], 2, axis=1), score_RE, seeds=[0, 1])
        trace.run.config["step"] = step
        traces.append(trace)
    return [digest(comparison) for comparison in gather(traces)[0]]


TTRL = {("ttrl", 0.1): 0.6, ("ttrl", 0.2): 0.3}


def test_several_step_sizes_show_every_arm_at_its_best(make_trace):
    worlds = at_steps(make_trace, TTRL | {("guard", 0.1): 0.5, ("guard", 0.2): 0.7})
    best = markdown(worlds).split("## Step sizes")[1]
    rows = [line for line in best.splitlines() if line.startswith("| TTRL")]
    assert rows[0].startswith("| TTRL | 60.0 | 30.0 | 0.1 | 60.0 ± 0.0 |  |")
    assert rows[1].startswith("| TTRL-Guard | 50.0 | 70.0 | 0.2 | 70.0 ± 0.0 |")
    assert "**+10.0 \\[+10.0, +10.0]**" in rows[1]
    assert "* TTRL-Guard at its best minus the best rival at its best (TTRL at 0.1)" in best


def test_problems_without_answers_at_two_step_sizes(make_trace):
    cells = [(arm, step) for arm in ("ttrl", "guard", "empo") for step in (0.1, 0.2)]
    text = markdown(at_steps(make_trace, dict.fromkeys(cells, np.nan)))
    assert "nan" not in text.lower()
    chosen = text.split("## Step sizes")[1]
    assert cells_of(chosen, "TTRL ")[1:] == ["", "", "0.1", "", "", ""]


def test_rules_have_a_table_of_their_own(make_trace):
    ruled = TTRL | {("empo", 0.1): 0.5, ("empo", 0.2): 0.7}
    rules = markdown(at_steps(make_trace, ruled)).split("## Rules")[1]
    line = next(line for line in rules.splitlines() if line.startswith("| EMPO"))
    # EMPO is best at 0.2, TTRL at 0.1; both move equally far at either step here.
    assert line.startswith("| EMPO | 0.2 > | 70.0 ± 0.0 | **+20.0 [+20.0, +20.0]** | **+10.0")
    assert "## Rules" not in markdown(at_steps(make_trace, TTRL))
