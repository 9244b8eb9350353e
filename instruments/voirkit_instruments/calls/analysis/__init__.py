"""What ``--calls`` recorded: each call with its place in the run, figures by function, and where two runs begin to differ.

Records as in docs/calls.md: spans of kind ``call``, and marks of kind ``operand`` for the tensors of a call.
"""
