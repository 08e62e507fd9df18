"""What every run leaves behind, and how it is read."""
