"""Comparisons of several runs: pairing, effort, own best step sizes, tables."""
