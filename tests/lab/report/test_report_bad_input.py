"""Every defect of a run folder is named: it is left out among good runs, and an error alone."""

import json

import pyarrow.parquet as pq
import pytest

from lab.report.cli import main


def part(folder, table="visits"):
    return folder / table / "part-00000.parquet"


def damaged(folder):
    part(folder).write_bytes(b"nothing of a table")


def half_written(folder):
    content = part(folder).read_bytes()
    part(folder).write_bytes(content[: len(content) // 2])


def empty_part(folder):
    part(folder).write_bytes(b"")


def flipped_inside(folder, table="visits"):
    """The table of contents at the end is whole, what it points to is not."""
    content = bytearray(part(folder, table).read_bytes())
    content[4:400] = bytes(255 - byte for byte in content[4:400])
    part(folder, table).write_bytes(content)


def damaged_steps(folder):
    flipped_inside(folder, "steps")


def no_visits(folder):
    part(folder).unlink()


def no_evals(folder):
    part(folder, "evals").unlink()


def no_steps(folder):
    part(folder, "steps").unlink()


def foreign(folder):
    (folder / "run.json").write_text('{"name": "of another program"}')


def half_manifest(folder):
    content = (folder / "run.json").read_text()
    (folder / "run.json").write_text(content[: len(content) // 2])


def newer(folder):
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(run | {"schema_version": 99}))


def without_columns(folder):
    table = pq.read_table(part(folder))
    pq.write_table(table.drop_columns(["match_rate", "route"]), part(folder))


BAD = {
    damaged: "is damaged",
    half_written: "is damaged",
    empty_part: "is damaged",
    flipped_inside: "damaged",
    damaged_steps: "damaged",
    no_visits: "holds no visits",
    foreign: "not of this program",
    half_manifest: "run.json is damaged",
    newer: "upgrade",
    without_columns: "visits lacks the columns match_rate, route",
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
