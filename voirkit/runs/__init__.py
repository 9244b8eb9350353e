"""The run directory: where what is known of a run is kept, and how it is laid out."""
