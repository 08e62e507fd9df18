"""A fast stochastic simulator of answer-probability dynamics."""
