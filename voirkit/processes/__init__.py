"""Other processes of a run: how voirkit reaches those that the program starts by multiprocessing or
subprocess."""
