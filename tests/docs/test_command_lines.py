"""Every guard-* command line that README, docs and notebooks show can be parsed."""

import importlib
import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

import lab.alarm.cli
import lab.cli
import lab.report.cli
import real.cli
import real.verl.cli
import sim.cli

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "guard-sim": sim.cli,
    "guard-train": real.cli,
    "guard-report": lab.report.cli,
    "guard-alarm": lab.alarm.cli,
    "guard-verl": real.verl.cli,
}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += sorted((ROOT / "notebooks").glob("*.ipynb"))
FENCED = re.compile(r"^```(?:sh|bash|console)?\n(.*?)^```", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?:^ {4}.*\n?)+", re.MULTILINE)
INLINE = re.compile(r"`(guard-[a-z]+(?: [^`]*)?)`")
TORCHRUN = re.compile(r"^torchrun( --[\w-]+ \S+)* -m real ")


def text_of(path):
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    cells = nbformat.read(path, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def commands(path):
    """(words, is it a whole command) of every guard-* line."""
    text = text_of(path)
    for block in (*FENCED.findall(text), *INDENTED.findall(text)):
        for line in block.replace("\\\n", " ").splitlines():
            line = TORCHRUN.sub("guard-train ", line.strip())
            if line.startswith("guard-"):
                yield shlex.split(line.partition(" > ")[0], comments=True), True
    for inline in INLINE.findall(text):
        yield shlex.split(" ".join(inline.split())), False


ALL = [
    pytest.param(words, whole, id=f"{path.stem}: {' '.join(words)}")
    for path in PAGES
    for words, whole in commands(path)
]


@pytest.fixture
def parse(monkeypatch, tmp_path):
    """Parses a command line as its program does, and stops before it runs."""
    monkeypatch.chdir(tmp_path)
    sizes = SimpleNamespace(n_problems=4, n_answers=2)  # --response is read while parsing too
    monkeypatch.setattr("sim.settings.options.read_response", lambda path: sizes)

    def parsed(words):
        program, *argv = words
        argv = [word for word in argv if word != "..."]
        for place, word in enumerate(argv):
            if word == "--config":  # read while parsing
                Path(argv[place + 1]).touch()
        module, seen = PROGRAMS[program], {}
        keep = lambda *given, **named: seen.update(given=given, named=named) or 0  # noqa: E731
        with monkeypatch.context() as patched:
            patched.setattr(module, "run_cli", keep)
            module.main(argv)
        prog, known, argv, *about = seen["given"]
        about = about[0] if about else seen["named"].get("description")
        return known, argv, lambda more: lab.cli._parse(prog, known, [*argv, *more], about)

    return parsed


def test_commands_of_the_page_on_your_model_run(monkeypatch, tmp_path, capfd):
    """On a random model with two problems; the comparison on one seed, for one epoch.

    The model has a chat template and a vocabulary for the page's prompts; the tiny task's has none.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "tests" / "real")
    importlib.import_module("small_models").save_model(tmp_path / "model")
    text = text_of(ROOT / "docs" / "your-model.md")
    example = json.loads(re.findall(r"(?ms)^```json\n(.*?)^```", text)[0])
    rows = [{**example[0], "id": f"mul-{i}"} for i in range(2)]
    (tmp_path / "problems.json").write_text(json.dumps(rows))
    shown = [words for words, whole in commands(ROOT / "docs" / "your-model.md") if whole]
    assert [words[0] for words in shown] == ["guard-train", "guard-report"] * 2
    for program, *argv in shown:
        line = (
            " ".join(argv).replace("--seeds 0 1 2", "--seeds 0").replace("--epochs 8", "--epochs 1")
        )
        assert PROGRAMS[program].main(line.split()) == 0, capfd.readouterr().err
    for folder in ("mine", "compared"):
        assert list((tmp_path / "runs" / folder).rglob("*.html"))


def test_the_pages_show_commands():
    assert {param.values[0][0] for param in ALL} == set(PROGRAMS)
    assert len(ALL) > 40


@pytest.mark.parametrize(("words", "whole"), ALL)
def test_command_line_parses(words, whole, parse):
    known, argv, attempt = parse(words)
    if "--help" in argv:
        with pytest.raises(SystemExit) as stopped:
            attempt([])
        assert stopped.value.code == 0
    elif whole:
        attempt([])
    elif not argv:
        assert known
    elif len(argv) == 1 and argv[0] in known:
        pass  # a mention of a subcommand
    else:
        # Mentions leave out where the run goes.
        has_out = "out" in getattr(known.get(argv[0]), "__dataclass_fields__", {})
        attempt(["--out", "runs/x"] if has_out and "--out" not in argv else [])


@pytest.mark.parametrize(
    "line",
    [
        "guard-sim run --out a --no-such-option 3",
        "guard-train run --out a --epochs many",
        "guard-sim nothing --out a",
        "guard-report runs/x --format pdf",
    ],
)
def test_a_wrong_line_is_found(line, parse):
    _, _, attempt = parse(shlex.split(line))
    with pytest.raises(lab.UserError):
        attempt([])
