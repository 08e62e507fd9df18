"""The record of a run: trace, metrics, checkpoints, progress, notices."""
