"""Strength of every observation, and the settings that a rule's observations read.

One number, `SimConfig.signal` = s, sets all of them; tool and verifier can be set on their own.

    confidence   right responses lead wrong ones by 2 s in units where the variance at even odds is
                 1 and s is the correlation with being right there: AUROC = Phi(s sqrt(2 / (1-s^2)))
                 to .003, the noise being nearly normal
    tool         confirms right responses with (1 + s) / 2, wrong ones with (1 - s) / 2
    verifier     the same
    rewording    a share s of its errors are others than the question's
    similarity   responses with one answer are more alike by an amount in proportion to s
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from guard_core.rules import Need, make_rule
from sim.settings.config import SimConfig

READS: dict[Need, tuple[str, ...]] = {
    Need.STEP_LOGPROB: ("signal", "confidence_share"),
    Need.ENTROPY: ("signal", "confidence_share"),
    Need.CERTAINTY: ("signal", "confidence_share"),
    Need.SIMILARITY: ("signal",),
    Need.PARAPHRASE: ("signal", "second_errors", "second_votes"),
    Need.TEACHER: ("second_votes",),
    Need.VERDICTS: ("signal", "verifier_tpr", "verifier_fpr"),
    Need.TOOL: ("signal", "tool_tpr", "tool_fpr"),
}
"""Settings of `SimConfig` that an observation depends on."""


@dataclass(frozen=True, slots=True)
class Strength:
    """The numbers of the observation models, all given."""

    signal: float
    """Of confidences, rewordings and similarities."""
    confidence_share: float
    tool_tpr: float
    tool_fpr: float
    verifier_tpr: float
    verifier_fpr: float

    @classmethod
    def of(cls, config: SimConfig) -> Strength:
        """Strengths of the settings; those left out follow from `signal`."""
        s = config.signal
        usual = {
            "tool_tpr": (1 + s) / 2,
            "tool_fpr": (1 - s) / 2,
            "verifier_tpr": (1 + s) / 2,
            "verifier_fpr": (1 - s) / 2,
        }
        given = {f.name: getattr(config, f.name) for f in fields(cls)}
        return cls(**{n: float(usual[n] if v is None else v) for n, v in given.items()})


def only_read(config: SimConfig) -> SimConfig:
    """The settings with the defaults of all observations that the rule does not ask for.

    Runs that cannot differ then have equal settings, by which a sweep knows them.
    """
    read = {name for need in make_rule(config.rule).needs for name in READS[need]}
    usual = {f.name: f.default for f in fields(SimConfig)}
    unread = {name for names in READS.values() for name in names} - read
    return replace(config, **{name: usual[name] for name in unread})
