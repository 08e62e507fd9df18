"""The log of an engine's process."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from engine_process import COMMAND, TinyModel

from lab.errors import UserError
from lab.trace.parts import is_unused
from real.engines.child_engine import ChildEngine
from real.engines.rollouts import EngineDied


def test_the_log_is_a_file_and_its_path_is_in_the_message(tmp_path: Path):
    log = tmp_path / "run" / "engine-rank0.log"
    for _ in range(2):  # the one of an earlier start stays
        engine = ChildEngine({"load": "exit"}, 20.0, command=COMMAND, log=log)
        with pytest.raises(EngineDied, match=rf"its last line: .*; log: {re.escape(str(log))}$"):
            engine.update_weights(TinyModel(1.0), version=0)
        engine.close()
    assert log.read_text().count("exit in load") == 2
    assert is_unused(log.parent)  # a run can still be made there


def test_an_empty_log_is_removed(tmp_path: Path):
    log = tmp_path / "run" / "engine-rank0.log"
    with pytest.raises(EngineDied, match=r"died during start \(exit code 3\)$"):
        silent = (sys.executable, "-c", "raise SystemExit(3)")
        ChildEngine({}, 20.0, command=silent, log=log)
    assert not log.parent.exists()
    log.parent.write_text("a file")
    with pytest.raises(UserError, match=r"engine-rank0\.log: cannot be written"):
        ChildEngine({}, 20.0, command=COMMAND, log=log)
