"""The subcommands of the command line, one a file."""

# Each is a module with a main(words) -> exit code, imported only when it is called: its arguments, and what it does.
SUBCOMMANDS = {
    "init": ("SCRIPT", "write a first voirfile for a script"),
    "probes": ("SCRIPT", "list what can be probed in a script"),
    "watch": ("[RUN]", "show a run while it goes on"),
    "report": ("[RUN]", "show the summary of a run"),
    "compare": ("RUN RUN", "compare two runs"),
    "export": ("[RUN]", "write the trace of a run for other tools"),
}
