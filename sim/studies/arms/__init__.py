"""Arms and their controls, the differences between them, and both in words."""
