"""System calls: logs of tracers read as streams, each call given to a phase and a kind of thread, and summed. Loads nothing of a run."""
