"""Rewards of rules in compiled code, where the rule on arrays is far too slow."""

from sim.rules.fast import FAST, FastRule, fast_rule

__all__ = ["FAST", "FastRule", "fast_rule"]
