"""The run directory, which holds everything recorded about one run, and its layout."""
