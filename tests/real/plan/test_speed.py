import json
import re
import time
from itertools import count

import pytest
import torch

from real.__main__ import main
from real.speed import ASSUMED, CARDS, FAST, SLOW, assumed_rates, product_flops

WORDS = ("plan", "--preset", "qwen2.5-7b/math500", "--gpus", "8")


def planned(capsys, *more):
    """Return what a plan says, and its seconds a step: usual, fastest, slowest."""
    assert main([*WORDS, *more]) == 0
    said = capsys.readouterr().out
    found = re.search(r"about (\d+) s a step \((\d+) to (\d+)\)", said)
    assert found
    return said, [int(n) for n in found.groups()]


def measures(path, dry=False, **rates):
    rows = [{"name": name, "value": value, "rate": name} for name, value in rates.items()]
    records = [{"dry": dry, "measures": [{"name": "other", "value": None}]}]
    records += [{"dry": dry, "measures": [row]} for row in rows]
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return str(path)


def test_what_is_assumed_of_a_card_implies_a_range():
    slow, fast = (assumed_rates(CARDS["h100"], pace) for pace in (SLOW, FAST))
    assert slow["train_flops"] < fast["train_flops"] < CARDS["h100"].flops
    assert slow["decode_overhead"] > fast["decode_overhead"]
    assert slow["adapters"] > fast["adapters"] > 1


def test_no_response_is_longer_than_the_limit(capsys):
    short = "--max-response-tokens", "64"
    assert planned(capsys, *short) == planned(capsys, *short, "--mean-tokens", "64")


def test_votes_ahead_and_adapters_are_in_the_range(capsys):
    """Whether sampling beside an update takes less time is not known; adapters slow decoding."""
    said, (usual, fastest, slowest) = planned(capsys)
    assert fastest < usual < slowest and "no speed was measured; assumed: train_flops 0.3" in said
    ahead = planned(capsys, "--async-level", "1")[1]
    assert ahead[0] < usual and ahead[1] < fastest and ahead[2] >= slowest
    lora = ("--lora-rank", "16")
    applied, merged = (planned(capsys, *lora, *more)[0] for more in ((), ("--no-engine-adapters",)))
    seconds = [float(re.findall(r"rollout ([\d.]+)", one)[0]) for one in (applied, merged)]
    assert seconds[0] / seconds[1] == pytest.approx(1.25, rel=0.02)


def test_the_reference_of_a_kl_penalty_takes_a_pass(capsys):
    said = [planned(capsys, "--tis-cap", "0", *more)[0] for more in ((), ("--kl-coef", "0.1"))]
    plain, both = (float(re.findall(r"update ([\d.]+)", one.split("fits;")[1])[0]) for one in said)
    assert both / plain == pytest.approx(8 / 6, rel=0.1)  # passes computed again are in both


def test_measured_rates_take_the_place_of_assumed_ones(capsys, tmp_path):
    slow = measures(tmp_path / "one.jsonl", decode_overhead=0.1, train_flops=1e14)
    said, (usual, *_) = planned(capsys, "--measured", slow)
    assert usual > 300 and "measured: decode_overhead 0.1, train_flops 1e+14; assumed: " in said
    every = dict.fromkeys(ASSUMED, 100000000000000.0)
    every |= {"decode_overhead": 0.001, "adapters": 1.1, "overlap": 0.5}
    said, (usual, *span) = planned(capsys, "--measured", measures(tmp_path / "all.jsonl", **every))
    assert span == [usual, usual] and "assumed" not in said


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ({"speed": 1.0}, "speed is no rate"),
        ({"train_flops": -1.0}, "train_flops is no rate"),
        ({}, "no rate was measured on a GPU"),
        ({"train_flops": 1e14, "dry": True}, "no rate was measured on a GPU"),
        ({"train_flops": None}, "no results.jsonl of prove.py"),
    ],
)
def test_a_file_without_rates_is_refused(rates, message, tmp_path, capsys):
    assert main([*WORDS, "--measured", measures(tmp_path / "a.jsonl", **rates)]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
    assert main([*WORDS, "--measured", str(tmp_path / "none.jsonl")]) == 2


def test_a_product_of_matrices_tells_the_speed(monkeypatch):
    ticks = (0.25 * n for n in count())
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    assert product_flops(torch.device("cpu"), 2, 3, 5) == 2 * 2 * 3 * 5 / 0.25
