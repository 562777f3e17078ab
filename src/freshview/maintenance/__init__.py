"""Upkeep: checkpoint, vacuum, news from external tables, the background loop."""
