"""Stacks that were taken of a run (``--flame``): by phase, process and thread, on the run's own clock (docs/flame.md)."""
