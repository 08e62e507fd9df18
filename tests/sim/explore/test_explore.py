import shlex
import socket
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from guard_core import GuardConfig
from lab.base.errors import UserError
from lab.base.stats import paired
from lab.measures.dynamics import run_windows
from sim.cli import main
from sim.commands import Simulate
from sim.explore import (
    READINGS,
    SLIDERS,
    as_command,
    as_link,
    checked,
    from_link,
    make_app,
    reading_of,
    redraw,
    simulated,
    state_of,
    with_state,
)
from sim.settings.config import SimConfig
from sim.studies.jobs import assign, read

SMALL = SimConfig(n_problems=150, epochs=12, replicates=2)


@pytest.mark.parametrize("slider", SLIDERS, ids=lambda slider: slider.name)
def test_every_slider_sets_its_own_setting_alone(slider):
    base = SimConfig(n_votes=256, n_samples=8)
    for value in (slider.low, slider.high):
        config = with_state(base, state_of(base) | {slider.element: value})
        own = read(config, slider.name)
        assert own == value and type(own) is type(read(base, slider.name))
        others = {c.name for c in SLIDERS} - {slider.name, "n_samples"}
        assert all(read(config, n) == read(base, n) for n in others)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("step", 0.5), ("n_votes", 4), ("n_votes", 512), ("kappa_att", 1.0)),
        *(("guard.W", 25), ("guard.tau_FR", 0.0), ("population", "point")),
    ],
)
def test_the_page_starts_where_no_slider_reaches(name, value):
    changed = {"n_samples": 4, "ability_mean": 0.5} | {name: value}
    base = assign(SimConfig(n_problems=9, epochs=9), changed)
    state = state_of(base)
    assert checked(state, base) and with_state(base, state) == with_state(base, {}) == base
    for other in ({"step": 0.6}, {"population": "mars"}, {"step": [0.5]}):
        assert not checked(state | other, base)


def test_a_whole_number_of_a_file_takes_every_place_of_its_slider():
    base = SimConfig(guard=GuardConfig.from_dict({"beta_max": 1}))
    assert with_state(base, {"guard-beta_max": 0.35}).guard == GuardConfig().set(beta_max=0.35)


def test_more_samples_than_votes_become_all_votes():
    config = with_state(SimConfig(), state_of(SimConfig()) | {"n_votes": 8})
    assert (config.n_votes, config.n_samples) == (8, 8)


@pytest.mark.parametrize("population", ["qwen-amc", "llama-amc"])
def test_the_switch_sets_the_guard_and_a_population_its_size(population):
    text, one_step, scripts = READINGS
    base = SimConfig(population=population)
    expected = {
        text: GuardConfig.paper(),
        one_step: GuardConfig.paper().set(flip_rate="instant"),
        scripts: GuardConfig.release_scripts(population),
    }
    for name, guard in expected.items():
        chosen = {"reading": name, "population": population}
        config = with_state(SimConfig(), chosen)
        assert config == replace(base, guard=guard) and reading_of(config) == name
        own = with_state(SimConfig(), chosen | {"guard-W": 1})
        assert own.guard == guard.set(W=1) and reading_of(own) is None
    assert base.n_problems == config.n_problems == 83


def test_a_link_holds_the_state():
    state = state_of(SMALL) | {"step": 0.1, "guard-W": 3, "population": "qwen-amc"}
    query = as_link(state, SMALL)
    assert from_link(query, SMALL) == state and as_link(state_of(SMALL), SMALL) == "?"
    for wrong in ("?step=x", "?step=9", "?step=nan", "?other=1", "?population=mars"):
        assert from_link(wrong, SMALL) is None


@pytest.fixture
def client():
    return make_app(SimConfig(n_problems=20, epochs=9, replicates=1)).server.test_client()


HOST = {"Host": "127.0.0.1:8050"}


def test_requests_by_the_name_of_another_site_are_refused(client):
    assert client.get("/", headers=HOST).status_code == 200
    assert client.get("/", headers={"Host": "evil.example:8050"}).status_code == 403


def body_of(client, output, values):
    """An update as the page sends it."""
    known = client.get("/_dash-dependencies", headers=HOST).get_json()
    wanted = next(own for own in known if output in own["output"])
    names = [name.rsplit(".", 1) for name in wanted["output"].strip(".").split("...")]
    outputs = [{"id": name, "property": own} for name, own in names]
    inputs = [own | {"value": values[own["id"]]} for own in wanted["inputs"]]
    return {"output": wanted["output"], "outputs": outputs, "inputs": inputs}


def send(client, body):
    return client.post("/_dash-update-component", json=body, headers=HOST)


def test_hand_made_updates_are_refused(client, caplog):
    state = {"reading": None, **state_of(SimConfig())}
    good = body_of(client, "headline", state)
    bad = [[], {}, None, {"output": "x"}, {"inputs": [1]}, {"inputs": [{}], "output": ["x"]}]
    bad += [{k: v for k, v in good.items() if k != name} for name in good]
    changes = {"outputs": [], "inputs": good["inputs"][1:], "state": 3, "changedPropIds": [{}]}
    bad += [good | {name: value} for name, value in changes.items()]
    values = {"reading": ("x", 7, []), "step": ("9", 9, {}, True, [1]), "population": ("mars",)}
    bad += [body_of(client, "headline", state | {n: v}) for n, of in values.items() for v in of]
    assert [send(client, body).status_code for body in bad] == [400] * len(bad)
    deep = client.post(
        "/_dash-update-component", data="[" * 9000, headers=HOST, content_type="application/json"
    )
    assert deep.status_code == 400 and "Traceback" not in caplog.text
    told = send(client, good | {"changedPropIds": ["step.value"]}).get_json()["response"]
    assert "TTRL makes" in told["headline"]["children"]
    one_step = body_of(client, "headline", state | {"reading": list(READINGS)[1]})
    told = send(client, one_step).get_json()["response"]
    assert "--guard.flip-rate instant" in told["command"]["children"]
    opened = send(client, body_of(client, "population", {"url": "?guard-W=3"}))
    assert opened.get_json()["response"]["guard-W"]["value"] == 3
    wrong = send(client, body_of(client, "population", {"url": "?guard-W=x"}))
    assert wrong.get_json()["response"] == {}


GUARDED = GuardConfig().set(tau_FR=0.15, W=3, mps=False, label_from="memory")


@pytest.mark.parametrize(
    "changed",
    [
        {"population": "qwen-amc", "n_votes": 16, "n_samples": 8, "step": 0.1, "guard": GUARDED},
        {"rule": "srt", "rule_options": {"keep": 0.5}, "guard": GUARDED},
        {"rules": ("FOLDER/a b.py", "FOLDER/c.py")},
        {"population": "llama-aime24", "n_problems": 500, "epochs": 30},
        {"rule": "srt", "guard": GuardConfig.paper()},
        {"rule": "srt", "guard": GuardConfig.off().set(W=3)},
    ],
)
def test_the_copied_command_makes_the_same_settings(changed, monkeypatch):
    monkeypatch.setattr("sim.settings.config.load_rules", tuple)
    monkeypatch.setattr("lab.cli.load_rules", tuple)
    config, seen = SimConfig(**changed, replicates=3), []
    monkeypatch.setattr(Simulate, "run", lambda self: seen.append(self.settings))
    words = shlex.split(as_command(config))
    assert words[0] == "guard-sim" and main(words[1:]) == 0
    assert seen == [config]


def test_the_headline_compares_the_guard_with_matched_effort_and_memory(monkeypatch):
    figures, headline, words = redraw(SMALL)
    runs = {name: run.metrics for name, run in simulated(SMALL).items()}
    assert list(runs) == ["ttrl", "guard", "matched", "memory"]
    norms = {name: own["update_norm"].mean() for name, own in runs.items()}
    assert norms["matched"] == pytest.approx(norms["guard"], rel=0.01) != norms["ttrl"]
    for first, against in (("guard", "matched"), ("memory", "guard")):
        saved = paired(runs[against]["TotalDeg"], runs[first]["TotalDeg"])
        assert f"saves {saved.mean:+.1f} [" in headline
    assert f"TTRL makes {runs['ttrl']['TotalDeg'].mean():.1f} %" in headline and len(words) == 5
    names = {trace.name for trace in figures[0].data if trace.name}
    assert {"TTRL at matched effort", "Vote memory"} <= names
    halves = {"collapse": [3.0, np.nan]}
    monkeypatch.setattr("sim.explore.run_windows", lambda own: run_windows(own).assign(**halves))
    assert redraw(SMALL)[2][1].endswith("and collapses in epoch 3 (1 of 2).")
    other = redraw(replace(SMALL, step=0.01))
    assert other[1] != headline
    assert other[0][0].data[1].y.tolist() != figures[0].data[1].y.tolist()


def test_an_exploding_step_is_told():
    with pytest.raises(UserError, match="step"):
        redraw(SimConfig(n_problems=20, epochs=9, policy="independent", step=1e308))


def test_ports_are_checked_before_the_long_import(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "sim.explore", None)
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


def opened(browser, served, width):
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(f"{served}/?step=0.1")
    page.wait_for_function("document.querySelector('#command')?.innerText.includes('step 0.1')")
    page.wait_for_function("document.querySelectorAll('#figure-fates .trace').length > 0")
    return page


def test_the_page_redraws_and_its_link_and_reset_hold_the_state(browser, served):
    page = opened(browser, served, 1280)
    requests, troubles = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: troubles.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.locator("#guard-W input").fill("3")
    page.locator("#guard-W input").press("Tab")
    page.wait_for_function("document.querySelector('#command')?.innerText.includes('guard.W 3')")
    page.locator("#reading label").nth(1).click()
    page.wait_for_function("document.querySelector('#command')?.innerText.includes('instant')")
    assert "step=0.1" in page.get_attribute("#link", "href")
    page.get_by_text("Reset").click()
    page.wait_for_function(
        "document.querySelector('#command')?.innerText.includes('runs/explored')"
    )
    assert "--step" not in page.inner_text("#command")
    assert [text for text in troubles if not text.startswith(("log", "info", "debug"))] == []
    assert [url for url in requests if not url.startswith((served, "data:"))] == []
    page.close()


def test_a_typed_number_counts_on_enter_and_after_a_pause(browser, served):
    page = opened(browser, served, 1280)
    box, asked = page.locator("#guard-W input"), []
    page.on("request", lambda request: asked.append(request.method == "POST"))
    box.fill("3")
    box.press("Enter")
    page.wait_for_function("document.querySelector('#command')?.innerText.includes('guard.W 3')")
    assert sum(asked) == 1
    box.press("ControlOrMeta+a")
    box.press_sequentially(
        "12", delay=100
    )  # the box keeps the cursor, and 1 alone is not asked for
    page.wait_for_function("document.querySelector('#command')?.innerText.includes('guard.W 12')")
    assert box.evaluate("box => box === document.activeElement") and sum(asked) == 2
    page.locator("#guard-W [role=slider]").press("ArrowLeft")
    page.wait_for_function("document.querySelector('#command')?.innerText.includes('guard.W 11')")
    assert box.input_value() == "11"
    seen = len(asked)
    box.fill("")  # whoever empties a box is about to type
    page.wait_for_timeout(1000)
    assert box.input_value() == "" and len(asked) == seen
    page.close()


def test_the_headline_stays_in_sight_on_a_phone(browser, served):
    page = opened(browser, served, 390)
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    places = [page.locator(n).bounding_box()["y"] for n in ("#headline", "#step", "#figure-fates")]
    assert places == sorted(places)
    page.evaluate("document.querySelector('#figure-fates').scrollIntoView()")
    assert 0 <= page.locator("#headline").bounding_box()["y"] < 20
    page.close()
