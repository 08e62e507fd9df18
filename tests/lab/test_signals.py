import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import multiprocessing, os, sys, time
from lab.signals import stop_with_parent

def become(place):
    stop_with_parent()
    code = "import os, time; open({!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    os.execv(sys.executable, [sys.executable, "-c", code.format(place)])

if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=become, args=(sys.argv[1],)).start()
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of such an end")
def test_a_process_ends_with_a_killed_parent_whatever_it_became(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    place = tmp_path / "pid"
    parent = subprocess.Popen([sys.executable, tmp_path / "script.py", place], cwd=Path.cwd())
    try:
        _wait(lambda: place.is_file() and place.read_text() != "")
    finally:
        parent.kill()
        parent.wait()
    pid = int(place.read_text())
    _wait(lambda: not _runs(pid))


COMPILING = """
import os, signal, sys, time
from dataclasses import dataclass
import numba
from numba.core.codegen import CPUCodeLibrary
from lab.cli import run_cli

compiled, stops = CPUCodeLibrary._object_compiled_hook, []

def hook(*words):
    if not stops:  # one stop, however many parts are compiled
        stops.append(os.kill(os.getpid(), signal.SIGINT))
    for _ in range(1000):  # Python calls its handlers here
        pass
    return compiled(*words)

@dataclass
class Compile:
    def run(self):
        CPUCodeLibrary._object_compiled_hook = hook
        numba.njit(lambda x: x + 1)(1)
        time.sleep(60)

sys.exit(run_cli("program", {"": Compile}, []))
"""


def test_a_stop_in_a_callback_of_the_compiler_is_neither_lost_nor_shown(tmp_path):
    done = subprocess.run([sys.executable, "-c", COMPILING], capture_output=True, text=True)
    assert done.returncode == 130
    assert done.stderr == "program: interrupted; what was written so far can be read\n"


def _wait(done, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _runs(pid):
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (ProcessLookupError, FileNotFoundError):
        return False
