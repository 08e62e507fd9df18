"""Information in the observations of the tiny task before training: `python benchmarks/signals.py`.

Print, with 95 % intervals over seeds, how well each observation separates correct from wrong
responses: AUROC over all responses and within a problem (mean over the problems that have both);
for the tool its true and false positive rates; for the rewording how often its majority differs.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from dataclasses import replace

import numpy as np

from guard_core import GuardConfig
from guard_core.rules import Need
from lab.stats.bootstrap import auroc
from lab.stats.paired import estimate
from real import TrainConfig
from real.run import prepare
from real.settings.seeds import Stream

NEEDS = frozenset({Need.STEP_LOGPROB, Need.ENTROPY, Need.CERTAINTY, Need.TOOL})
SIGNS = {"step_logprob": 1, "entropy": -1, "certainty": 1}
"""1 where a larger value indicates a correct response, -1 where a smaller one does."""


def measure(seed: int) -> dict[str, float]:
    """All numbers of one seed's votes before training."""
    run = prepare(TrainConfig(rule="self_harmony", guard=_off(), seed=seed).settled())
    run = replace(run, sampling=replace(run.sampling, stats=True))
    parts, answers = [], []
    with closing(run.engine), closing(run.supervisor):
        run.engine.update_weights(run.policy.model, version=0)
        generator, max_rows = run.sampler.generator(Stream.VOTES, 0), run.config.max_rows
        for responses in run.sampler.sample_all(
            run.prompts, run.config.n_votes, run.sampling, 0, generator, max_rows
        ):
            parts.append(run.observer.observe(responses, NEEDS))
            answers.append(run.supervisor.read(responses))
        run.further.begin()
        answers_NV, second_NV = np.concatenate(answers), run.further.first()["second"]
    truth_N = np.array([run.supervisor.answer_ids.truth_id(n) for n in range(len(answers_NV))])
    right_NV = answers_NV == truth_N[:, None]
    seen = {str(n): np.concatenate([part[str(n)] for part in parts]) for n in NEEDS}
    found = {"pass@1": right_NV.mean(), "majority right": _right(answers_NV, truth_N).mean()}
    for name, sign in SIGNS.items():
        found[f"AUROC of {name}, all"] = auroc(sign * seen[name].ravel(), right_NV.ravel())
        both = [n for n, own in enumerate(right_NV) if 0 < own.sum() < own.size]
        within = [auroc(sign * seen[name][n], right_NV[n]) for n in both]
        found[f"AUROC of {name}, within a problem"] = float(np.mean(within))
    tool = seen["tool"]
    found["tool: confirms right responses"] = tool[right_NV].mean()
    found["tool: confirms wrong responses"] = tool[~right_NV].mean()
    found["majority right on the rewording"] = _right(second_NV, truth_N).mean()
    wrong = ~_right(answers_NV, truth_N)
    same = _majority(answers_NV) == _majority(second_NV)
    found["rewording keeps a wrong majority"] = same[wrong].mean()
    return found


def _off() -> GuardConfig:
    return GuardConfig.off()


def _majority(answers_NV):
    return np.array([np.bincount(own[own >= 0]).argmax() for own in answers_NV])


def _right(answers_NV, truth_N):
    return _majority(answers_NV) == truth_N


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    rows = [measure(seed) for seed in range(parser.parse_args().seeds)]
    for name in rows[0]:
        value = estimate(np.array([row[name] for row in rows]))
        print(f"{name:<42}{value.mean:.3f}  [{value.low:.3f}, {value.high:.3f}]")


if __name__ == "__main__":
    main()
