"""Other processes of a run: those that the program starts by multiprocessing or subprocess, and how
voirkit reaches them."""
