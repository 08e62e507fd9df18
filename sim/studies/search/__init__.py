"""Search over arms and settings by successive halving.

space    the candidates
halving  rounds of runs, after each of which the better half stays
table    the result, with intervals corrected for the number of candidates
"""
