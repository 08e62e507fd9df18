"""What a run is resumed from, and how it is put back there."""
