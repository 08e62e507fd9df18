import csv
import os
import re
from itertools import chain

import pytest

from lab.__main__ import main
from lab.report.html import is_made_by
from lab.report.page import GENERATOR


def failed(capsys):
    """The one line on stderr."""
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("guard-report: ") and err.count("\n") == 1
    return err


def test_prints_the_path_and_the_numbers(runs, tmp_path, capsys):
    page = tmp_path / "r.html"
    assert main([str(runs.sim), str(runs.real), "-o", str(page)]) == 0
    out, err = capsys.readouterr()
    lines, shown = out.splitlines(), ("Simulator: llama-math500", "Real model: tiny", str(page))
    assert (lines[0], lines[4], lines[-1], err) == (*shown, "")
    assert lines[1].strip().startswith("Problems that TTRL makes worse: TotalDeg ")
    assert "95 % interval" in lines[2]


def test_markdown_goes_to_the_terminal_or_a_new_file(runs, tmp_path, capsys):
    folder = str(runs.real / "ttrl")
    assert main([folder, "--format", "md"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("## Real model: tiny\n")
    page = tmp_path / "page.md"
    assert main([folder, "--format", "md", "-o", str(page)]) == 0
    assert page.read_text() == printed
    assert capsys.readouterr().out == f"{page}\n"
    page.write_text("mine")
    assert main([folder, "--format", "md", "-o", str(page)]) == 2
    assert "--force" in failed(capsys)
    assert page.read_text() == "mine"
    assert main([folder, "--format", "md", "-o", str(page), "--force"]) == 0
    assert page.read_text() == printed


def test_a_pipe_is_not_replaced_by_a_file(runs, tmp_path, capsys):
    os.mkfifo(pipe := tmp_path / "pipe")
    assert main([str(runs.real / "ttrl"), "-o", str(pipe), "--force"]) == 2
    assert "pipe: is a folder, pipe or device" in failed(capsys) and pipe.is_fifo()


def test_default_place_is_the_first_folder_and_own_pages_are_replaced(add_run, tmp_path, capsys):
    folder = add_run(tmp_path / "run", "ttrl")
    assert main([str(folder)]) == 0
    page = folder / "report.html"
    assert capsys.readouterr().out.splitlines()[-1] == str(page)
    assert is_made_by(page, GENERATOR)
    page.write_text(page.read_text().replace("</body>", "old</body>"))
    assert main([str(folder)]) == 0
    assert "old</body>" not in page.read_text()


def test_foreign_files_are_kept(runs, tmp_path, capsys):
    page, content = tmp_path / "page.html", "<html><head></head></html>"
    page.write_text(content)
    words = [str(runs.sim / "ttrl"), "--output", str(page)]
    assert main(words) == 2
    assert "is not a report" in failed(capsys)
    assert page.read_text() == content
    assert main([*words, "--force"]) == 0
    assert is_made_by(page, GENERATOR)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "missing: FOLDERS; see guard-report --help"),
        ("{t}/none", "no such folder"),
        ("{t}", "no run in it"),
        ("{run} -o {t}", "is a folder"),
        ("{run} -o {t}/none/page.html", "its folder does not exist"),
        ("{run} -o {t}/" + "n" * 250, "cannot be written"),
        ("{run} --format csv", "add -o FOLDER"),
        ("{run} --format csv -o {run}", "is not empty; choose a new folder"),
        ("{run} --format csv -o {run}/run.json", "is a file"),
        ("{run} --format csv -o {run}/run.json/where", "cannot be written"),
        ("{run} --figures {run}/run.json", "is a file"),
    ],
)
def test_wrong_lines_are_refused_and_nothing_is_written(runs, tmp_path, capsys, words, said):
    line = words.format(t=tmp_path, run=runs.sim / "ttrl").split()
    assert main(line) == 2
    assert said in failed(capsys)
    assert list(tmp_path.iterdir()) == []


EVIL = "x\r# heading \\[a](https://evil) b\\|c `|` \x1b]0;owned\x07"


@pytest.fixture
def evil(add_run, tmp_path):
    """Two runs with a hostile task, one of them under a formula for a name."""
    for arm in ("ttrl", "=cmd|'/c calc'!A0"):
        add_run(tmp_path / "runs" / str(len(arm)), arm, task=EVIL)
    return tmp_path / "runs"


def test_no_cell_of_a_table_is_a_formula(evil, tmp_path, capsys):
    assert main([str(evil), "--format", "csv", "-o", str(tmp_path / "tables")]) == 0
    rows = [csv.reader(path.open(newline="")) for path in (tmp_path / "tables").glob("*.csv")]
    cells = list(chain.from_iterable(chain.from_iterable(rows)))
    assert "'=cmd|'/c calc'!A0" in cells
    assert not [cell for cell in cells if cell[:1] in ("=", "+", "@", "\t", "\r")]
    assert all(float(cell) < 0 for cell in cells if cell.startswith("-"))


def test_markdown_of_a_hostile_task_opens_no_heading_link_or_cell(evil, capsys):
    assert main([str(evil), "--format", "md"]) == 0
    out = capsys.readouterr().out
    assert "\r" not in out and "\x1b" not in out
    head = out.splitlines()[0]
    assert head.startswith("## Simulator: x # heading ")
    assert not re.search(r"(?<!\\)(\\\\)*[\[|`]", head)


def test_a_hostile_name_reaches_the_terminal_as_text(evil, tmp_path, capsys):
    (tmp_path / "runs" / "bad\n\x1b[31m").mkdir()
    (tmp_path / "runs" / "bad\n\x1b[31m" / "run.json").write_text("{")
    assert main([str(evil), "-o", str(tmp_path / "page.html")]) == 0
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert err.count("\n") == 1
    assert "owned" in out


def test_folders_with_names_that_are_not_utf_8(add_run, tmp_path, capsys):
    top = tmp_path / "runs"
    add_run(top / os.fsdecode(b"good\xff"), "ttrl")
    bad = add_run(top / os.fsdecode(b"bad\xff"), "guard")
    (bad / "run.json").write_text("{")
    for kind in ("html", "md", "csv"):
        target = tmp_path / os.fsdecode(b"out\xfe") / kind
        target.parent.mkdir(exist_ok=True)
        assert main([str(top), "--format", kind, "-o", str(target)]) == 0
        out, err = capsys.readouterr()
        assert err.startswith(f"left out: {top}/bad\\udcff: run.json is damaged")
        assert "out\\udcfe" in out
    assert "bad\\udcff" in (target.parent / "html").read_text("utf-8")
