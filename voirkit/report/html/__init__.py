"""A run, or two, as one HTML page that asks nothing of anybody."""
