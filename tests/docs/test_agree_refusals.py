"""Real runs that `agree` refuses, or of which it leaves something out."""

import pytest

from real.__main__ import main as real_main
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


@pytest.fixture
def agree(made, tmp_path, capsys):
    """Runs `guard-sim agree` with one text of the run's manifest replaced."""
    run = made / "pilot" / "run.json"
    words = ["agree", "--real", str(run.parent), "--response", str(made / "response.npz")]
    before = run.read_text()

    def code(old, new):
        assert old in before
        run.write_text(before.replace(old, new))
        rest = ["--quiet", "--replicates", "4", "--out", str(tmp_path / "new")]
        found = sim_main([*words, *rest])
        return found, capsys.readouterr()

    yield code
    run.write_text(before)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"problems": "', '"problems": "0', "was measured with other problems"),
        ('"config.json": "', '"config.json": "0', "was measured with another model"),
        ('"roles": {', '"no_roles": {', "was made by an earlier version"),
    ],
)
def test_a_response_file_of_other_problems_is_refused(agree, tmp_path, old, new, words):
    code, said = agree(old, new)
    assert code == 2 and words in said.err and said.err.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_a_brake_is_simulated_by_the_measured_policy_alone(agree):
    code, said = agree('"brake": 1.0', '"brake": 0.5')
    assert code == 0 and "left out: classical policies (their step size needs" in said.out
