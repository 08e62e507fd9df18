"""Measurement of a model's token tree and gradients, from which the simulator predicts runs."""
