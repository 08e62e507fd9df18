"""Settings of the trainer and the checks on them. Imports no torch."""
