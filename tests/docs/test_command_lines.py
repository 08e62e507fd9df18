import importlib
import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

import lab.__main__
import lab.cli
import lab.report
import real.__main__
import real.commands
import real.verl.commands
import sim.cli
import sim.commands

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "guard-sim": sim.cli,
    "guard-train": real.__main__,
    "guard-report": lab.__main__,
    "guard-verl": real.verl,
}
COMMANDS = {
    "guard-sim": sim.commands,
    "guard-train": real.commands,
    "guard-report": lab.report,
    "guard-verl": real.verl.commands,
}
OTHERS = {"make", "pip", "python", "python3.11", "torchrun", "ray", "bash"}
"""Programs of lines in indented blocks that are commands too."""
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += sorted((ROOT / "notebooks").glob("*.ipynb"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```|((?:^ {4}[^\n]*\n?)+)", re.DOTALL | re.MULTILINE)
"""A fenced block with its language, or an indented one."""
INLINE = re.compile(r"`(guard-[a-z]+(?: [^`]*)?)`")

NOT_RUN = {
    "make demo": ".ci/run runs it",
    "make test": ".ci/run runs it",
    "make agreement": "sixty real runs",
    "git clone": "needs the address of the repository",
    ". .venv/bin/activate": "changes the shell",
    "pip": "installs",
    "python3.11 -m venv": "installs",
    "python benchmarks": "minutes at its smallest; tests/benchmarks runs parts",
    "python docs/tools": "hours; tests of this folder run parts",
    "guard-sim explore": "a server; tests/sim/explore",
    "guard-sim agree --real runs/confirm": "reads 120 real runs",
    "guard-train import-gguf": "a download of 93 MB; tests/real/test_gguf.py",
    "guard-train run --preset": "a GPU with vLLM; test_gpu_guide.py",
    "guard-train compare --preset": "GPUs with vLLM, or a download",
    "guard-train plan --preset qwen2.5-7b/math500 --gpus 8 --measured": "test_gpu_guide.py",
    "guard-report runs/smol": "reads runs of that model",
    "guard-train resume runs/day": "test_gpu_guide.py, as what follows",
    "guard-report runs/day": "reads a run on a GPU",
    "tensorboard": "serves",
    "vllm": "serves",
    "lm_eval": "another project's",
    "torchrun": "several GPUs",
    "ray": "a cluster",
    "bash": "a cluster",
    "guard-report runs/verl-q7": "reads a run on a cluster",
}
"""First words of commands that are not run, and why; those of our programs are parsed."""
SIZES = "--epochs 8 --n-problems 4 --n-votes 8 --n-samples 4 --checkpoint-every 3"
SMALL = {
    "guard-sim run": "--n-problems 20 --epochs 8 --replicates 2",
    "guard-sim compare": "--n-problems 20 --epochs 8 --replicates 2",
    "guard-sim sweep": "--n-problems 20 --epochs 8 --replicates 1 --arms ttrl guard --workers 1",
    "guard-sim search": "--epochs 8 --replicates 1 --budget 30 --arms ttrl memory",
    "guard-sim agree": "--replicates 2",
    "guard-sim theory": "--runs 200",
    "guard-sim calibrate": "--quick --rows llama-math500 --mechanisms attractor --readings share",
    "guard-train run": SIZES,
    "guard-train compare": f"{SIZES} --seeds 0 --arms ttrl guard",
    "guard-train measure": "--n-problems 4 --responses 16 --weights 256",
    "guard-train forecast": "--n-problems 4 --responses 16 --weights 256 --epochs 8 --replicates 1 "
    "--arms ttrl guard",
}
"""Options that make a command small."""


def text_of(path):
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    cells = nbformat.read(path, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def shell_lines(path):
    """Words of every line of shell on a page, in order."""
    for language, fenced, indented in BLOCK.findall(text_of(path)):
        shell = language in ("sh", "bash")
        for line in (fenced if shell else indented).replace("\\\n", " ").splitlines():
            first = line.split(maxsplit=1)[:1]
            if first and (shell or first[0] in {*PROGRAMS, *OTHERS}):
                yield shlex.split(line.partition(" > ")[0], comments=True)


def why_not(words):
    """Why a command is not run; None if it is."""
    line = " ".join(words)
    return next((why for start, why in NOT_RUN.items() if line.startswith(start)), None)


def parsed(path):
    """(words, is it a whole command) of every command and mention of our programs."""
    for words in shell_lines(path):
        if words[0] == "torchrun":
            words = ["guard-train", *words[words.index("real") + 1 :]]
        if words[0] in PROGRAMS:
            yield tuple(words), True
    for inline in INLINE.findall(text_of(path)):
        yield tuple(shlex.split(" ".join(inline.split()))), False


def small(words):
    """The same command with the options of `SMALL`, which take the place of its own."""
    options = SMALL.get(" ".join(words[:2]), "")
    if words[1:4] == ["compare", "--preset", "paper"]:  # whose cells have sizes of their own
        options = "--replicates 2"
    if "--response" in words:  # the file brings the number of problems
        options = options.replace("--n-problems 20", "")
    if "--model" in words and words[0] == "guard-train":
        options = options.replace("epochs 8", "epochs 2 --max-response-tokens 8 --max-unread 1")
    if "--own-best" in words:
        options += " --arms ttrl guard"
    if "--lrs" in words:
        options += " --lrs 3e-4"
    given = options.split()
    kept, drop = [], False
    for word in words:
        drop = word in given if word.startswith("--") else drop
        kept += [] if drop else [word]
    return [*kept, *given]


def read_later(out, lines):
    """Whether two commands name it or a folder that holds it: one makes it, one reads it."""
    folders = [out, *map(str, list(Path(out).parents)[:-1])] if out else []
    return sum(any(word in folders for word in line) for line in lines) > 1


def run_by_page():
    """Commands to run, by page; none twice, unless a command of the page reads what it makes."""
    pages, ran = {}, set()
    for page in PAGES:
        lines = [words for words in shell_lines(page) if why_not(words) is None]
        for words in lines:
            out = words[words.index("--out") + 1] if "--out" in words else None
            command = tuple(sorted(word for word in small(words) if word != out))
            if command not in ran or read_later(out, lines):
                pages.setdefault(str(page.relative_to(ROOT)), []).append(words)
            ran.add(command)
    return pages


def help_examples():
    """The same of the examples in the help of our programs."""
    for kind in (kind for module in COMMANDS.values() for kind in module.COMMANDS.values()):
        for line in (kind.__doc__ or "").partition("Examples:")[2].splitlines():
            if line.strip():
                yield tuple(shlex.split(line.partition(" > ")[0])), True


RUN = run_by_page()
PARSED = sorted({line for page in PAGES for line in parsed(page)} | set(help_examples()))


@pytest.fixture
def parse(monkeypatch, tmp_path):
    """Parses a command line as its program does, and stops before it runs."""
    monkeypatch.chdir(tmp_path)
    importlib.import_module("sim.world.tree")  # before the patch, to keep the real reader
    # --response is read while parsing too.
    sizes = SimpleNamespace(n_problems=4, n_answers=2, facts=SimpleNamespace(run={}))
    monkeypatch.setattr("sim.settings.populations.response_at", lambda path: sizes)

    def parsed(words):
        program, *argv = words
        for place, word in enumerate(argv):
            if word == "--config":  # read while parsing
                Path(argv[place + 1]).touch()
        known = COMMANDS[program].COMMANDS
        return known, argv, lambda more: lab.cli.parse(program, known, [*argv, *more])

    return parsed


def users_files(folder):
    """What the pages leave to their reader: models, problems and a histogram."""
    sets = folder / "path" / "to" / "sets"
    sets.mkdir(parents=True)
    for model in (folder / "model", folder / "path" / "to" / "model"):
        importlib.import_module("small_models").save_model(model)
    text = text_of(ROOT / "docs" / "your-model.md")
    example = json.loads(re.findall(r"(?ms)^```json\n(.*?)^```", text)[0])
    rows = [{**example[0], "id": f"mul-{i}"} for i in range(8)]
    (folder / "problems.json").write_text(json.dumps(rows))
    rows = [{"id": str(i), "prompt": f"{i} * 4 = ?", "answer": str(4 * i)} for i in range(500)]
    (sets / "math500.json").write_text(json.dumps(rows))
    (folder / "p0.csv").write_text("p0,weight\n.2,.5\n.7,.5\n")


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN)
def test_the_commands_of_a_page_run_in_their_order(page, monkeypatch, tmp_path, capfd):
    """Each works on what the reader has and on what the commands above it made."""
    monkeypatch.chdir(tmp_path)
    users_files(tmp_path)
    for words in RUN[page]:
        program, *argv = small(words)
        code = PROGRAMS[program].main(argv)
        assert code == 0, f"{words}: {capfd.readouterr().err[-2000:]}"


def test_the_commands_of_the_makefile_parse(parse):
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    text = text.replace("$(EPOCHS)", "12").replace("$(SEEDS)", "0 1")
    found = re.findall(r"\$\(BIN\)/(guard-[a-z]+ [^;&\n]*)", text)
    assert len(found) == 12
    for line in found:
        parse(shlex.split(line))[2]([])


def test_the_pages_show_commands():
    shown = [words for lines in RUN.values() for words in lines]
    assert {words[0] for words in shown} == set(PROGRAMS) and len(shown) > 40
    everything = [" ".join(words) for page in PAGES for words in shell_lines(page)]
    for start in NOT_RUN:
        assert any(line.startswith(start) for line in everything), f"{start}: is on no page"


@pytest.mark.parametrize(
    ("words", "whole"),
    PARSED,
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_command_line_parses(words, whole, parse):
    known, argv, attempt = parse(words)
    if "--help" in argv:
        assert PROGRAMS[words[0]].main(argv) == 0
    elif whole:
        attempt([])
    elif argv and argv not in [[name] for name in known]:  # not the mention of a command's name
        # Mentions leave out where the run goes.
        has_out = "out" in getattr(known.get(argv[0]), "__dataclass_fields__", {})
        attempt(["--out", "runs/x"] if has_out and "--out" not in argv else [])
