"""A headless browser for the tests of pages, and Ctrl-C wherever the tests are started."""

import os
import shutil
import signal

import pytest

# A shell starts its background jobs with Ctrl-C ignored, and their children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
]


def _absent(why):
    """Skip on a laptop; where the checks count they must not be skipped."""
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="module")
def browser():
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _absent("playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        _absent("chromium is not installed")
    with sync_playwright() as player:
        opened = player.chromium.launch(executable_path=program, args=_OPTIONS)
        yield opened
        opened.close()
