"""The engines behind `real.engines.rollouts.Engine`."""
