"""Changes that others make, noticed and turned into commits of ours.

Law: what was noticed and where it came from are recorded in one catalog transaction: exactly once, whatever dies.
"""
