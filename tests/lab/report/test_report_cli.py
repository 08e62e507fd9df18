"""`guard-report`: what it prints, what it refuses, what it never overwrites."""

import subprocess
import sys

import pytest

from lab.report.cli import main
from lab.report.writing import is_report


def failed(capsys):
    """The one line on stderr."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("guard-report: ")
    assert err.count("\n") == 1
    return err


def test_prints_the_path_and_the_numbers(runs, tmp_path, capsys):
    page = tmp_path / "r.html"
    assert main([str(runs.sim), str(runs.real), "-o", str(page)]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[-1] == str(page)
    assert lines[0] == "Simulator: llama-math500"
    assert lines[4] == "Real model: tiny"
    assert lines[1].strip().startswith("Problems that TTRL makes worse: TotalDeg ")
    assert "95 % interval" in lines[2]
    assert err == ""


def test_markdown_goes_to_the_terminal_or_a_new_file(runs, tmp_path, capsys):
    assert main([str(runs.real), "--format", "md"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("## Real model: tiny\n")
    page = tmp_path / "page.md"
    assert main([str(runs.real), "--format", "md", "-o", str(page)]) == 0
    assert page.read_text() == printed
    assert capsys.readouterr().out == f"{page}\n"
    page.write_text("mine")
    assert main([str(runs.real), "--format", "md", "-o", str(page)]) == 2
    assert "--force" in failed(capsys)
    assert page.read_text() == "mine"
    assert main([str(runs.real), "--format", "md", "-o", str(page), "--force"]) == 0
    assert page.read_text() == printed


def test_default_place_is_the_first_folder_and_own_pages_are_replaced(add_run, tmp_path, capsys):
    folder = add_run(tmp_path / "run", "ttrl")
    assert main([str(folder)]) == 0
    page = folder / "report.html"
    assert capsys.readouterr().out.splitlines()[-1] == str(page)
    assert is_report(page)
    page.write_text(page.read_text().replace("</body>", "old</body>"))
    assert main([str(folder)]) == 0
    assert "old</body>" not in page.read_text()


@pytest.mark.parametrize("content", ["", "my notes", "<html><head></head></html>"])
def test_foreign_files_are_kept(runs, tmp_path, capsys, content):
    page = tmp_path / "page.html"
    page.write_text(content)
    assert main([str(runs.sim), "--output", str(page)]) == 2
    assert "is not a report" in failed(capsys)
    assert page.read_text() == content
    assert main([str(runs.sim), "--output", str(page), "--force"]) == 0
    assert is_report(page)


def test_a_broken_run_is_named_and_left_out(runs, tmp_path, capsys):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_text("{")
    page = tmp_path / "page.html"
    assert main([str(runs.sim), str(tmp_path / "bad"), "-o", str(page)]) == 0
    assert capsys.readouterr().err.startswith(f"left out: {tmp_path / 'bad'}: run.json is damaged")


def test_wrong_folders(tmp_path, capsys):
    assert main([str(tmp_path / "none")]) == 2
    assert "no such folder" in failed(capsys)
    assert main([str(tmp_path)]) == 2
    assert "no run in it" in failed(capsys)
    assert list(tmp_path.iterdir()) == []


def test_no_folder(capsys):
    assert main([]) == 2
    failed(capsys)


def test_the_output_must_be_a_file_in_a_folder(runs, tmp_path, capsys):
    assert main([str(runs.sim), "-o", str(tmp_path)]) == 2
    assert "is a folder" in failed(capsys)
    assert main([str(runs.sim), "-o", str(tmp_path / "none" / "page.html")]) == 2
    assert "its folder does not exist" in failed(capsys)


@pytest.mark.parametrize("length", [250, 400])
def test_an_impossible_name(runs, tmp_path, capsys, length):
    """The page's name, or that of its temporary file, is longer than disks allow."""
    assert main([str(runs.sim), "-o", str(tmp_path / ("n" * length))]) == 2
    assert "cannot be written" in failed(capsys)
    assert list(tmp_path.iterdir()) == []


def test_help_needs_no_plotting_library():
    code = (
        "import sys, lab.report.cli as c\n"
        "try: c.main(['--help'])\n"
        "except SystemExit: pass\n"
        "assert 'plotly' not in sys.modules and 'pandas' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--force" in done.stdout


def test_python_m_lab():
    done = subprocess.run([sys.executable, "-m", "lab", "none"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("guard-report: none: no such folder")
