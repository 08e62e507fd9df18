"""The trace that every run leaves: schema, run folder, manifest, and how they are read."""
