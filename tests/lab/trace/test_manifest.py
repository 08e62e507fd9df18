import platform
import re
import subprocess
import sys
from datetime import datetime

import numpy as np
import pytest

from lab.trace import manifest
from lab.trace.manifest import encode, machine, read_manifest, versions, write_manifest


def test_provenance_is_filled_in(make_manifest):
    run = make_manifest()
    assert datetime.fromisoformat(run.started).tzinfo is not None
    assert (run.status, run.ended, run.progress) == ("running", None, 0.0)
    assert run.versions["numpy"] == np.__version__ and run.machine["cores"] >= 1


def test_a_run_of_very_many_problems_can_be_read(make_manifest, tmp_path):
    run = make_manifest()
    run.extra["problem_ids"] = [f"{n:016x}" for n in range(700_000)]
    write_manifest(tmp_path, run)
    assert (tmp_path / "run.json").stat().st_size > 16 << 20
    assert read_manifest(tmp_path).extra == run.extra


def test_the_machine_has_no_name_and_no_path():
    assert set(machine()) == {"cpu", "cores", "platform"}
    text = str(machine())
    assert "/" not in machine()["platform"]
    assert not platform.node() or platform.node() not in text


def test_versions_name_only_what_was_loaded():
    code = "from lab.trace.manifest import versions; print(*versions())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "torch" not in done.stdout.split() and "python" in done.stdout.split()
    assert "numpy" in versions()


def test_commit_is_of_this_code_alone(tmp_path, monkeypatch):
    def git(*words):
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", "-C", tmp_path, *identity, *words], check=True, capture_output=True)

    monkeypatch.setattr(manifest, "__file__", str(tmp_path / "provenance.py"))
    find = manifest.commit.__wrapped__
    (tmp_path / "provenance.py").write_text("x")
    git("init")
    assert find() is None, "untracked: an installed copy inside another repository"
    git("add", "provenance.py")
    git("commit", "-m", "x")
    git("tag", "v9")
    assert re.fullmatch("[0-9a-f]{40}", find())
    (tmp_path / "provenance.py").write_text("y")
    assert re.fullmatch("[0-9a-f]{40}-dirty", find())


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["/opt/bin/guard-sim", "run", "--task", "a b"], "guard-sim run --task 'a b'"),
        (["/src/sim/__main__.py", "run"], "python -m sim run"),
        (["/x/ipykernel_launcher.py", "-f", "/home/me/k.json"], "notebook"),
        (["-c"], "python"),
        ([""], "python"),
    ],
)
def test_the_command_line_has_no_path_to_its_program(monkeypatch, argv, shown):
    monkeypatch.setattr(sys, "argv", argv)
    assert manifest.command() == shown


def test_json_round_trip_of_awkward_values(tmp_path, make_manifest):
    run = make_manifest(extra={"nan": float("nan"), "n": np.int64(3)}, title="<b>µ</b>")
    (tmp_path / "run.json").write_bytes(encode(run))
    back = read_manifest(tmp_path)
    assert back.extra == {"nan": None, "n": 3} and back.title == "<b>µ</b>"


def test_unknown_fields_of_a_later_version_are_passed_over(tmp_path, make_manifest):
    text = encode(make_manifest()).decode().replace("{", '{"novel": 1,', 1)
    (tmp_path / "run.json").write_text(text)
    assert read_manifest(tmp_path).arm == "ttrl"


def test_a_clock_that_was_set_back_hides_no_run(tmp_path, make_manifest):
    run = make_manifest()
    run.started = "2999-01-01T00:00:00+00:00"
    run.end("finished")
    assert run.ended == run.started and run.minutes == 0
    run.ended = "2001-01-01T00:00:00+00:00"
    (tmp_path / "run.json").write_bytes(encode(run))
    assert np.isnan(read_manifest(tmp_path).minutes)
