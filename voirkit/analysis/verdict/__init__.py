"""What a run is bound by, and what to do about it: from its summary alone."""
