"""The paper's tables on the page: its numbers next to ours, its contradictions as footnotes."""

import re

import numpy as np
import pytest

from lab.compare.published import CELLS
from lab.report.digest import read
from lab.report.papers import paper_tables


def rows_of(part):
    """First cell of every row to the texts of the others."""
    found = {}
    for row in re.findall("<tr>(.*?)</tr>", part):
        cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)
        texts = [re.sub("<[^>]*>", " ", cell).split() for cell in cells]
        found[" ".join(texts[0])] = texts[1:]
    return found


@pytest.fixture(scope="module")
def content(runs):
    return paper_tables(read([runs.sim, runs.real])[0])


def test_printed_numbers_stand_beside_ours(runs, content):
    (world,) = read([runs.sim])[0]
    part = content.split("pass@1 at the end")[1].split("</table>")[0]
    rows = rows_of(part)
    own = world.metrics.loc["guard", "pass_final"]
    mean, spread = f"{own.mean():.1f}", f"{own.std():.1f}"
    assert rows["TTRL-Guard"] == [[mean, "±", spread], ["4"], ["57.3"]]
    assert rows["TTRL"][2] == ["52.1", "1"]
    assert rows["CoVerRL"] == [["not", "run"], [], ["57.0"]]
    assert rows["Frozen labels"][2] == []
    assert "<li>the printed fates cap the final label accuracy" in content


def test_fates_have_both_numbers_in_a_cell(content):
    part = content.split("Fates (% of problems)")[1].split("</table>")[0]
    rows = rows_of(part)
    assert [" ".join(cell) for cell in rows["method"]] == [*CELLS, "TotalDeg"]
    assert rows["TTRL"][CELLS.index("Degraded")][-1] == "53.8"


def test_other_tasks_have_no_columns_of_the_paper(content):
    tiny = content.split("Real model: tiny")[1]
    assert "The paper has no numbers on this task" in tiny
    assert "No timed run of TTRL" in tiny
    assert "<table" not in tiny


def test_overhead_of_timed_runs(tmp_path, make_trace, save):
    for arm, seconds in (("ttrl", 2.0), ("guard", 3.0)):
        trace = make_trace(
            arm, np.full((2, 3, 10), 0.5), np.full((2, 10), 0.5), world="real", seeds=[0, 1]
        )
        trace.steps["seconds_step"] = seconds
        save(trace, tmp_path / arm)
    part = paper_tables(read([tmp_path])[0]).split("Change of the time per step")[1]
    assert rows_of(part)["TTRL-Guard"][:2] == [["50.0", "±", "0.0"], ["2"]]
