"""What is simulated: populations, policies, votes and observations."""
