"""The label-free rules in compiled form."""
