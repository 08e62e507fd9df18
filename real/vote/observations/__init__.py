"""Observations of responses that rules ask for, see `guard_core.rules.Observations`."""
