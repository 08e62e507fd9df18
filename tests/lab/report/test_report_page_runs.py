import json
import re

import numpy as np
import pytest
from page_parts import figures_of, without_scripts

from lab.report.digest import read
from lab.report.page import page


def test_a_file_of_problems_is_not_taken_for_the_tiny_task(add_run, tmp_path):
    config = {"problems": "tiny.json"}
    add_run(tmp_path / "run", "ttrl", world="real", task="tiny", config=config)
    assert not read([tmp_path])[0][0].planted


def test_unfinished_runs_are_flagged(add_run, tmp_path):
    for name in ("ttrl", "guard"):
        path = add_run(tmp_path / name, name, seed=7) / "run.json"
    run = json.loads(path.read_text())
    path.write_text(json.dumps(run | {"status": "interrupted", "progress": 0.4}))
    plain = without_scripts(page(*read([tmp_path])))
    header = plain.split("<main")[0]
    assert "TTRL-Guard, seed 7: interrupted at 40%" in header
    assert '<div class="flag">seed 7 interrupted at 40%</div>' in plain


def test_code_that_was_changed_is_told_from_its_commit(add_run, tmp_path):
    for name, commit in (("ttrl", "a" * 40), ("guard", f"{'b' * 40}-dirty")):
        path = add_run(tmp_path / name, name) / "run.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"commit": commit}))
    plain = without_scripts(page(*read([tmp_path])))
    assert f"<td>{'a' * 12}</td>" in plain and f"<td>{'b' * 12}-dirty</td>" in plain


def test_an_early_end_does_not_look_like_the_whole_way(add_run, tmp_path, make_trace, save):
    add_run(tmp_path / "ttrl", "ttrl")
    short = make_trace("guard", np.full((1, 2, 9), 0.6), np.full((1, 9), 0.6))
    short.run.n_problems = 12
    del short.run.config["step"]
    save(short, tmp_path / "guard")
    (world,) = read([tmp_path])[0]
    assert world.of_arm("ttrl")["progress"].max() == 1
    assert world.of_arm("guard")["progress"].max() == pytest.approx(8 / 9)


def test_empty_settings_are_shown_and_shared(add_run, tmp_path):
    for name in ("ttrl", "guard"):
        add_run(tmp_path / name, name, config={"suffix": "", "left_out": [], "file": None})
    plain = without_scripts(page(*read([tmp_path])))
    assert "Settings that differ" not in plain
    for name, value in {"suffix": "&quot;&quot;", "left_out": "[]", "file": "null"}.items():
        assert f"<dt>{name}</dt><dd><code>{value}</code></dd>" in plain


def test_notices_of_runs_are_on_the_page_once(add_run, tmp_path):
    for name in ("ttrl", "guard"):
        extra = {"notices": ["left out: 2 overlong prompts <b>", f"{name} alone"]}
        add_run(tmp_path / name, name, extra=extra)
    plain = without_scripts(page(*read([tmp_path])))
    assert plain.count("<p>left out: 2 overlong prompts &lt;b&gt;</p>") == 1
    assert "<p>ttrl alone</p>" in plain and "<p>guard alone</p>" in plain


def test_without_true_answers_there_are_no_fates(tmp_path, make_trace, save):
    for arm in ("ttrl", "guard"):
        unknown = make_trace(arm, np.full((2, 3, 11), np.nan), np.full((2, 11), np.nan))
        save(unknown, tmp_path / arm)
    content = page(*read([tmp_path]))
    plain = without_scripts(content)
    assert plain.count("the true answers of these problems are not known") == 4
    assert "Nothing to pair" in plain
    assert "sim-test-progress-data" in figures_of(content)


def test_real_runs_stand_below_their_simulation(add_run, tmp_path):
    config = {"lr": 1e-4, "n_votes": 64, "epochs": 9}
    for name in ("ttrl", "frozen"):
        for seed in range(2):
            folder = tmp_path / "real" / name / str(seed)
            add_run(folder, name, seed, world="real", task="tiny", config=config)
        own = config | {"policy": "measured"}
        add_run(tmp_path / "sim" / name, name, n_replicates=3, task="tiny", config=own)
    content = page(read([tmp_path])[0], [])
    data = figures_of(content)["real-tiny-agreement-data"]["data"]
    shown = [trace["name"] for trace in data if trace["showlegend"] and "name" in trace]
    assert shown == [f"{c}, {w}" for w in ("real", "simulated") for c in ("FR", "MR", "pass@1")]
    part = without_scripts(content).split('id="agreement"')[1].split("</section>")[0]
    assert "other half of the seeds" in part and "copy of TTRL" in part
    assert "linearised over its token tree before any" in content
    assert "<h2>Simulator, predicting real runs: tiny" in content
    assert 'id="agreement"' not in page(read([tmp_path / "real"])[0], [])


def test_what_the_steps_tell_of_responses_stands_below_their_cost(tmp_path, make_trace, save):
    half = np.full((2, 3, 10), 0.5)
    for arm, seconds in (("ttrl", 2.0), ("guard", 3.0)):
        trace = make_trace(arm, half, half[:, 0], world="real", seeds=[0, 1])
        trace.steps["seconds_step"] = seconds
        if arm == "guard":
            trace.steps["truncated"] = np.where(trace.steps["step"] > 1, 0.25, 1.0)
        save(trace, tmp_path / arm)
    worlds, _ = read([tmp_path])
    content = without_scripts(page(worlds, []))
    part = content.split('id="overhead"')[1].split("</section>")[0]
    cells = re.sub("<[^>]+>", " ", part.split("responses cut at their limit (% of votes)")[1])
    assert cells.split()[:3] == ["25.0", "±", "0.0"]
    assert "peak memory" not in part and "different machines" not in part
    worlds[0].comparison.manifests[0].machine = {"cpu": "another"}
    assert "The runs had different machines" in page(worlds, [])
