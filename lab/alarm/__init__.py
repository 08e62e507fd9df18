"""A label-free alarm for the extinction window, and how good it is."""
