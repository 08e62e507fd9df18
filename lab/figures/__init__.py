"""Figures: pure functions from a table to a plotly figure, all in the look of `style`."""
