"""The subcommands of the command line."""

# (function of its words that returns the exit code, imported only when it is called; its arguments; what it does) by word
SUBCOMMANDS = {
    "init": ("voirkit.commands.probes:write_voirfile", "SCRIPT", "write a first voirfile for a script"),
    "probes": ("voirkit.commands.probes:list_probes", "SCRIPT", "list what can be probed in a script"),
    "watch": ("voirkit.commands.watch:main", "[RUN]", "show a run while it goes on"),
    "report": ("voirkit.commands.report:report", "[RUN]", "show the summary of a run"),
    "compare": ("voirkit.commands.report:compare", "RUN RUN", "compare two runs"),
    "export": ("voirkit.commands.export:main", "[RUN]", "write the trace of a run for other tools"),
}
