"""Label-free rules of the field behind one interface: observations to rewards, label and weight."""

from guard_core.rules.advantages import answer_streams, response_streams, rule_advantages, weighed
from guard_core.rules.named import RULES, make_rule
from guard_core.rules.observations import Observations
from guard_core.rules.rule import Need, Pays, Rule

__all__ = [
    "RULES",
    "Need",
    "Observations",
    "Pays",
    "Rule",
    "answer_streams",
    "make_rule",
    "response_streams",
    "rule_advantages",
    "weighed",
]
