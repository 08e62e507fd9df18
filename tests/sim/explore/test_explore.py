import re
import socket
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from guard_core import GuardConfig
from lab.base.errors import UserError
from sim.cli import main
from sim.commands import Simulate
from sim.explore import READINGS, SLIDERS, as_command, make_app, reading_of, redraw, with_positions
from sim.settings.config import SimConfig
from sim.studies.jobs import read

SMALL = SimConfig(n_problems=300, epochs=15, replicates=2)


def places_of(config):
    return {c.name: c.position(read(config, c.name)) for c in SLIDERS}


def test_untouched_sliders_change_nothing():
    odd = SimConfig(step=0.0613, guard=GuardConfig().set(tau_FR=0.31, W=7))
    assert with_positions(odd, places_of(odd)) == odd


@pytest.mark.parametrize("slider", SLIDERS, ids=lambda slider: slider.name)
def test_every_slider_sets_its_own_setting_alone(slider):
    base = SimConfig(n_votes=256, n_samples=8)
    for position in (0, len(slider.values) - 1):
        config = with_positions(base, places_of(base) | {slider.name: position})
        assert read(config, slider.name) == slider.values[position]
        others = {c.name for c in SLIDERS} - {slider.name}
        assert all(read(config, n) == read(base, n) for n in others)


def test_more_samples_than_votes_become_all_votes():
    config = with_positions(SimConfig(), places_of(SimConfig()) | {"n_votes": 0})
    assert (config.n_votes, config.n_samples) == (8, 8)


@pytest.mark.parametrize("population", ["qwen-amc", "llama-amc"])
def test_the_switch_sets_the_guard_of_the_reading(population):
    text, one_step, scripts = READINGS
    base = SimConfig(population=population)
    expected = {
        text: GuardConfig.paper(),
        one_step: GuardConfig.paper().set(flip_rate="instant"),
        scripts: GuardConfig.release_scripts(population),
    }
    for name, guard in expected.items():
        config = with_positions(base, places_of(base), name)
        assert config == replace(base, guard=guard) and reading_of(config) == name
        moved = places_of(base) | {"guard.W": 0}
        own = with_positions(base, moved, name)
        assert own.guard == guard.set(W=1) and reading_of(own) is None


@pytest.fixture
def client():
    return make_app(SimConfig(n_problems=20, epochs=9, replicates=1)).server.test_client()


HOST = {"Host": "127.0.0.1:8050"}


def test_requests_by_the_name_of_another_site_are_refused(client):
    assert client.get("/", headers=HOST).status_code == 200
    assert client.get("/", headers={"Host": "evil.example:8050"}).status_code == 403


@pytest.mark.parametrize(
    "sent", [[], {}, None, {"output": "x"}, {"inputs": [1]}, {"inputs": [{}], "output": ["x"]}]
)
def test_a_malformed_update_is_answered_in_one_line(client, sent, caplog):
    found = client.post("/_dash-update-component", json=sent, headers=HOST)
    assert found.status_code == 400 and "Traceback" not in caplog.text


def test_an_update_of_the_page_is_answered(client):
    wanted = client.get("/_dash-dependencies", headers=HOST).get_json()[0]["output"]
    names = [name.rsplit(".", 1) for name in wanted.strip(".").split("...")]
    outputs = [{"id": name, "property": value} for name, value in names]

    def answer(reading):
        values = {"reading": reading, **places_of(SimConfig())}
        inputs = [
            {"id": name.replace(".", "-"), "property": "value", "value": value}
            for name, value in values.items()
        ]
        sent = {"output": wanted, "outputs": outputs, "inputs": inputs, "changedPropIds": []}
        found = client.post("/_dash-update-component", json=sent, headers=HOST)
        assert found.status_code == 200
        return found.get_json()["response"]

    for wrong in ("x", 7, []):
        with pytest.raises(AssertionError, match="400"):
            answer(wrong)
    assert "words" in answer(None)
    told = answer(list(READINGS)[2])["command"]["children"]
    assert "--guard.flip-rate instant" in told


def test_the_copied_command_makes_the_same_settings(monkeypatch):
    guard = GuardConfig().set(tau_FR=0.15, W=3, mps=False, label_from="memory")
    changed = {"population": "qwen-amc", "n_votes": 16, "n_samples": 8, "step": 0.1}
    config, seen = SimConfig(**changed, replicates=3, guard=guard), []
    monkeypatch.setattr(Simulate, "run", lambda self: seen.append(self.settings))
    words = as_command(config).split()
    assert words[0] == "guard-sim" and main(words[1:]) == 0
    assert seen == [config]


def test_moving_a_slider_changes_figures_and_words():
    first = redraw(SMALL)
    weak = with_positions(SMALL, places_of(SMALL) | {"step": 0})
    second = redraw(weak)
    assert first[0][0].data[1].y.tolist() != second[0][0].data[1].y.tolist()
    damage = [float(re.search(r"makes ([\d.]+) %", words[0])[1]) for _, words in (first, second)]
    assert damage[0] > damage[1]


def test_an_exploding_step_is_told():
    with pytest.raises(UserError, match="step"):
        redraw(SimConfig(n_problems=20, epochs=9, policy="independent", step=1e308))


def test_ports_are_checked(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["explore", "--port", str(port)]) == 2
    assert "choose another --port" in capsys.readouterr().err
    assert main(["explore", "--port", "70000"]) == 2
    assert "port = 70000" in capsys.readouterr().err


@pytest.fixture(scope="module")
def served():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["explore", "--port", str(port), "--n-problems", "40", "--epochs", "9"]
    command = [sys.executable, "-m", "sim", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith(f"explorer: http://127.0.0.1:{port}")
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
        process.terminate()


def test_the_page_redraws_when_a_slider_moves(browser, served):
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    requests, troubles = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: troubles.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto(served)
    page.wait_for_function("document.querySelectorAll('#figure-fates .trace').length > 0")
    words = page.inner_text("#words")
    assert "TTRL makes" in words
    handle = page.locator("#step [role=slider]")
    handle.focus()
    for _ in range(3):
        handle.press("ArrowRight")
    page.wait_for_function(
        "old => document.querySelector('#words').innerText !== old", arg=words, timeout=20_000
    )
    assert "--step" in page.inner_text("#command")
    assert page.locator("#reading input:checked").count() == 1
    page.locator("#reading label").nth(1).click()
    page.wait_for_function("document.querySelector('#command').innerText.includes('instant')")
    assert page.inner_text("#step-value") == f"{SLIDERS[2].values[8]:g}"
    assert [text for text in troubles if not text.startswith(("log", "info", "debug"))] == []
    assert [url for url in requests if not url.startswith((served, "data:"))] == []
    page.close()


def test_the_page_fits_a_phone(browser, served):
    page = browser.new_page(viewport={"width": 390, "height": 900})
    page.goto(served)
    page.wait_for_function("document.querySelectorAll('#figure-fates .trace').length > 0")
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    places = [page.locator(name).bounding_box()["y"] for name in ("h1", "#words", "#step")]
    assert places == sorted(places)  # the figures stand above the sliders
    page.evaluate("document.querySelector('#step').scrollIntoView()")
    assert page.locator("#words").bounding_box()["y"] == 0  # what a move changes stays in sight
    assert page.locator("#figure-fates .scrollbar[width='0']").count() == 1
    # The button to copy the command must not cover its end.
    right, button = page.evaluate(
        """() => {
            const text = document.createRange(), element = document.getElementById("command");
            text.selectNodeContents(element);
            const ends = [...text.getClientRects()].map(line => line.right);
            return [Math.max(...ends), element.nextElementSibling.getBoundingClientRect().left];
        }"""
    )
    assert 0 < right <= button
    page.close()
