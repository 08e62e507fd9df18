"""TTRL-Guard in verl's PPO trainer on Ray: a plugin of verl, and the commands of `guard-verl`."""
