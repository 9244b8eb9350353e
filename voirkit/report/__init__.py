"""What a run is turned into for people and other tools: exports, and later text and HTML. Reads runs, never changes them."""
