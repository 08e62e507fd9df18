"""Several runs of the trainer from the same seeds."""
