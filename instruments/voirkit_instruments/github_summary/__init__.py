"""``--github-summary``: the report as Markdown in the summary of a GitHub Actions job."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option

INSTRUMENT = Instrument(
    "github_summary",
    group="CI",
    options=(Option("--github-summary", "append the report as Markdown to the job's summary, the file that $GITHUB_STEP_SUMMARY names"),),
    record="voirkit_instruments.github_summary.record:record",
)
