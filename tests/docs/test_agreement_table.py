"""The table of real and simulated runs is made from nothing, and goes on where it stopped."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from lab.compare.agreement import COPY, OTHER_HALF
from sim.cli import main as sim_main

SMALL = "--arms ttrl frozen truth --lrs 3e-4 --seeds 0 1 --n-problems 8 --epochs 8 --n-votes 16"
SMALL += " --n-samples 8"
MEASURED = ["--responses", "64", "--weights", "1024"]
OUT = Path(__file__).parents[2] / "docs" / "tools" / "agreement.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("agreement_tool", OUT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def made(tool, tmp_path_factory):
    out, commands = tmp_path_factory.mktemp("agreement") / "runs", tool.commands

    def smaller(*given):
        for program, words in commands(*given):
            yield program, words + MEASURED * (words[0] == "measure")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tool, "commands", smaller)
        assert tool.main([str(out), *SMALL.split()]) == 0
    return out


@pytest.mark.slow
def test_three_cells_from_nothing(made):
    table = pd.read_csv(made / "simulated" / "agreement.csv")
    predictions = ["measured", "independent", "attractor", OTHER_HALF, COPY]
    assert table.groupby("arm")["prediction"].apply(set).to_dict() == {
        arm: set(predictions) for arm in ("ttrl", "frozen", "truth")
    }
    measured = table[table.prediction == "measured"].set_index("arm")
    assert measured.seeds.eq(2).all() and measured.replicates.eq(64).all()
    # True labels help and start where the real run starts: no claim on the size of the error.
    assert measured.predicted["truth"] > measured.predicted["ttrl"]
    assert (measured.final == (measured.real - measured.predicted).abs()).all()
    assert 'id="agreement"' in (made / "report.html").read_text()


@pytest.mark.slow
def test_the_same_command_makes_what_is_missing(made, tool, tmp_path):
    own = SimpleNamespace(out=made, arms=["ttrl"], lrs=["3e-4"], seeds=["0"], jobs="2")
    assert [words[0] for _, words in tool.commands(own, [])][:2] == ["compare", "resume"]
    assert not {"measure", "agree"} & {words[0] for _, words in tool.commands(own, [])}
    own.out = tmp_path
    whole = [words[0] for _, words in tool.commands(own, [])]
    assert whole[:4] == ["compare", "run", "measure", "agree"]


@pytest.mark.slow
def test_a_response_file_of_other_problems_is_refused(made, tmp_path, capsys):
    data = ["--real", str(made / "pilot"), "--response", str(made / "response.npz")]
    run = made / "pilot" / "run.json"
    before = run.read_text()
    for old, new, words in (
        ('"problems": "', '"problems": "0', "was measured with other problems"),
        ('"config.json": "', '"config.json": "0', "was measured with another model"),
        ('"clip_high": 0.2', '"clip_high": 0.3', "has clip_high = 0.3, the measured policy only"),
    ):
        try:
            run.write_text(before.replace(old, new))
            assert sim_main(["agree", *data, "--out", str(tmp_path / "new"), "--quiet"]) == 2
        finally:
            run.write_text(before)
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1 and not (tmp_path / "new").exists()


@pytest.mark.slow
def test_a_brake_is_simulated_by_the_measured_policy_alone(made, tmp_path, capsys):
    data = ["--real", str(made / "pilot"), "--response", str(made / "response.npz"), "--quiet"]
    run = made / "pilot" / "run.json"
    before = run.read_text()
    assert '"brake": 1.0' in before
    try:
        run.write_text(before.replace('"brake": 1.0', '"brake": 0.5'))
        assert sim_main(["agree", *data, "--out", str(tmp_path / "all")]) == 2
        assert "has guard.brake = 0.5, the classical policies have no" in capsys.readouterr().err
        assert sim_main(["agree", *data, "--classical", "--out", str(tmp_path / "alone")]) == 0
    finally:
        run.write_text(before)
