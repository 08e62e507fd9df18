"""Every defect of a run folder is named: it is left out among good runs, and an error alone."""

import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lab.__main__ import main
from lab.trace.schema import ANSWERS


def part(folder, table="visits"):
    return folder / table / "part-00000.parquet"


def killed(folder):
    """Make the run one that did not finish, whose rows may be fewer than it noted."""
    changed(status="running")(folder)


def no_evals(folder):
    killed(folder)
    part(folder, "evals").unlink()


def no_steps(folder):
    killed(folder)
    part(folder, "steps").unlink()


def changed(text="", **changes):
    """Set fields of run.json; `text` stands for the value "DEEP"."""

    def spoil(folder):
        run = json.loads((folder / "run.json").read_text()) | changes
        (folder / "run.json").write_text(json.dumps(run).replace('"DEEP"', text))

    spoil.__name__ = f"changed-{'-'.join(changes)}"
    return spoil


def emptied(table, name, cells=slice(None)):
    """Leave cells of a column empty."""

    def spoil(folder):
        found = pq.read_table(part(folder, table))
        values = np.array(found[name].to_pylist(), object)
        values[cells] = None
        place = found.column_names.index(name)
        pq.write_table(found.set_column(place, name, pa.array(values)), part(folder, table))

    spoil.__name__ = f"emptied-{table}-{name}"
    return spoil


def with_answers(folder):
    killed(folder)
    cells = {c.name: [0, 0] for c in ANSWERS} | {"text": ["a", "b"], "replicate": [0, None]}
    fields = [pa.field(c.name, pa.from_numpy_dtype(c.dtype)) for c in ANSWERS]
    pq.write_table(pa.table(cells, schema=pa.schema(fields)), part(folder, "answers"))


def pipe(folder):
    part(folder).unlink()
    os.mkfifo(part(folder))


def device(folder):
    """A part that never ends."""
    part(folder).unlink()
    part(folder).symlink_to("/dev/zero")


def pipe_of_settings(folder):
    (folder / "run.json").unlink()
    os.mkfifo(folder / "run.json")


def same_visit_twice(folder):
    killed(folder)
    table = pq.read_table(part(folder))
    pq.write_table(pa.concat_tables([table, table.slice(3, 1)]), part(folder))


def far_problem(folder):
    table = pq.read_table(part(folder))
    problem = table["problem"].to_numpy().copy()
    problem[-1] = 2**31 - 1
    place = table.column_names.index("problem")
    pq.write_table(table.set_column(place, "problem", pa.array(problem)), part(folder))


BAD = {
    changed(extra={"notices": True}): "run.json is damaged",
    changed(extra={"notices": "a text"}): "run.json is damaged",
    changed(extra={"notices": 5.5}): "run.json is damaged",
    changed(n_problems=10**400): "run.json is damaged",
    changed('{"a":' * 100_000 + "1" + "}" * 100_000, extra="DEEP"): "nested too deep",
    changed("[" * 900 + "]" * 900, config={"z": "DEEP"}): "nested more than 20 deep",
    changed(arm="\0"): "run.json is damaged",
    changed(task="x" * 10**6): "a text of 1000000 letters",
    changed(title="x" * 10**4): "run.json is damaged",
    changed(seeds=[0] * 10**6): "run.json is damaged",
    emptied("visits", "flipped"): "flipped is null",
    emptied("visits", "replicate", [3]): "visits is damaged",
    emptied("steps", "replicate"): "steps is damaged",
    with_answers: "replicate has empty cells",
    pipe: "part-00000.parquet is no file",
    pipe_of_settings: "run.json is no file",
    same_visit_twice: "a visit of a problem is there twice",
    far_problem: "problem has a value of 2.14748e+09",
    device: "part-00000.parquet is no file",
}


@pytest.mark.parametrize("spoil", BAD, ids=lambda spoil: spoil.__name__)
def test_a_bad_folder_is_named(add_run, tmp_path, capsys, spoil):
    bad = add_run(tmp_path / "bad", "guard")
    spoil(bad)
    assert main([str(bad), "-o", str(tmp_path / "page.html")]) == 2
    alone = capsys.readouterr().err
    assert alone.startswith(f"guard-report: {bad}: ")
    assert BAD[spoil] in alone
    assert alone.count("\n") == 1
    assert not (tmp_path / "page.html").exists()
    good = add_run(tmp_path / "good", "ttrl")
    assert main([str(good), str(bad), "--format", "csv", "-o", str(tmp_path / "tables")]) == 0
    beside = capsys.readouterr().err
    assert beside == alone.replace("guard-report", "left out")
    assert list((tmp_path / "tables").glob("*-metrics.csv"))


@pytest.mark.parametrize("spoil", [no_evals, no_steps], ids=lambda spoil: spoil.__name__)
def test_what_a_killed_run_did_not_write_is_not_measured(add_run, tmp_path, capsys, spoil):
    for arm in ("ttrl", "guard"):
        spoil(add_run(tmp_path / arm, arm))
    page = tmp_path / "page.html"
    assert main([str(tmp_path), "-o", str(page)]) == 0
    assert capsys.readouterr().err == ""
    rows = page.read_text().split('id="table"')[1].split("</table>")[0]
    lacking = {no_evals: "pass@1 at the end", no_steps: "mean update norm"}[spoil]
    assert lacking not in rows
    assert "TotalDeg" in rows
