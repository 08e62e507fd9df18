"""Runs in processes that are killed at a chosen moment; a server that tests talk to line by line.

The server imports torch once and forks for every request, so a killed run costs no import. A
request is {"do": "train" or "resume", "folder": ..., "config": {...}, "kill_at": n or null}; the
run is killed, as by kill -9, just before the n-th time that it changes its folder's files.
The answer is {"code": exit code or minus the signal, "changes": how often it changed files}.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "open"}


def kill_at(folder: str, wanted: int | None, counted: Path) -> None:
    """Count the changes of files in the folder, and die before the wanted one."""
    count = 0

    def hook(event: str, words: tuple[Any, ...]) -> None:
        nonlocal count
        if event not in CHANGES or folder not in str(words[0]):
            return
        if event == "open" and not words[2] & (os.O_WRONLY | os.O_RDWR):
            return
        count += 1
        if count == wanted:
            os.kill(os.getpid(), signal.SIGKILL)
        if wanted is None:
            with open(counted, "w") as file:
                file.write(str(count))

    sys.addaudithook(hook)


def child(request: dict[str, Any]) -> None:
    from lab.settings import from_values
    from real.settings.config import TrainConfig
    from real.trainer import resume, train

    folder = request["folder"]
    kill_at(folder, request["kill_at"], Path(request["counted"]))
    if request["do"] == "train":
        train(from_values(request["config"], TrainConfig, "request"), folder, progress=False)
    else:
        resume(folder, progress=False)


def serve() -> None:
    import transformers.models.qwen2.modeling_qwen2  # noqa: F401

    import real.trainer

    assert real.trainer.resume
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                child(request)
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        counted = Path(request["counted"])
        changes = int(counted.read_text()) if counted.exists() else None
        answer = {"code": os.waitstatus_to_exitcode(status), "changes": changes}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
