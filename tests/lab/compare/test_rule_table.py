import numpy as np
import pytest

from lab.compare.collection import collect
from lab.compare.tables import rule_rows, rule_table
from lab.report.markdown import rule_markdown


@pytest.fixture(scope="module")
def rows(make_trace, save, tmp_path_factory):
    """Two arms at two step sizes, two replicates of two problems each."""
    folder = tmp_path_factory.mktemp("rules")
    finals = {  # step size -> arm -> final pass@1 of both replicates
        0.1: {"ttrl": (0.5, 0.6), "srt": (0.6, 0.7)},
        0.2: {"ttrl": (0.4, 0.5), "srt": (0.7, 0.9)},
    }
    for step, arms in finals.items():
        for arm, final in arms.items():
            accuracy = np.full((2, 2, 9), 0.8)
            accuracy[:, 1, 1:] = 0.1  # the second problem is lost in every run
            scores = [[0.5] * 8 + [value] for value in final]
            norm = step * (1.5 if arm == "srt" else 1)
            trace = make_trace(arm, accuracy, scores, norm, config={"step": step}, seeds=[0, 1])
            save(trace, folder / f"{step}" / arm)
    return rule_rows(collect([folder]).comparisons)


def test_a_row_per_run_with_labels_and_norms(rows):
    assert len(rows) == 8 and set(rows["label_final"]) == {50.0}
    own = rows[(rows.arm == "srt") & (rows.step == 0.2)]
    assert own["update_norm"].tolist() == pytest.approx([0.3, 0.3])
    assert rows["seconds"].isna().all() and own["seed"].tolist() == [0, 1]
    assert own["pass_final"].tolist() == pytest.approx([70, 90])
    assert own["replicate"].tolist() == [0, 1] and rows["drop"].notna().any()


def test_every_arm_at_its_own_best_against_the_baseline(rows):
    table = rule_table(rows).set_index("arm")
    assert table.index.tolist() == ["srt", "ttrl", "vote"]
    vote = table.loc["vote"]
    assert (vote["steps"], vote["edge"], vote["vote"].n) == ("", "", 2)
    srt, own = table.loc["srt"], rows[(rows["arm"] == "srt") & (rows["step"] == 0.2)]
    assert srt["vote"].mean == pytest.approx((own["pass_final"] - own["maj_start"]).mean())
    assert (srt["steps"], srt["edge"], srt["n"]) == ("0.2", "largest", 2)
    assert srt["pass_final"].mean == pytest.approx(80) and srt["gain"].mean == pytest.approx(30)
    # TTRL is best at 0.1: 50 and 60; the pairs are 70 - 50 and 90 - 60.
    assert srt["against"].mean == pytest.approx(25) and srt["update"] == pytest.approx(3)
    # SRT moves farther at 0.2 than TTRL ever does: nothing is extrapolated.
    assert srt["effort"].n == 0
    assert table.loc["ttrl"]["against"].mean == 0


def test_the_text_marks_what_is_beyond_noise(rows):
    text = rule_markdown(rule_table(rows))
    line = next(line for line in text.splitlines() if line.startswith("| SRT |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    shown = ["0.2 >", "80.0 ± 14.1", "+25.0 [-38.5, +88.5]", "", "3.00"]
    assert [cells[i] for i in (1, 2, 4, 6, 10)] == shown
    assert "| TTRL | 0.1 &lt; |" in text


def test_an_arm_of_a_trace_opens_no_link_and_no_cell(rows):
    hostile = rows.assign(arm=[{"srt": "[x](y)|<b>"}.get(arm, arm) for arm in rows["arm"]])
    assert "| \\[x](y)\\|&lt;b> |" in rule_markdown(rule_table(hostile))


def test_an_arm_at_fewer_steps_keeps_its_pairs_with_the_vote(rows):
    given = rows[(rows["step"] == 0.1) | ((rows["arm"] == "ttrl") & (rows["replicate"] == 0))]
    srt = rule_table(given).set_index("arm").loc["srt"]
    assert (srt["n"], srt["vote"].n) == (2, 2)
