"""A real GRPO trainer with majority-vote labels."""
