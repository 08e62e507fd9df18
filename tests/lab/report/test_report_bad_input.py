import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lab.__main__ import main
from lab.trace.schema import ANSWERS


def part(folder, table="visits"):
    return folder / table / "part-00000.parquet"


def no_file(name, make):
    """A pipe or a device that never ends in place of a file."""

    def spoil(folder):
        (folder / name).unlink()
        make(folder / name)

    return spoil


def changed(text="", **changes):
    """Set fields of run.json; `text` stands for the value "DEEP"."""

    def spoil(folder):
        run = json.loads((folder / "run.json").read_text()) | changes
        (folder / "run.json").write_text(json.dumps(run).replace('"DEEP"', text))

    return spoil


killed = changed(status="running")
"""Makes the run one that did not finish, whose rows may be fewer than it noted."""


def filled(table, name, cells=slice(None), value=None):
    """Fill cells of a column, or leave them empty."""

    def spoil(folder):
        found = pq.read_table(part(folder, table))
        values = found[name].to_pylist()
        for place in range(len(values))[cells]:
            values[place] = value
        place, kind = found.column_names.index(name), found.schema.field(name).type
        kind = pa.null() if set(values) == {None} else kind
        pq.write_table(found.set_column(place, name, pa.array(values, kind)), part(folder, table))

    return spoil


def with_answers(folder):
    killed(folder)
    cells = {c.name: [0, 0] for c in ANSWERS} | {"text": ["a", "b"], "replicate": [0, None]}
    fields = [pa.field(c.name, pa.from_numpy_dtype(c.dtype)) for c in ANSWERS]
    pq.write_table(pa.table(cells, schema=pa.schema(fields)), part(folder, "answers"))


def same_visit_twice(folder):
    killed(folder)
    table = pq.read_table(part(folder))
    pq.write_table(pa.concat_tables([table, table.slice(3, 1)]), part(folder))


BAD = [
    ("run.json is damaged", changed(extra={"notices": "a text"})),
    ("run.json is damaged", changed(n_problems=10**400)),
    ("nested too deep", changed('{"a":' * 100_000 + "1" + "}" * 100_000, extra="DEEP")),
    ("nested more than 20 deep", changed("[" * 900 + "]" * 900, config={"z": "DEEP"})),
    ("run.json is damaged", changed(arm="\0")),
    ("a text of 1000000 letters", changed(task="x" * 10**6)),
    ("run.json is damaged", changed(title="x" * 10**4)),
    ("run.json is damaged", changed(seeds=[0] * 10**6)),
    ("flipped is null", filled("visits", "flipped")),
    ("visits is damaged", filled("visits", "replicate", slice(3, 4))),
    ("steps is damaged", filled("steps", "replicate")),
    ("replicate has empty cells", with_answers),
    ("part-00000.parquet is no file", no_file("visits/part-00000.parquet", os.mkfifo)),
    ("run.json is no file", no_file("run.json", os.mkfifo)),
    ("a visit of a problem is there twice", same_visit_twice),
    ("problem has a value of 2.14748e+09", filled("visits", "problem", slice(-1, None), 2**31 - 1)),
    (
        "part-00000.parquet is no file",
        no_file("visits/part-00000.parquet", lambda path: path.symlink_to("/dev/zero")),
    ),
]


@pytest.mark.parametrize(("said", "spoil"), BAD)
def test_a_bad_folder_is_named(add_run, tmp_path, capsys, said, spoil):
    bad = add_run(tmp_path / "bad", "guard")
    spoil(bad)
    assert main([str(bad), "-o", str(tmp_path / "page.html")]) == 2
    alone = capsys.readouterr().err
    assert alone.startswith(f"guard-report: {bad}: ") and said in alone
    assert alone.count("\n") == 1
    assert not (tmp_path / "page.html").exists()
    good = add_run(tmp_path / "good", "ttrl")
    assert main([str(good), str(bad), "--format", "csv", "-o", str(tmp_path / "tables")]) == 0
    beside = capsys.readouterr().err
    assert beside == alone.replace("guard-report", "left out")
    assert list((tmp_path / "tables").glob("*-metrics.csv"))


@pytest.mark.parametrize(
    ("table", "lacking"), [("evals", "pass@1 at the end"), ("steps", "mean update norm")]
)
def test_what_a_killed_run_did_not_write_is_not_measured(add_run, tmp_path, capsys, table, lacking):
    for arm in ("ttrl", "guard"):
        folder = add_run(tmp_path / arm, arm)
        killed(folder)
        part(folder, table).unlink()
    page = tmp_path / "page.html"
    assert main([str(tmp_path), "-o", str(page)]) == 0
    assert capsys.readouterr().err == ""
    rows = page.read_text().split('id="table"')[1].split("</table>")[0]
    assert lacking not in rows and "TotalDeg" in rows
