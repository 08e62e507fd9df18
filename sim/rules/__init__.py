"""Rewards of rules in compiled code, where the rule on arrays is far too slow."""
