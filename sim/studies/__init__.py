"""Studies made of many simulations: comparisons, controls, sweeps, calibration."""
