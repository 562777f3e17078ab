"""Delta rules: from changed inputs to changed views. Pure."""
