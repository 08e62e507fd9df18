"""The engines behind `real.rollouts.Engine`."""
