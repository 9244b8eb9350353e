"""Runs scripts one after another, each in a process forked from this one, which has imported torch and done nothing with it.

Importing torch and making a first optimizer takes seconds of a script that runs for tenths. Each line read is a JSON object: ``words`` (of
voirkit; or a script alone), ``voirkit`` (or plain python), ``ranks``, ``cwd``, ``out``, ``err``; each line written the exit codes.
"""

from __future__ import annotations

import json
import os
import runpy
import socket
import sys
from importlib import import_module
from typing import Any


def _port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _be(asked: dict[str, Any], rank: int, port: int) -> int:
    os.chdir(asked["cwd"])
    if asked["ranks"] > 1:
        world = str(asked["ranks"])
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=world, LOCAL_WORLD_SIZE=world
        )
        os.environ.update(
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_RUN_ID=str(port)
        )
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(f"{asked[name]}{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    script = os.path.abspath(next(word for word in asked["words"] if word.endswith(".py")))
    sys.path[0] = os.getcwd() if asked["voirkit"] else os.path.dirname(script)
    sys.argv = ["voirkit" if asked["voirkit"] else script, *asked["words"]]
    if asked["voirkit"]:
        from voirkit.cli import main

        return main(asked["words"])
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")
    return 0


def main() -> None:
    """Until there is nothing more to read. Returns in each child once its script has run."""
    for line in sys.stdin:
        asked = json.loads(line)
        port = _port()
        children = []
        for rank in range(asked["ranks"]):
            child = os.fork()
            if child == 0:
                sys.exit(_be(asked, rank, port))
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    for module in (
        "torch.utils.data",
        "torch._dynamo",
        "torch.nn.parallel.distributed",
        "torch.optim.lr_scheduler",
    ):
        import_module(module)
    main()
