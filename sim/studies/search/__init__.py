"""Search over arms and settings by successive halving.

space    arms with settings
table    the result, with intervals corrected for the number of candidates
halving  the settings of a search: rounds, and the candidates that a budget allows
command  the rounds, after each of which the better half stays; `guard-sim search`
"""
