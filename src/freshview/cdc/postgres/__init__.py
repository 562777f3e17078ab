"""Tables of a PostgreSQL server as sources: audit columns, triggers, change tracking, logical decoding.

Law: a poll reads one snapshot of the server, deltas and states alike. A position holds the snapshot up to which changes
were delivered: new is what is visible now and was not visible then, so transactions that commit out of the order of
their numbers are neither missed nor delivered twice.
"""
