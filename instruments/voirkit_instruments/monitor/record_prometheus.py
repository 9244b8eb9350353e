"""``--prometheus [HOST:]PORT``: the run's figures for Prometheus, at ``http://HOST:PORT/metrics``; HOST is this machine alone unless given.

Another process serves them, from the run directory; it ends with the run. Of several ranks the first serves.
"""

from __future__ import annotations

import os
import sys

from voirkit.errors import CommandLineError
from voirkit.instrument import instrument_definition
from voirkit_instruments.monitor.record_extra import needed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from subprocess import Popen

    from voirkit.phases import Phase
    from voirkit.runner.overseer import Overseer

# No child of the program: that may wait for all its children, and --monitor counts them. The first place where python looks would be the
# current folder, which may hold a numpy.py of its own.
_PYTHON = """
import os, sys
if os.fork():
    os._exit(0)
sys.path[0] = sys.argv.pop(1)
from voirkit.live.prometheus import main
sys.exit(main(sys.argv[1:]))
"""


@instrument_definition
def prometheus(ov: Overseer, host: str, port: int) -> Iterator[Phase]:
    """Serve the run's figures while the script runs."""
    if os.environ.get("RANK", "0") != "0":
        return
    needed("prometheus_client", "--prometheus")
    yield ov.phases.load_script
    if ov.run_dir is None:
        return
    server = _serve(ov.run_dir, host, port)
    try:
        yield ov.phases.run_script
    finally:
        server.communicate()  # its standard input ends, and so does it


def _serve(run_dir: str, host: str, port: int) -> Popen[str]:
    """Start the process that serves, and wait until it does.

    Raises:
        CommandLineError: It can not.
    """
    from subprocess import PIPE, Popen

    import voirkit

    package = os.path.dirname(os.path.dirname(os.path.abspath(voirkit.__file__)))
    environment = {key: value for key, value in os.environ.items() if key not in ("VOIRKIT_RUN_DIR", "DATA_FD")}
    command = [sys.executable, "-c", _PYTHON, package, run_dir, host, str(port)]
    server = Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True, env=environment, start_new_session=True)
    server.wait()
    assert server.stdout is not None
    if server.stdout.readline() == "serving\n":
        return server
    why = server.communicate()[1].strip().splitlines() or ["no reason is known"]
    raise CommandLineError(f"nothing can be served there ({why[-1]}).", where=f"--prometheus {host}:{port}", next="Choose another port.")
