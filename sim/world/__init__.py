"""The simulated model: populations, policies, votes and observations."""
