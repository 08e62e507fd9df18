"""The simulation of one configuration, batch by batch."""
