"""One refresh: the change of a view's stored rows from one point in time to another, computed and published.

Law: a refresh is computed from explicit points of all relations (`span.py`) and published by compare-and-set on the
view's frontier (`jobs.py`), or not at all. Which way it is computed decides how long it takes, never what it gives.
"""
