"""The sections for a GPU, each in a dry run on the CPU; their records and the page of results."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import prove
import pytest
import steps
import torch
from correct import cpu_curve
from record import PRODUCT, Report, read_lines, table
from shapes import Setup, attempt

from real.speed import ASSUMED, CARDS

GPU = Path(__file__).parents[2] / "benchmarks" / "gpu"

WITHOUT = ("plotly", "vllm")
"""Packages of this project that a machine with torch and transformers may lack."""

HIDING = f"""
import sys
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = staticmethod(
    lambda name, *others: None if name.partition(".")[0] in {WITHOUT} else find(name, *others)
)
"""
RUNNING = """
import sys, time
from pathlib import Path
import prove

def broken(setup, report):
    report.add("before", 1.0)
    raise ValueError("something is wrong")

def outside(setup, report):
    report.check("too large", 2.0, 1.0)

def endless(setup, report):
    report.add("before", 1.0)
    time.sleep(600)

folder = Path(sys.argv[1])
prove.main(["--part", "A", "--dry", "--out", str(folder / "whole")])
for part in "DE":
    prove.main(["--part", part, "--dry", "--out", str(folder / "whole")])
failing = ("broken", "outside", "endless")
prove.SECTIONS = {name: prove.Listed(name, "A", 9, "__main__", 0, 1, "") for name in failing}
prove.DRY_SECONDS = 2.0
print("FAILING")
sys.exit(prove.main([*failing, "--dry", "--out", str(folder / "failing")]))
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Part A on a machine without most of this project's packages, then three failing sections.

    The process is one of its own: it forks, which threads of pytest may not survive.
    """
    folder = tmp_path_factory.mktemp("gpu")
    paths = os.pathsep.join([str(GPU), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", HIDING + RUNNING, str(folder)]
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    print(done.stderr, (folder / "whole" / "log.txt").read_text())
    return folder, done


@pytest.fixture(scope="module")
def records(ended):
    found = read_lines(ended[0] / "whole" / "results.jsonl")
    return {record["section"]: record for record in found}


def value(record, name):
    return next(m["value"] for m in record["measures"] if m["name"] == name)


@pytest.mark.slow
def test_every_section_of_parts_a_d_and_e_runs_dry(records):
    assert list(records) == [name for name, one in prove.SECTIONS.items() if one.part in "ADE"]
    for name, record in records.items():
        assert record["status"] == "done", (name, record.get("error"))
        assert record["dry"] and record["measures"] and record["facts"]["torch"]
    assert value(records["tiny"], "visits of the resumed run") == "the same"
    assert value(records["tiny"], "weights of the resumed run: largest difference") == 0
    assert "planned failure" in value(records["ends"], "message")
    assert value(records["ends"], "exit code") == 2
    assert value(records["batch"], "step without sampling: n_updates") == 2
    assert value(records["learns"], "pass@1 at step 0") >= 0  # as evaluations come
    known = ASSUMED
    found = {m["rate"] for record in records.values() for m in record["measures"] if "rate" in m}
    assert found <= {*known} and {"host_link", "train_flops"} <= found


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_without_a_gpu_a_section_is_left_out(tmp_path, capsys):
    assert prove.inside("ends", tmp_path, dry=False) == 4
    assert capsys.readouterr().out.startswith("there is no GPU here")


def test_each_part_takes_at_most_ten_minutes_and_all_thirty():
    assert sum(one.seconds for one in prove.SECTIONS.values()) <= 30 * 60
    assert list(dict.fromkeys(one.part for one in prove.SECTIONS.values())) == list("ACBDE")
    for part in "ABCDE":
        limits = [one.seconds for one in prove.SECTIONS.values() if one.part == part]
        assert sum(limits) <= prove.PART_SECONDS < 600


@pytest.mark.parametrize("kind", ["h100", "h200", "a100"])
def test_every_section_is_within_its_limit_by_the_plan(kind, capsys, monkeypatch):
    monkeypatch.delenv("SMOLLM2", raising=False)
    monkeypatch.setattr(prove, "needs", functools.cache(prove.needs))
    found, slower = prove.needs(kind), max(1.0, prove.FAST / (0.8 * CARDS[kind].flops))
    assert (slower == 1) is (kind != "a100")
    assert {need.section for need in found if need.fits} == {need.section for need in found}
    for section, one in prove.SECTIONS.items():
        own = [need for need in found if need.section == section and need.fits]
        planned = one.planned + sum(need.seconds for need in own)
        assert own or one.work, section
        assert planned <= one.limit(slower), section
    layers = next(n for n in found if n.setting == "3B, 3,072 tokens, 8k a pass, kept layers")
    assert layers.fits is (kind == "h200")
    assert prove.main(["--dry-run", "--gpu", kind]) == 0
    said = capsys.readouterr().out
    assert ("GiB, left out" in said) is (kind != "h200") and "limits of all sections" in said
    assert "SMOLLM2: not set, left out; see bring.sh" in said
    monkeypatch.setenv("SMOLLM2", "/site/smollm2")
    assert "SMOLLM2: /site/smollm2" in "\n".join(prove.dry_run(kind))


@pytest.mark.parametrize(
    ("ceiling", "slower"), [(7e14, 1.0), (2.5e14, 2.4), (None, 1.0), (0.0, 1.0)]
)
def test_limits_are_longer_where_a_plain_product_is_slower(ceiling, slower, tmp_path, monkeypatch):
    """Stand-ins of an H100 and an A100; the product is known from its section on."""
    limits = {}

    def section(name, folder, dry, limit):
        limits[name] = limit
        known = name == "ceiling" and ceiling is not None
        measures = [{"name": PRODUCT, "value": ceiling, "unit": "1/s"}] if known else []
        record = {"section": name, "status": "done", "seconds": 0.0}
        return {**record, "dry": False, "measures": measures}

    monkeypatch.setattr(prove, "run_section", section)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    for part in "AC":
        prove.main(["--part", part, "--out", str(tmp_path)])
    assert limits["numbers"] == pytest.approx(35, abs=0.1)
    for name, planned, seconds in (("batch", 20, 75), ("memory", 15, 50), ("step", 175, 355)):
        assert limits[name] == pytest.approx(planned + (seconds - planned) * slower)


@pytest.mark.parametrize(
    ("sheet", "ceiling", "share", "reached"),
    [(312e12, 250e12, 0.25, True), (312e12, 250e12, 0.23, False), (989e12, 700e12, 0.2, False)],
)
def test_a_step_is_judged_by_the_card_s_own_product(
    sheet, ceiling, share, reached, tmp_path, monkeypatch
):
    run = SimpleNamespace(engine=SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(steps, "_config", lambda *_, **__: None)
    monkeypatch.setattr(steps, "_scripted", lambda *_, **__: run)
    monkeypatch.setattr(steps, "_measure", lambda *_: share)
    monkeypatch.setattr(steps, "peak_flops", lambda _: sheet)
    monkeypatch.setattr(Setup, "ceiling", lambda _: ceiling)
    report = Report(tmp_path / "one.jsonl", dry=False)
    steps.step(Setup(True, tmp_path), report)
    assert bool(report.missed) is not reached
    assert read_lines(tmp_path / "one.jsonl")[-1]["value"] == pytest.approx(share * sheet / ceiling)


def test_the_curve_of_the_cpu_starts_and_ends_where_its_runs_do():
    curve = cpu_curve()
    assert len(curve) == 9 and curve[0] == pytest.approx(0.53, abs=0.01)
    assert curve[-1] == pytest.approx((0.8568 + 0.8802) / 2)


def test_a_setting_without_memory_is_a_row_and_not_the_end(tmp_path):
    def full():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")

    setup, report = Setup(True, tmp_path), Report(tmp_path / "one.jsonl", dry=True)
    assert attempt(setup, report, "a", 1, full) is None
    assert attempt(setup, report, "b", 2**61, full) is None
    assert attempt(setup, report, "c", 1, lambda: 3) == 3
    rows = {row["name"]: row["value"] for row in read_lines(tmp_path / "one.jsonl")}
    assert rows.pop("a: out of memory").startswith("CUDA out of memory")
    assert list(rows) == ["b: left out"] and not report.missed


@pytest.mark.slow
def test_a_failure_stops_no_other_section(ended):
    folder, process = ended
    assert process.returncode == 1, process.stderr
    found = read_lines(folder / "failing" / "results.jsonl")
    assert [record["status"] for record in found] == ["failed", "missed", "too slow"]
    assert found[0]["error"] == "ValueError: something is wrong"
    assert value(found[2], "before") == 1.0
    said = process.stdout.partition("FAILING\n")[2]
    assert all(json.loads(line) for line in said.splitlines()[:3])
    assert "killed after 2 s" in said


def test_the_table_judges_what_ran_on_a_gpu_alone(tmp_path):
    path = tmp_path / "one.jsonl"
    report = Report(path, dry=False)
    report.target("speed", 0.5, at_least=0.4)
    report.target("time", 9.0, "s", at_most=5)
    report.add("ratio", float("nan"))
    record = {"section": "one", "status": "missed", "measures": read_lines(path), "facts": {}}
    dry, real = {**record, "dry": True}, {**record, "dry": False, "facts": {"device": "H200"}}
    shown = "\n".join(table([real]))
    assert "| `one` | speed | 0.5 | >= 0.4 | reached |" in shown
    assert "| `one` | time | 9 s | <= 5 s | **missed** |" in shown and "not finite" in shown
    assert report.missed == ["time"] and "reached" not in "".join(table([dry]))


def test_unknown_sections_are_refused(capsys):
    for words in (["nowhere"], []):
        with pytest.raises(SystemExit):
            prove.main(words)
    assert "nowhere: no such section" in capsys.readouterr().err
