"""``--github-summary``: the report as Markdown in the summary of a GitHub Actions job.

The report is appended when the record of the run is complete, even if the script or a check has
failed. Another process renders the Markdown, as it does the table that a run prints.
"""

from __future__ import annotations

import os

from voirkit.instrument import Instrument, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from voirkit.runner.overseer import Overseer

VARIABLE = "GITHUB_STEP_SUMMARY"

INSTRUMENT = Instrument(
    "github_summary",
    group="CI",
    options=(
        Option(
            "--github-summary",
            "append the report as Markdown to the job's summary, the file that $GITHUB_STEP_SUMMARY"
            " names",
        ),
    ),
    record="voirkit_instruments.github_summary:record",
)


def record(ov: Overseer, options: Mapping[str, Any]) -> None:
    """Append the report at the end of the run; if there are several ranks, only rank 0 does."""
    from voirkit.runs.manifest import rank_and_world_size

    if rank_and_world_size()[0] == 0:
        ov.when_complete(lambda summary: _append(ov))


def _append(ov: Overseer) -> None:
    from voirkit.runner import completion

    target = os.environ.get(VARIABLE)
    if not target:
        ov.say(
            f"--github-summary: ${VARIABLE} is not set: this is no job of GitHub Actions. Nothing"
            " is written."
        )
        return
    if ov.run_dir is None:
        return
    why, text = completion.markdown(ov.run_dir)
    failures = "".join(f"\n> **check failed:** {reason}\n" for reason in ov.outcome.failures)
    try:
        if not why:
            with open(target, "a", encoding="utf-8") as file:
                file.write(f"{text}{failures}\n")
    except OSError as exc:
        why = f"{target}: {exc.strerror}"
    if why:
        ov.warn(f"--github-summary: the report was not written ({why.removeprefix('voirkit: ')}).")
