"""Simulated runs with the settings of real ones, and how well they predict them."""
