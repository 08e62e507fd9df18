"""A local page whose sliders rerun the simulator: `guard-sim explore`."""
