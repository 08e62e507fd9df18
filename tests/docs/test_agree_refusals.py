"""Real runs that `agree` refuses, or of which it leaves something out."""

import pytest

from real.cli import main as real_main
from sim.cli import main as sim_main

SMALL = ["--lr", "3e-4", "--n-problems", "4", "--epochs", "8", "--n-votes", "8"]
SMALL += ["--n-samples", "4", "--checkpoint-every", "0", "--quiet"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("agreement")
    assert real_main(["run", "--arm", "ttrl", "--out", str(out / "pilot"), *SMALL]) == 0
    measured = ["--n-problems", "4", "--responses", "16", "--weights", "256"]
    assert real_main(["measure", "--out", str(out / "response.npz"), *measured]) == 0
    return out


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


def test_a_brake_is_simulated_by_the_measured_policy_alone(made, tmp_path, capsys):
    data = ["--real", str(made / "pilot"), "--response", str(made / "response.npz"), "--quiet"]
    data += ["--replicates", "4"]
    run = made / "pilot" / "run.json"
    before = run.read_text()
    assert '"brake": 1.0' in before
    try:
        run.write_text(before.replace('"brake": 1.0', '"brake": 0.5'))
        assert sim_main(["agree", *data, "--out", str(tmp_path / "all")]) == 0
        assert "left out: classical policies (their step size needs" in capsys.readouterr().out
    finally:
        run.write_text(before)
