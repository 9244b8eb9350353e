"""Always on (``--no-steps`` switches it off): what each step of a training spends its time on, and its loss."""
