"""A run that goes on: what its files tell so far, and the view of it that stays below a terminal's lines."""
