"""Verdict on a run, from its summary alone: the bottleneck, and what to do about it."""
