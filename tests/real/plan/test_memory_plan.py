import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from live_tensors import LiveTensors
from random_groups import random_rows
from small_models import decoder_sizes
from tiny_runs import Stopped, held
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    MambaConfig,
    Qwen2Config,
    Qwen3Config,
)

from lab.base.arms import arm
from lab.base.errors import UserError
from real.__main__ import main
from real.engines.rollouts import Sampling
from real.engines.transformers_engine import TransformersEngine
from real.engines.vllm_engine import EngineMemory
from real.fit import engine_memory
from real.model.machine import card_held
from real.model.policy import attention_heads
from real.model.prepare import prepare_training
from real.plan import (
    CONTEXT,
    GIB,
    SHAPES,
    PlannedModel,
    pass_bytes,
    plan_memory,
    read_config,
    state_parts,
    stats_bytes,
)
from real.ranks.distributed import Ranks
from real.run import prepare
from real.settings.config import TrainConfig
from real.settings.groups import MemorySettings
from real.settings.presets import NAMES, preset
from real.tiny import CHECKPOINT
from real.update.logprobs import Head, Scorer
from real.update.packing import PackedRows

TINY = {"n_problems": 8, "n_votes": 8, "n_samples": 4, "epochs": 1}
QWEN = PlannedModel(read_config("Qwen2.5-7B-Instruct"))


def cell(**changes):
    return preset("qwen2.5-7b/math500", "folder", **changes).settled()


def planned(config, world):
    model = PlannedModel(read_config(str(CHECKPOINT)))
    parts = state_parts(model.size(config), config, world)
    weights = sum(part.update for part in parts if part.name == "weights")
    return {"weights": weights, "rest": sum(part.update for part in parts) - weights}


@pytest.mark.parametrize(
    ("world", "settings"),
    [
        (1, {"dtype": "float32"}),
        (1, {"dtype": "bfloat16", "ema_decay": 0.9}),
        (1, {"dtype": "float32", "lora_rank": 4}),
        (2, {"dtype": "float32"}),
        (2, {"dtype": "bfloat16"}),
    ],
)
def test_ranks_hold_the_planned_bytes(ranks, world, settings):
    if "lora_rank" in settings:
        pytest.importorskip("peft")
    name = f"bytes-{world}-{'-'.join(map(str, settings.values()))}"
    ended = ranks(name, {**TINY, **settings}, world, parts=("bytes",))
    assert ended.codes == [0] * world
    held = [json.loads(lines[0]) for lines in ended.lines]
    for kind, n_bytes in planned(TrainConfig(**TINY, **settings).settled(), world).items():
        assert sum(one[kind] for one in held) / world == pytest.approx(n_bytes, rel=0.05)


def test_engines_of_several_gpus_have_room_for_more_tokens():
    configs = [cell(engine_tp=n) for n in (1, 4, 8)]
    plans = [plan_memory(QWEN.size(), config, 8, 80 * GIB) for config in configs]
    weights = [next(p.sampling for p in plan.parts if "weights" in p[0][7:]) for plan in plans]
    assert weights == [weights[0], weights[0] // 4, weights[0] // 8]
    # Four heads of keys and values: eight GPUs hold two copies of each.
    per_token = [plan.cache / plan.cache_tokens for plan in plans]
    assert per_token == pytest.approx([per_token[0], per_token[0] / 4, per_token[0] / 4], rel=1e-3)


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_an_engine_that_samples_during_the_update_is_counted_with_it(engine):
    config = cell(engine=engine, lora_rank=16)
    size = QWEN.size(MemorySettings(lora_rank=16))
    turns, ahead = (plan_memory(size, replace(config, async_level=n), 1, 140 * GIB) for n in (0, 1))
    beside = [part for part in ahead.parts if part.name.startswith("engine")]
    assert len(beside) == (4 if engine == "vllm" else 3)
    assert all(part.update == part.sampling for part in beside)
    both = sum(part.update for part in turns.parts if not part.name.startswith("engine"))
    assert ahead.update == both + sum(part.update for part in beside)
    if engine == "vllm":
        assert turns.cache > ahead.cache > 0
        assert ahead.fits and ahead.update == ahead.usable
    else:
        assert ahead.host > turns.host


@pytest.mark.parametrize("kept", [0, 6])
@pytest.mark.parametrize(
    ("shape", "dtype", "shares_prompt"),
    [
        (LlamaConfig, torch.float32, False),
        (Qwen3Config, torch.bfloat16, False),
        (LlamaConfig, torch.float32, True),
    ],
)
def test_a_pass_makes_the_planned_tensors(shape, dtype, shares_prompt, kept, request):
    """Behind one prompt with keys and values copied under a mask, as on a GPU."""
    if shares_prompt:
        request.getfixturevalue("library_attention")
    attention = {} if shares_prompt else {"attention": "flash_attention_2"}
    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 6}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    config = shape(**sizes, **heads, vocab_size=3000)
    size, chunk = PlannedModel(config).size(), 64 * 3000
    memory = {"gradient_checkpointing": True, "kept_layers": kept, "dtype": str(dtype)[6:]}
    tokens = {"max_prompt_tokens": 704, "max_response_tokens": 11}
    passes = TrainConfig(max_tokens_per_microbatch=1024, **memory, **tokens, **attention)
    expected = pass_bytes(size, passes, chunk)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    prepare_training(model, MemorySettings(gradient_checkpointing=True, kept_layers=kept))
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    scorer = Scorer(model, chunk)
    assert isinstance(scorer.head, Head)
    if shares_prompt:
        groups, places = [random_rows(704, [11] * 32, 3000, 1)], [(0, row) for row in range(32)]
        rows = scorer.micro_batch(groups, places, bundle=32).rows
        assert rows.input_ids_BS.shape == (1, 1024)
    else:
        ids = torch.randint(0, 3000, (8, 128))
        rows = PackedRows(ids, None, 128, ids.flatten())
    with LiveTensors(model.parameters()) as live:
        scorer(rows, 1.0).logprobs_n.sum().backward()
    assert live.peak == pytest.approx(expected, rel=0.15)
    expected = stats_bytes(size, passes, chunk)
    with torch.no_grad(), LiveTensors(model.parameters()) as live:
        scorer(rows, 1.0, stats=True)
    assert live.peak == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("world", [1, 8])
def test_votes_that_the_trainer_scores_leave_the_engine_less_memory(world):
    """vLLM gives no entropies; it is awake while a pass of the trainer computes them."""
    size, plain = QWEN.size(MemorySettings(lora_rank=16)), cell(engine="vllm", lora_rank=16)
    scored = replace(plain, rule="intuitor", guard=arm("intuitor").guard)
    plans = (plan_memory(size, config, world, 140 * GIB) for config in (plain, scored))
    without, beside = ({part.name: part.sampling for part in plan.parts} for plan in plans)
    added = beside["activations"] + beside.get("gathered layers", 0)
    assert without["activations"] == 0 and beside["activations"] > 2**31
    assert ("gathered layers" in beside and beside["gathered layers"] > 0) is (world > 1)
    assert without["engine: cache"] - beside["engine: cache"] == added
    native = replace(scored, engine="transformers")
    parts = plan_memory(size, native, world, 140 * GIB).parts
    assert not any(part.sampling for part in parts if part.name == "activations")


@pytest.mark.parametrize("card", [79.18, 139.8])
@pytest.mark.parametrize("lora_rank", [0, 16])
@pytest.mark.parametrize("name", SHAPES)
def test_vllm_starts_wherever_the_plan_fits(name, lora_rank, card):
    """Its own check: the share must be free when it starts, when ranks hold a context alone."""
    model, total = PlannedModel(read_config(name)), int(card * GIB)
    cell = next(n for n in NAMES if name.lower().startswith(n.partition("/")[0]))
    config = preset(cell, "folder", lora_rank=lora_rank, engine="vllm", dtype="bfloat16").settled()
    size, fitting = model.size(MemorySettings(lora_rank=lora_rank)), 0
    for world in (1, 2, 4, 8, 16):
        plan = plan_memory(size, config, world, total)
        fitting += plan.fits
        if plan.fits:
            assert plan.engine_share * total <= total - 2 * CONTEXT, world
    assert fitting


def test_a_model_that_no_gpu_holds_whole_is_sharded_from_main_memory():
    shape = Qwen2Config(hidden_size=8192, intermediate_size=29568, num_hidden_layers=80)
    size = PlannedModel(shape).size(MemorySettings(lora_rank=16))
    config = TrainConfig(
        engine="vllm", engine_tp=8, dtype="bfloat16", lora_rank=16, gradient_checkpointing=True,
        max_tokens_per_microbatch=2048,
    ).settled()  # fmt: skip
    plan = plan_memory(size, config, 16, 80 * GIB)
    assert plan.fits and 2 * size.n_weights > plan.usable > plan.start
    # Eight ranks map one file that has the run's precision; from another each has a copy.
    mapped = plan_memory(replace(size, stored=torch.bfloat16), config, 16, 80 * GIB, nodes=2)
    each = plan_memory(size, config, 16, 80 * GIB, nodes=2)
    assert each.host - mapped.host == 7 * 2 * size.n_weights and plan.host > 2 * mapped.host
    whole = plan_memory(size, replace(config, engine="transformers"), 16, 80 * GIB)
    assert whole.start > whole.usable and not whole.fits
    # The trainer's whole model and the engine's copy of it, one beside the other.
    native = replace(config, engine="transformers", engine_tp=1)
    starts = [plan_memory(size, native, world, 80 * GIB).start for world in (1, 16)]
    assert starts[1] - starts[0] == 2 * size.n_weights


@pytest.mark.parametrize(("world", "url"), [(1, None), (2, None), (2, "http://127.0.0.1:1")])
def test_the_model_reaches_the_gpu_after_vllm_has_started(monkeypatch, world, url):
    """The device `meta` stands for the GPU; several ranks move the model as they shard it."""
    places = []

    def made(config, policy, *_):
        places.append(next(policy.model.parameters()).device.type)
        assert policy.device.type == "meta"
        return SimpleNamespace(release=lambda: places.append("released"))

    def stop(model, device):
        assert device.type == "meta"
        places.append(next(model.parameters()).device.type)
        raise Stopped

    memory = EngineMemory(0.5), ["planned"]
    monkeypatch.setattr("real.run.pick_device", lambda _: torch.device("meta"))
    monkeypatch.setattr("real.run.checked_engine_memory", lambda *_: memory)
    monkeypatch.setattr("real.run.make_engine", made)
    monkeypatch.setattr("real.run.Scorer", stop)
    with pytest.raises(Stopped):
        engine = "vllm_server" if url else "vllm"
        prepare(TrainConfig(**TINY, engine=engine, engine_url=url).settled(), Ranks(0, world))
    assert places == ["cpu", "released", "meta" if world == 1 else "cpu"]


EIGHT = ["--preset", "qwen2.5-7b/math500", "--gpus", "8"]
LORA = [*EIGHT, "--lora-rank", "8", "--lora-targets"]


def said_by(capsys, *words, code=0):
    """What a plan says that fits, or with code 1 one that does not."""
    assert main(["plan", *words]) == code
    return capsys.readouterr().out


def test_the_plan_compares_engines_split_over_several_gpus(capsys):
    said = said_by(capsys, *EIGHT, "--engine", "vllm")
    one = re.search(r"about (\d+) s a step", said)
    # With this few responses per engine, decoding waits for the weights, which are read in parts.
    two, four = (int(n) for n in re.findall(r"--engine-tp [24] (\d+)", said))
    assert one and int(one[1]) > two > four
    # No batch is scored before its update; and the layers that memory is left for.
    assert int(one[1]) > int(re.findall(r"--tis-cap 0 (\d+)", said)[0])
    kept = re.findall(r"--kept-layers (\d+)", said)[0]
    said_by(capsys, *EIGHT, "--engine", "vllm", "--kept-layers", kept)
    lone = said_by(capsys, *EIGHT[:2], "--nodes", "2", "--lora-rank", "16")
    assert "--kept-layers" in lone and "--engine-tp" not in lone  # it is of one machine's GPUs
    more = ["--engine", "vllm", "--kept-layers", str(int(kept) + 1)]
    assert "these would fit: --kept-layers 0" in said_by(capsys, *EIGHT, *more, code=1)


@pytest.mark.parametrize(
    ("network", "groups", "seconds"),
    # 8 optimizer steps: two gathers of 7.6 billion bfloat16 weights and the scatter of float32
    # gradients, or the sum of the gradients of two copies, over 400 GB or 12.5 GB a second.
    [(3200, 0, 1.2), (100, 0, 39.0), (100, 8, 19.5)],
)
def test_the_plan_counts_the_network_between_nodes(capsys, network, groups, seconds):
    words = ["--nodes", "2", "--network", str(network), "--fsdp-size", str(groups)]
    assert f"network {seconds}\n" in said_by(capsys, *EIGHT, *words)


def test_a_model_without_attention_heads_is_planned(capsys, tmp_path):
    MambaConfig(hidden_size=64, num_hidden_layers=2, vocab_size=128).save_pretrained(tmp_path)
    assert main(["plan", "--model", str(tmp_path), "--n-problems", "8", "--gpu", "h100"]) == 0
    assert "GiB" in capsys.readouterr().out


def test_layers_that_differ_and_the_experts_of_a_token_are_counted():
    """Gemma 4's full layers have wider heads; Gemma 3n names the width of each layer."""
    sizes = decoder_sizes(60, head_dim=8)
    kinds = {"layer_types": ["sliding_attention", "full_attention"], "global_head_dim": 32}
    config = AutoConfig.for_model("gemma4_text", **sizes, **kinds)
    differing = PlannedModel(config).size()
    assert (differing.n_query, differing.n_kv) == (2 * 32, 2 * (8 + 32))
    assert attention_heads(config) == (differing.n_heads, differing.n_kv_heads) == (2, 1)
    widths = sizes | {"intermediate_size": [24, 40], "num_kv_shared_layers": 0, "laurel_rank": 4}
    wide = AutoConfig.for_model("gemma3n_text", **widths, layer_types=kinds["layer_types"])
    assert PlannedModel(wide).size().n_inner == 40
    few, all_of = (
        PlannedModel(AutoConfig.for_model("mixtral", **sizes, num_local_experts=4, **of)).size()
        for of in ({"num_experts_per_tok": 1}, {"num_experts_per_tok": 4})
    )
    assert few.n_weights == all_of.n_weights
    assert all_of.n_multiplied == few.n_multiplied + 3 * (2 * 3 * 16 * 24)  # two layers


def test_the_plan_counts_evaluations(capsys):
    often = said_by(capsys, *EIGHT, "--eval-steps", "5")
    # 1,890 / 5 - 1 evaluations of 500 problems with 4 responses, and three times 64.
    assert "1,890 steps, 960,000 votes, 850,000 responses of evaluations" in often
    usual = said_by(capsys, *EIGHT)
    assert "8 GPUs of 80 GiB" in usual and "checkpoint: 91.4 GB" in usual
    assert "fits; about" in usual and "no speed was measured" in usual
    alone = said_by(capsys, *EIGHT[:2], "--gpu", "h200", code=1)
    assert "does not fit; these would fit: --offload-optimizer" in alone
    assert "154,000 responses of evaluations" in usual
    twice = said_by(capsys, *EIGHT, "--rule", "co_rewarding_1", "--n-held-out", "100")
    # 400 problems, voted on twice; 23 evaluations of 500, every 63 batches, and twice 64 votes.
    assert "1,536,000 votes, 161,200 responses of evaluations" in twice and "further" in twice
    step = re.search(r"about (\d+) s a", usual)
    hours = [int(m[1]) for text in (usual, often) if (m := re.search(r"about (\d+) hours", text))]
    assert step and 1890 * float(step[1]) / 3600 < hours[0] < hours[1]


def test_the_plan_counts_the_problems_that_are_trained_on(capsys, tmp_path):
    own = tmp_path / "own.json"
    own.write_text(json.dumps([{"prompt": f"{n} + 1?", "answer": str(n + 1)} for n in range(83)]))
    for words, n_problems in (
        (("--n-problems", "50"), 50),
        (("--n-held-out", "100"), 400),
        (("--problems", str(own)), 83),
        (("--problems", str(own), "--n-held-out", "3"), 80),
    ):
        said = said_by(capsys, *EIGHT, *words)
        steps, votes = 30 * -(-n_problems // 8), 30 * n_problems * 64
        assert f"a run: {steps:,} steps, {votes:,} votes, " in said
    assert "a run: " not in said_by(capsys, *EIGHT, "--problems", str(tmp_path / "none.json"))


def test_the_guide_has_the_numbers_of_the_plan(capsys):
    guide = (Path(__file__).parents[3] / "docs" / "gpu.md").read_text()
    form = r"^\| ([\d x]+) x (24|80|141) GB \| ([^,]+), [^|]* \| ([^|]*)\| (.*) \|$"
    rows = re.findall(form, guide, re.MULTILINE)
    for machine, memory, name, what, cells in rows:
        *nodes, gpus = machine.split(" x ")
        words = ["--preset", f"{name.lower()}/math500", "--gpus", gpus]
        words += ["--nodes", nodes[0], "--network", "3200"] if nodes else []
        words += ["--gpu", "h200"] if memory == "141" else ["--gpu-memory", "24"] * (memory == "24")
        options = re.sub(r"torchrun( --nnodes \d)?", "", " ".join(re.findall(r"`(.*?)`", what)))
        said = said_by(capsys, *words, *options.split())
        forms = [r"^sum +([\d.]+)", r"^engine: cache +[\d.]+ +([\d.]+)", r"^main memory: (\d+)"]
        forms += [r"about (\d+) s a step", r"about (\d+) hours"]
        found = [re.search(one, said, re.MULTILINE) for one in forms]
        planned = [f"{float(one[1]):.0f}" if one else "-" for one in found]
        assert cells.replace(" (each)", "").split(" | ") == planned
    assert len(rows) == 8


def test_a_remedy_is_what_the_trainer_would_take(capsys):
    """More ranks of this kind are refused; a quarter of three tokens is none."""
    for words in (
        ("--engine", "vllm_inprocess"),
        ("--restart-engine", "1"),
        ("--gpus", "3", "--fsdp-size", "3"),
    ):
        more = ["--gpu-memory", "45", "--max-tokens-per-microbatch", "3", *words]
        said = said_by(capsys, *EIGHT[:2], *more, code=1)
        assert "does not fit; these would fit: " in said
        assert "--lora-rank 16" in said and " GPUs\n" not in said and "microbatch" not in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus", "0"], "gpus = 0"),
        ([*EIGHT, "--engine-tp", "3"], "engine_tp = 3"),
        ([*EIGHT, "--engine-tp", "8"], "engine_tp = 8: does not divide the model's 28 att"),
        (["--preset", "llama-3.2-3b/amc", "--gpus", "6", "--engine-tp", "3"], "and 8 of keys"),
        ([*EIGHT, "--engine", "vllm_inprocess"], "serves one process, not 8 ranks"),
        ([*EIGHT, "--restart-engine", "1"], "restart_engine = 1: not with 8 ranks"),
        ([*LORA, "qproj"], "lora_targets = qproj: the m"),
        ([*LORA, "q_proj,embed_tokens"], "tokens is no linea"),
        ([*EIGHT, "--n-problems", "600"], "n_problems = 600: math500 holds 500"),
        (
            [*EIGHT[:2], "--gpus", "3", "--nodes", "2", "--engine-tp", "2"],
            "the 3 ranks of a machine",
        ),
        ([*EIGHT, "--fsdp-size", "3"], "fsdp_size = 3: does not divide 8 ranks"),
        (["--gpu-memory", "-3"], "gpu_memory = -3"),
        (["--model", "nowhere"], "no such folder"),
        (["--preset", "gpt-9/math500"], "unknown"),
    ],
)
def test_bad_plans_are_one_line(words, message, capsys):
    assert main(["plan", *words]) == 2
    said = capsys.readouterr().err
    assert message in said and len(said.splitlines()) == 1


ALL = TrainConfig(engine="vllm")
SHARE = TrainConfig(engine="vllm", engine_memory=0.3)


@pytest.fixture
def lock(tmp_path, monkeypatch):
    """The file by which runs on a GPU know of each other."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    properties = SimpleNamespace(uuid="GPU-8f")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / "guard-train-GPU-8f.lock"


@pytest.mark.parametrize(("kind", "config"), [("LOCK_EX", SHARE), ("LOCK_SH", ALL)])
def test_a_run_that_takes_all_of_a_gpu_is_alone_on_it(lock, kind, config):
    # Runs of one process are no other runs.
    with card_held(config, "auto"), card_held(config, "auto"):
        pass
    refused = pytest.raises(UserError, match=r"^GPU 3: another run is on it.*engine_memory$")
    with held(lock, kind), refused, card_held(config, "auto"):
        pass


def test_runs_with_shares_of_a_gpu_stand_beside_each_other(lock):
    for config in (SHARE, TrainConfig(engine="transformers"), TrainConfig(engine="vllm_server")):
        with held(lock, "LOCK_SH"), card_held(config, "auto"):
            pass


UNEQUAL, EQUAL = (40, 38, 36, 34), (40, 40, 40, 40)


@pytest.mark.parametrize(
    ("kv_heads", "vocabulary", "lengths", "top_p", "least"),
    [
        (2, 50, UNEQUAL, 1.0, 0.95),  # a mask: attention copies keys and values
        (8, 50, EQUAL, 1.0, 0.75),
        (2, 20_000, EQUAL, 0.9, 0.9),  # the cache is small beside the logits
    ],
)
def test_an_engine_holds_at_most_the_planned_bytes(
    kv_heads, vocabulary, lengths, top_p, least, monkeypatch, library_attention
):
    monkeypatch.setattr("real.engines.transformers_engine.BLOCK", 16)  # so that buffers grow
    sizes = {"hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 8, "num_key_value_heads": kv_heads}
    shape = Qwen2Config(**sizes, **heads, vocab_size=vocabulary)
    model = AutoModelForCausalLM.from_config(shape, dtype=torch.float32).eval()
    settings = {"max_prompt_tokens": 40, "max_rows": 24, "eval_top_p": top_p}
    n_tokens = 150 if vocabulary == 50 else 3
    config = TrainConfig(**settings, max_response_tokens=n_tokens).settled()
    plan = plan_memory(PlannedModel(shape).size(), config, 1, GIB)
    (cache,) = (part.sampling for part in plan.parts if part.name == "engine: cache")
    engine = TransformersEngine(model, (), max_rows=24)
    prompts = [[1] * length for length in lengths]
    with LiveTensors(model.parameters()) as live:
        engine.sample(prompts, 6, Sampling(n_tokens, top_p=top_p), torch.Generator())
    assert least * cache < live.peak < 1.05 * cache


@pytest.fixture
def on_a_card(tmp_path):
    """Plans a run of Qwen2.5-7B on one GPU of 140 GiB."""
    read_config("Qwen2.5-7B-Instruct").save_pretrained(tmp_path)
    return lambda config: engine_memory(config, tmp_path, 1, 140 * GIB, 140 * GIB)


def test_a_run_that_does_not_fit_is_refused_before_it_is_loaded(on_a_card):
    words = r"^memory: the update needs 140 GiB.*--offload-optimizer \| --lora-rank 16"
    with pytest.raises(UserError, match=words) as e:
        on_a_card(cell())
    assert "\n" not in str(e.value)
    adapted = replace(cell(), lora_rank=16)
    memory, (notice,) = on_a_card(adapted)
    assert notice.startswith("memory of each GPU in GiB: update 27, sampling 132 of 132 (weights ")
    assert notice.count("\n") == 0 and "engine: cache" in notice
    assert 0.7 < memory.share < 0.9
    plan = plan_memory(QWEN.size(MemorySettings(lora_rank=16)), adapted, 1, 140 * GIB)
    assert memory.cache == plan.cache > 0
    assert plan.sampling <= plan.usable


def test_rows_whose_cache_does_not_fit_are_refused(on_a_card):
    config = cell(lora_rank=16, engine="transformers")
    words = r"sampling 1\d\d, of 132 GiB.*these would fit: --max-rows 64"
    with pytest.raises(UserError, match=words):
        on_a_card(config)
    assert on_a_card(replace(config, max_rows=64))[0].cache is None


def test_an_asked_share_is_taken_as_it_is(on_a_card):
    memory = on_a_card(cell(lora_rank=16, engine_memory=0.4))[0]
    assert memory.share == pytest.approx(0.4, abs=1e-6) and memory.cache is None
    with pytest.raises(UserError, match="no --engine-memory"):
        on_a_card(cell(lora_rank=16, engine_memory=0.95))
