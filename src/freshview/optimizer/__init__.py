"""One optimiser for a set of views: what to share in a refresh, what to store, recompute or increment (MQO §4 to §6).

Pure: facts come in, a choice goes out. Law: every plan of the search space gives the same bag; statistics and costs
decide how long a refresh takes, never what it gives.
"""
