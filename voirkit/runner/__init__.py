"""One run: the overseer that leads it, its script and voirfiles, where its spans go, and how it
ends."""
