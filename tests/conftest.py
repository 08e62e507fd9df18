"""A headless browser for the tests of pages; one thread of torch; Ctrl-C that stops tests."""

import gc
import os
import shutil
import signal

import pytest

# The last bits of a result depend on it, and more threads of several workers wait for each other.
os.environ["OMP_NUM_THREADS"] = "1"

gc.set_threshold(10_000)  # as `lab.entry` does

# A shell starts its background jobs with Ctrl-C ignored, and their children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if "chromium" in item.fixturenames:
            item.add_marker("browser")


@pytest.fixture(scope="session")
def chromium(pytestconfig):
    """The browser's program; tests that were chosen with `-m browser` fail without it."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        absent = pytest.fail if pytestconfig.option.markexpr == "browser" else pytest.skip
        absent("chromium is not installed")
    return program


@pytest.fixture(scope="module")
def browser(chromium):
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as player:
        opened = player.chromium.launch(executable_path=chromium, args=_OPTIONS)
        yield opened
        opened.close()
