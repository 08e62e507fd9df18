"""The sections of the page: one file per group of questions."""
