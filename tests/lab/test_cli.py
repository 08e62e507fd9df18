import importlib
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal

import pytest

import guard_core
from guard_core import GuardConfig
from lab.base.errors import UserError
from lab.base.settings import from_values, toml_values
from lab.cli import EXIT_CLOSED_PIPE, parse, run_cli


@dataclass(frozen=True)
class Settings:
    size: int = 3
    mode: Literal["fast", "slow"] = "fast"
    rate: float | None = None
    guard: GuardConfig = field(default_factory=GuardConfig)


@dataclass
class Show:
    """Print the settings."""

    config: Path | None = None
    """TOML file with settings."""
    settings: Settings = field(default_factory=Settings)

    @classmethod
    def defaults(cls, given):
        path = given.get("config")
        if path is None:
            return {}
        return {"settings": from_values(toml_values(path), Settings, str(path))}

    def run(self):
        print(self.settings.size, self.settings.mode, self.settings.guard.rates.W)


@dataclass
class Raise:
    """Fail in one of several ways."""

    how: Literal["user", "config", "interrupt", "code", "bug"]

    def run(self):
        if self.how == "user":
            raise UserError("problems.json: row 3\n  has no answer; add one")
        if self.how == "config":
            GuardConfig().set(W=0)
        if self.how == "interrupt":
            raise KeyboardInterrupt
        if self.how == "bug":
            raise RuntimeError("a mistake of ours")
        return 7


def call(capsys, *argv, commands=None):
    code = run_cli("guard-test", commands or {"show": Show, "raise": Raise}, argv)
    seen = capsys.readouterr()
    return code, seen.out, seen.err


def one_line(err):
    assert err.endswith("\n") and err.count("\n") == 1
    assert err.startswith("guard-test: ") and "Traceback" not in err
    return err


def test_a_command_runs_with_its_options(capsys):
    assert call(capsys, "show") == (0, "3 fast 5\n", "")
    code, out, _ = call(capsys, "show", "--size", "8", "--mode", "slow", "--guard.W", "7")
    assert (code, out) == (0, "8 slow 7\n")


def test_options_override_the_file_that_sets_their_defaults(capsys, tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("\ufeffsize = 8\n[guard]\nW = 9\n")  # as some editors begin a file
    assert call(capsys, "show", "--config", str(path))[1] == "8 fast 9\n"
    assert call(capsys, "show", f"--config={path}", "--size", "1")[1] == "1 fast 9\n"


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["show", "--sizes", "4"], "unknown option --sizes; perhaps you meant --size; see "),
        (["show", "--size", "many"], "--size many: must be a whole number"),
        (["show", "--rate", "fast"], "--rate fast: must be a number"),
        (["show", "--size"], "--size expected one argument; see guard-test show --help"),
        (["show", "--mode", "fats"], "must be one of fast, slow; perhaps you meant fast"),
        (["show", "more"], "unknown word more; see guard-test show --help"),
        (["show", "--guard.W", "0"], "W = 0"),
        (["show", "--size", "4", "--size=5"], "--size is given twice (4, 5); give it once"),
        (["show", "--guard.W", "4", "--guard.W", "4"], "--guard.W is given twice"),
        (["show", "--config", "nowhere.toml"], "nowhere.toml"),
        (["shout"], "unknown command shout; perhaps you meant show; the commands are show, raise"),
        (["shout", "--help"], "unknown command shout; perhaps you meant show"),
        (["raise"], "missing: --how {user,config,interrupt,code,bug}; see guard-test raise --help"),
        ([], "no command given; the commands are show, raise; see guard-test --help"),
    ],
)
def test_a_wrong_line_is_one_line_and_exit_code_2(capsys, argv, named):
    code, out, err = call(capsys, *argv)
    assert code == 2 and not out and named in one_line(err)


PROGRAMS = {"guard-sim": "sim.commands", "guard-train": "real.commands"}


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("guard-sim sweep --out x --vary step=1 --vary guard.W=2", "vary", ("step=1", "guard.W=2")),
        ("guard-sim compare --out x --arms ttrl --arms frs mps", "arms", ("ttrl", "frs", "mps")),
        ("guard-sim search --out x --lrs 1e-4 --arms ttrl --lrs 3e-4", "lrs", (1e-4, 3e-4)),
        ("guard-sim agree --real a --response r --real b", "real", (Path("a"), Path("b"))),
        ("guard-sim theory --p0 .6 --p0 .7 .8", "p0", (0.6, 0.7, 0.8)),
        ("guard-train compare --out x --seeds 0 --seeds 1 2", "seeds", (0, 1, 2)),
    ],
)
def test_a_repeated_option_appends_where_it_takes_several(line, name, value):
    prog, *words = line.split()
    commands = importlib.import_module(PROGRAMS[prog]).COMMANDS
    assert getattr(parse(prog, commands, words), name) == value


def test_pairs_of_a_repeated_option_are_joined_and_none_is_there_twice():
    commands = importlib.import_module("sim.commands").COMMANDS
    line = "run --out x --rule srt --rule-options threshold .5 --rule-options keep .9"
    settings = parse("guard-sim", commands, line.split()).settings
    assert settings.rule_options == {"threshold": 0.5, "keep": 0.9}
    again = [*line.split(), "keep", ".8"]
    with pytest.raises(UserError, match="--rule-options keep is given twice"):
        parse("guard-sim", commands, again)


@pytest.mark.parametrize(
    "line",
    [
        "guard-sim compare --out x --null --null",
        "guard-sim run --out x --quiet --no-quiet",
        "guard-sim run --out x --out y",
        "guard-train run --out x --arm ttrl --lr 1e-4 --arm guard",
        "guard-train resume x --device cpu --device cpu",
    ],
)
def test_any_other_repeated_option_is_refused(line):
    prog, *words = line.split()
    with pytest.raises(UserError, match="is given twice"):
        parse(prog, importlib.import_module(PROGRAMS[prog]).COMMANDS, words)


def test_what_a_command_raises(capsys):
    code, _, err = call(capsys, "raise", "--how", "user")
    assert (code, err) == (2, "guard-test: problems.json: row 3 has no answer; add one\n")
    code, _, err = call(capsys, "raise", "--how", "config")
    assert code == 2 and "W = 0" in one_line(err)
    code, _, err = call(capsys, "raise", "--how", "interrupt")
    assert code == 130 and "interrupted" in one_line(err)
    assert call(capsys, "raise", "--how", "code")[0] == 7
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        call(capsys, "raise", "--how", "bug")


@pytest.mark.parametrize("prog", ["guard-sim", "guard-train", "guard-report"])
def test_every_program_has_a_version(capsys, prog):
    (entry,) = entry_points(group="console_scripts", name=prog)
    module = importlib.import_module(entry.module)
    assert getattr(module, entry.attr)(["--version"]) == 0
    assert capsys.readouterr().out == f"{prog} {guard_core.__version__}\n"
    package = importlib.import_module(entry.module.partition(".")[0])
    assert package.__version__ == guard_core.__version__


def test_an_error_reaches_the_terminal_as_text(capsys):
    code, _, err = call(capsys, "show", "--config", "\x1b]0;x\x07\udcff\u202e\nis.toml")
    assert code == 2
    assert "\\x1b]0;x\\x07\\udcff\\u202e is.toml" in one_line(err)


def test_names_of_folders_that_cannot_be(capsys, tmp_path):
    @dataclass
    class Make:
        out: Path

        def run(self):
            self.out.mkdir()

    for name, said in (
        (str(tmp_path / ("x" * 300)), "the name is too long"),
        ("", "--out : must be a name"),
    ):
        code, _, err = call(capsys, "--out", name, commands={"": Make})
        assert code == 2 and said in one_line(err)


def script(body, *words):
    """A command line: a program without subcommands, whose work is some lines."""
    code = (
        "import sys\nfrom dataclasses import dataclass\nfrom lab.cli import run_cli\n"
        f"@dataclass\nclass Talk:\n    def run(self):\n        {body}\n"
        "sys.exit(run_cli('guard-test', {'': Talk}, []))\n"
    )
    return [sys.executable, "-c", code, *map(str, words)]


def test_names_that_the_terminal_cannot_show():
    line = script("print('caf\\xe9\\udcff'); print('done', file=sys.stderr)")
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = subprocess.run(line, env=plain, capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"caf\\xe9\\udcff\n")


SPEAK = "print('said'); print('warned', file=sys.stderr); "
SPEAK += "file = open(sys.argv[1], 'w'); print(file.fileno(), file=file)"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_output_to_a_full_disk_is_one_line(tmp_path):
    command = script(SPEAK, tmp_path / "file")
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    last = "guard-test: stdout cannot be written (No space left on device)"
    assert done.stderr.splitlines()[-1] == last and "Traceback" not in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="a POSIX shell")
def test_closed_standard_streams_are_no_error_and_no_file_takes_their_place(tmp_path):
    line = f"{shlex.join(script(SPEAK, tmp_path / 'file'))} <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", line]).returncode == 0
    assert int((tmp_path / "file").read_text()) > 2


def test_a_reader_that_closes_the_pipe_sees_no_traceback():
    command, pipe = script("for number in range(200_000): print(number)"), subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as child:
        assert child.stdout.readline() == "0\n"
        child.stdout.close()
        assert child.stderr.read() == "" and child.wait(60) == EXIT_CLOSED_PIPE
