"""One run: the overseer that controls it, its script and voirfiles, the destination of its spans,
and its end."""
