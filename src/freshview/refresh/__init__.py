"""One refresh: from what a view has seen to what it should have seen.

Law: a refresh is computed from explicit points of all relations (`span.py`) and shown by compare-and-set on the view's
frontier (`jobs.py`), or not at all. Which way it is computed decides how long it takes, never what it gives.
"""
