"""The one exception for mistakes that a user can mend."""

from __future__ import annotations


class UserError(Exception):
    """Something the user gave is wrong; the message says what, where and the remedy in one line."""


class Terminated(KeyboardInterrupt):
    """The process was asked to end by a signal other than Ctrl-C; see `lab.signals`."""

    def __init__(self, number: int) -> None:
        """Keep the number of the signal."""
        super().__init__(number)
        self.number = number
