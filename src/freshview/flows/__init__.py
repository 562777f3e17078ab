"""Flows: tables that are fed from sources, from a poll to the rows of the table, and what a user sees of a flow.

Law: one commit has the rows of a poll, what the flow remembers of them, the position at the source and the events that
were set aside, or nothing; the source is confirmed after that commit.
"""
