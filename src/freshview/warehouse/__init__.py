"""The public surface: it puts the rooms below together, and decides nothing."""
