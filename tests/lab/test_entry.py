import importlib
import json
import re
import signal
import subprocess
import sys
import time

import pytest

from lab.options import command_page
from real.commands import ResumeCommand

PROGRAMS = {
    "guard-sim": ("sim.cli", "sim.commands"),
    "guard-train": ("real.__main__", "real.commands"),
    "guard-report": ("lab.__main__", "lab.report"),
    "guard-verl": ("real.verl", "real.verl.commands"),
}
HEAVY = {"torch", "transformers", "numba", "pandas", "pyarrow", "scipy", "plotly", "joblib"}
COMMANDS = [
    pytest.param(prog, name, kind, id=f"{prog} {name}".strip())
    for prog, (_, module) in PROGRAMS.items()
    for name, kind in importlib.import_module(module).COMMANDS.items()
]


def say(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("prog", PROGRAMS)
def test_help_imports_no_library_of_the_work(prog):
    entry, commands = PROGRAMS[prog]
    named = next(iter(importlib.import_module(commands).COMMANDS))
    seen = say(
        f"import sys, json, {entry} as e\n"
        "light = sorted(sys.modules)\n"
        f"assert e.main({[word for word in (named, '--help') if word]}) == 0\n"
        "assert e.main(['--help']) == 0\n"
        "print(json.dumps({'light': light, 'all': sorted(sys.modules)}))"
    )
    assert not HEAVY & set(seen["all"])
    assert not {"numpy", "dataclasses", "lab.cli"} & set(seen["light"])


def test_reading_and_comparing_needs_neither_torch_nor_a_figure():
    loaded = say(
        "import json, sys, lab, lab.compare.tables\n"
        "lab.load, lab.fates, lab.collect\n"
        "print(json.dumps(list(sys.modules)))"
    )
    assert "pandas" in loaded
    assert not {"torch", "transformers", "plotly", "sim", "real"} & set(loaded)


@pytest.mark.parametrize(("prog", "name", "kind"), COMMANDS)
def test_short_help_is_short_and_the_long_one_is_whole(prog, name, kind, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    short, whole = command_page(f"{prog} {name}", kind), command_page(f"{prog} {name}", kind, True)
    assert len(short.splitlines()) <= 60 and max(map(len, short.splitlines())) <= 100
    assert "Examples:" in short and short.startswith("usage:")
    (count,) = re.findall(r"^All (\d+) options: ", short, re.M)
    rows = re.findall(r"^  (?:-o PATH, )?(\S+)", whole, re.M)
    assert len({row.replace("no-", "") for row in rows}) == int(count)
    assert short.count("\n  --") <= 26
    assert "{None}" not in whole and "Annotated" not in whole
    # A switch off has the text of what it switches off.
    assert re.findall(r"^  --\S*no-[a-z-]+ +(?!Off: )\w.*", whole, re.M) == []


def test_resume_shows_the_settings_that_it_takes_and_no_defaults():
    whole = command_page("guard-train resume", ResumeCommand, True)
    assert "--max-rows" in whole and "--data-dir" in whole
    assert "--lr " not in whole and "--rule " not in whole and "--guard" not in whole
    assert "(default" not in whole  # those of the run hold


@pytest.mark.parametrize("given", ["None", "['--version']"])
def test_signals_stay_ignored_once_the_work_is_done(given):
    """Python would reset its own handlers; a caller of `main` with arguments goes on."""
    found = say(
        "import json, signal, sys\n"
        "from lab.__main__ import main\n"
        "sys.argv = ['guard-report', '--version']\n"
        f"main({given})\n"
        "print(json.dumps({n: str(signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM)}))"
    )
    ignored = given == "None"
    assert found == {
        str(int(signal.SIGINT)): str(signal.SIG_IGN if ignored else signal.default_int_handler),
        str(int(signal.SIGTERM)): str(signal.SIG_IGN if ignored else signal.SIG_DFL),
    }


LINES = {
    "guard-sim": ["run", "--n-problems", "20", "--epochs", "40", "--out"],
    "guard-train": ["run", "--n-problems", "8", "--epochs", "40", "--quiet", "--out"],
    "guard-report": ["--help"],
}


@pytest.mark.parametrize(
    ("prog", "seconds"), [*((prog, 0.0) for prog in LINES), ("guard-sim", 2.0)]
)
def test_ctrl_c_is_one_line(prog, seconds, tmp_path):
    """From the first line of the program on; before it Python itself starts."""
    entry, _ = PROGRAMS[prog]
    words = [*LINES[prog], str(tmp_path / "run")]
    code = (
        f"import sys; from {entry} import main\n"
        f"sys.argv = {[prog, *words]!r}\n"
        "print('ready', file=sys.stderr, flush=True); sys.exit(main())"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stderr is not None and child.stderr.readline() == "ready\n"
        time.sleep(0.01 + seconds)
        child.send_signal(signal.SIGINT)
        said = child.stderr.read()
        code = child.wait(120)
    assert "Traceback" not in said and "Exception" not in said
    if code == 0:  # it was done before
        return
    assert code == 130
    assert f"{prog}: interrupted" in said.splitlines()[-1]
