"""Formats that the trace of any run can be written in."""
