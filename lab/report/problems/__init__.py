"""The part of the page that lists every problem with its votes over training."""
