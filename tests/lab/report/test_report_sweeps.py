import numpy as np
import pandas as pd
import pytest
from page_parts import figures_of

from lab.__main__ import main
from lab.compare.collection import GRID, RESULTS
from lab.figures.outcomes import swept as figures_of_settings
from lab.measures import BY_NAME


@pytest.fixture
def swept(tmp_path):
    """Two arms over three thresholds at two step sizes, two replicates, and a failed cell."""
    rows = [
        {"cell": 0, "group": "guard.tau_FR x step", "guard.tau_FR": tau, "step": step, "arm": arm}
        | {"replicate": r, "status": "done", "reason": "", "TotalDeg": 100 * step + r}
        | {"pass_final": 50 + 10 * tau * (arm == "guard") + r, "key": "k"}
        for tau in (0.1, 0.3, 0.5)
        for step in (0.03, 0.06)
        for arm in ("ttrl", "guard")
        for r in (0, 1)
    ]
    rows.append(rows[-1] | {"arm": "memory", "status": "failed", "pass_final": np.nan})
    (tmp_path / "tau").mkdir()
    pd.DataFrame(rows).to_csv(tmp_path / "tau" / RESULTS, index=False)
    return tmp_path


def test_a_sweep_has_a_figure_per_metric_and_a_table(swept, capsys):
    assert main([str(swept), "-o", str(swept / "page.html")]) == 0
    content = (swept / "page.html").read_text()
    drawn = figures_of(content)
    names = [f"tau-guard-tau-fr-x-step-{name}-data" for name in ("pass-final", "totaldeg")]
    assert list(drawn) == names
    guard = [t for t in drawn[names[0]]["data"] if t["name"] == "TTRL-Guard"]
    assert [t["x"] for t in guard] == [[0.1, 0.3, 0.5]] * 2  # a panel for each step size
    assert guard[0]["y"] == pytest.approx([51.5, 53.5, 55.5])
    assert guard[0]["error_y"]["array"] == pytest.approx([0.5**0.5] * 3, abs=1e-4)
    panels = [a["text"] for a in drawn[names[0]]["layout"]["annotations"]]
    assert panels == ["<b>step 0.03</b>", "<b>step 0.06</b>"]
    assert content.count("<tr>") == 13 and "Vote memory" not in content
    assert capsys.readouterr().out.endswith("page.html\n")
    assert main([str(swept), "--format", "md"]) == 0
    shown = capsys.readouterr().out
    assert "| 0.5 | 0.06 | TTRL-Guard | 2 | 55.5 ± 0.7 | 6.5 ± 0.7 |" in shown
    assert "## tau, 1 run failed\n" in shown and "<h3>tau, 1 run failed</h3>" in content
    assert main([str(swept), "--format", "csv", "-o", str(swept / "csv")]) == 0
    table = pd.read_csv(swept / "csv" / "sweep-tau.csv")
    assert len(table) == 12 and table["pass_final_sd"].tolist() == pytest.approx([0.5**0.5] * 12)


def test_a_cell_of_two_groups_counts_its_replicates_once(swept, capsys):
    path = swept / "tau" / RESULTS
    rows = pd.read_csv(path)
    rows.assign(group="step").to_csv(path, mode="a", header=False, index=False)
    assert main([str(swept), "--format", "md"]) == 0
    assert "| 0.5 | 0.06 | TTRL-Guard | 2 | 55.5 ± 0.7 | 6.5 ± 0.7 |" in capsys.readouterr().out


def test_a_sweep_beside_runs_and_a_damaged_one(swept, add_run, capsys):
    add_run(swept / "run", "ttrl")
    (swept / "bad").mkdir()
    (swept / "bad" / RESULTS).write_text("cell,group,step,arm\n0,step,x,y\n")
    assert main([str(swept), "-o", str(swept / "page.html")]) == 0
    assert f"left out: {swept}/bad/{RESULTS}: is damaged" in capsys.readouterr().err
    content = (swept / "page.html").read_text()
    assert 'id="sweeps"' in content and 'id="sim-test-fates"' in content


def test_the_grid_of_a_comparison_is_no_further_sweep(swept, add_run, capsys):
    rows = pd.read_csv(swept / "tau" / RESULTS).assign(policy="attractor", pass_start=50.0)
    rows.to_csv(swept / "tau" / RESULTS, index=False)
    (swept / "tau").rename(swept / GRID)
    assert main([str(swept), "--format", "md"]) == 0
    assert "## grid" in capsys.readouterr().out, "a grid alone is a sweep"
    add_run(swept / "run", "ttrl", config={"policy": "attractor", "seed": 0, "step": 0.03})
    assert main([str(swept), "--format", "md"]) == 0
    shown = capsys.readouterr().out
    assert "## Step sizes: " in shown and "## grid" not in shown


def test_figures_of_runs_are_written_as_wide_as_a_column(chromium, add_run, tmp_path, capsys):
    pytest.importorskip("kaleido")
    run, out = add_run(tmp_path / "run", "ttrl"), tmp_path / "figures"
    assert main([str(run), "--figures", str(out)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert f"{out}/sim-test-progress.pdf" in printed and (run / "report.html").exists()
    kinds = {path.suffix for path in out.iterdir()}
    assert kinds == {".svg", ".pdf", ".csv"} and len(list(out.iterdir())) % 3 == 0
    assert 'width="336"' in (out / "sim-test-progress.svg").read_text()
    assert b"[0 0 252 " in (out / "sim-test-progress.pdf").read_bytes()
    assert pd.read_csv(out / "sim-test-progress.csv")["curve"].eq("TTRL").all()
    assert main([str(run), "--figures", str(out)]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_every_value_and_every_arm_of_a_sweep_is_drawn():
    rows = pd.DataFrame(
        [
            {"panel": panel, "arm": arm, "growth": growth, "replicate": 0, "pass_final": 50.0}
            for panel, arms in (("a", ["ttrl"]), ("b", ["ttrl", "guard"]))
            for arm in arms
            for growth in ("none", 0.1, 0.3)
        ]
    )
    figure = figures_of_settings(rows, "growth", BY_NAME["pass_final"])
    # By itself plotly draws an axis of numbers and leaves the text out.
    assert figure.layout.xaxis.type == "category"
    assert figure.layout.xaxis.categoryarray == (0.1, 0.3, "none")
    assert [t.name for t in figure.data if t.showlegend] == ["TTRL", "TTRL-Guard"]
