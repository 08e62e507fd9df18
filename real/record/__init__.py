"""What a run tells while it goes: trace, metrics, progress, notices."""
