"""The browser that draws figures as pictures, by kaleido."""

from __future__ import annotations

import os
import shutil

from lab.base.errors import UserError

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def check_png() -> None:
    """Refuse what cannot be drawn, before the work.

    Raises:
        UserError: kaleido or a browser is missing.
    """
    try:
        import kaleido  # noqa: F401
    except ImportError as error:
        raise UserError("png: needs kaleido; pip install 'ttrl-guard-lab[png]'") from error
    if browser() is None:
        raise UserError("png: needs Chrome or Chromium; install one, or name it in BROWSER_PATH")


def browser() -> str | None:
    """The program that draws: BROWSER_PATH, or the first that is installed."""
    given = os.environ.get("BROWSER_PATH")
    return given or next(filter(None, map(shutil.which, _PROGRAMS)), None)
