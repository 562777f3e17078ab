"""The public surface: `connect` opens a `Warehouse`, whose methods delegate to the rooms below.

Law: this room wires the others together and formats reports; every decision is made below it.
"""
