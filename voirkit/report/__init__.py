"""What a run is turned into for people and other tools: table, HTML page, live view, exports. Reads runs, never changes them."""
