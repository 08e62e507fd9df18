"""Settings of the simulator and the checks on them."""
