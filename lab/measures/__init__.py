"""Measures of one trace: a trace or its visits in, a table out."""
