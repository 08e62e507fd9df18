"""The page in a real browser: figures drawn, no error, nothing asked from outside."""

import pytest

from lab.__main__ import main

WIDTHS = {"desk": 1280, "phone": 390}


DRAWN = "html[data-drawn=all]"


@pytest.fixture(scope="module")
def report(runs, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "r.html"
    assert main([str(runs.sim), str(runs.real), "-o", str(path)]) == 0
    return path


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_all_figures_are_drawn_without_errors_or_requests(visit, report, width):
    page = visit(report, width)
    page.wait_for_selector(DRAWN, state="attached")
    drawn = page.eval_on_selector_all(
        ".plot",
        """plots => plots.map(plot => ({
            id: plot.id,
            svgs: plot.querySelectorAll('.main-svg').length,
            given: plot.data.length,
            traces: plot.querySelectorAll('.trace, .hm').length,
            width: plot.querySelector('.main-svg').getBoundingClientRect().width,
            room: plot.getBoundingClientRect().width,
        }))""",
    )
    assert len(drawn) == 22
    for figure in drawn:
        assert figure["svgs"] > 0
        assert figure["traces"] >= figure["given"] > 0, figure
        assert figure["width"] <= figure["room"] + 1
    if width == WIDTHS["desk"]:
        with page.expect_download() as saved:
            page.locator("#real-tiny-fates + .figure-name button").click()
        assert saved.value.suggested_filename == "real-tiny-fates.svg"
        assert 'width="336"' in saved.value.path().read_text()
        page.emulate_media(media="print")
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        widths = page.eval_on_selector_all(".plot", "plots => plots.map(p => p.layout.width)")
        assert set(widths) == {680}
        shown = [page.locator(name).first.is_visible() for name in (".on-paper", ".problems")]
        assert shown == [True, False]


def test_long_words_wrap_on_a_phone(visit, add_run, tmp_path):
    long = "x" * 300
    add_run(tmp_path / "run", "ttrl", title=long, task=long, config={"x": long})
    assert main([str(tmp_path)]) == 0
    page = visit(tmp_path / "report.html", WIDTHS["phone"])
    page.wait_for_selector(DRAWN, state="attached")
    for details in page.locator("details").all():
        details.evaluate("details => { details.open = true }")
    assert long in page.locator("h2").first.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
