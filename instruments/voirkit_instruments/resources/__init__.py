"""Always on: processor time and memory of the run."""
