"""Observations of a rule other than the votes, as models of known strength.

Only here may the truth enter an observation: one of strength s is correlated with correctness, and
at strength 0 it contains no more information than the votes. `Observer` draws them; their
distributions are in the files of their names.
"""
