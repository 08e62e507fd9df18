"""Parts of the page that a second process makes while this one makes the others."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping

from lab.report.html import Html, raw

Work = Mapping[str, Callable[[], Html]]


class Beside:
    """Starts the work at once where it can; `result` waits for it, or does it where it cannot.

    A forked process has all that was read, and hands back nothing but markup. Whatever goes wrong
    there is done again here, so that an error is raised where it can be told.
    """

    def __init__(self, work: Work) -> None:
        """Start.

        Args:
            work: name to what makes a part of the page.
        """
        self._work = work
        self._made: dict[str, str] | None = None
        self._pid, self._pipe = _forked(work) if _may_fork() else (0, -1)

    def result(self, name: str) -> Html:
        """One part.

        Args:
            name: key of the work.
        """
        if self._made is None:
            self._made = self._collect()
        made = self._made.get(name)
        return self._work[name]() if made is None else raw(made)

    def _collect(self) -> dict[str, str]:
        if not self._pid:
            return {}
        with os.fdopen(self._pipe, "rb") as pipe:
            content = pipe.read()
        _, status = os.waitpid(self._pid, 0)
        return json.loads(content) if status == 0 else {}


def _may_fork() -> bool:
    """Forking is safe beside the libraries in use on Linux, and pays where there are two cores."""
    return sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1


def _forked(work: Work) -> tuple[int, int]:
    """Process and the pipe that it writes to."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    # Only this function's end leaves the child: nothing of the parent's may run in it.
    code = 1
    try:
        os.close(reading)
        made = {name: make() for name, make in work.items()}
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(json.dumps(made).encode())
        code = 0
    finally:
        os._exit(code)
