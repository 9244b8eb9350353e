"""Nothing is skipped unseen: all skips are listed by their reasons at the end, and one that is not expected fails the tests.

Only where ``VOIRKIT_EXPECTED_SKIPS`` names the file of reasons that are expected, as in CI; elsewhere a test may skip for any reason. A line of
that file is a regular expression that a whole reason matches; a comment above it, with no empty line between, says why it is expected. Where
``VOIRKIT_LIST_SKIPS`` names a file, the list is put at its end too: CI runs the tests in several sessions, and shows all lists when it ends.
"""

from __future__ import annotations

import os
import re

import pytest

NOT_EXPECTED = "not expected: "


def read_patterns(text: str) -> list[re.Pattern[str]]:
    """The patterns of a file of expected reasons.

    Raises:
        pytest.UsageError: A pattern has no comment above it, or is not a regular expression.
    """
    patterns = []
    is_explained = False
    for line in text.splitlines():
        if not line:
            is_explained = False
        elif line.startswith("#"):
            is_explained = True
        else:
            if not is_explained:
                raise pytest.UsageError(
                    f"expected skips: no comment says why this is expected: {line}"
                )
            try:
                patterns.append(re.compile(line))
            except re.error as exc:
                raise pytest.UsageError(f"expected skips: {line}: {exc}") from None
    return patterns


class Skips:
    """The skips of a session, of all its workers."""

    def __init__(self, expected: list[re.Pattern[str]], title: str) -> None:
        self.expected = expected
        self.title = title
        self.by_reason: dict[str, set[str]] = {}

    def note(self, reason: str, what: str) -> None:
        self.by_reason.setdefault(" ".join(reason.split()), set()).add(what)

    def is_expected(self, reason: str) -> bool:
        return any(pattern.fullmatch(reason) for pattern in self.expected)

    def lines(self) -> list[str]:
        """One for each reason; for one that is not expected, one for each test too."""
        lines = []
        for reason, skipped in sorted(
            self.by_reason.items(), key=lambda item: (not self.is_expected(item[0]), item)
        ):
            if self.is_expected(reason):
                lines.append(f"{len(skipped)}: {reason}")
            else:
                lines += [
                    f"{NOT_EXPECTED}{len(skipped)}: {reason}",
                    *(f"  {what}" for what in sorted(skipped)),
                ]
        return lines

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note_report(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note_report(report)

    def _note_report(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = (
                report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            )
            self.note(reason.removeprefix("Skipped: "), report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        passed = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if passed and not all(map(self.is_expected, self.by_reason)):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section(self.title)
        for line in self.lines() or ["none"]:
            terminalreporter.line(line, red=line.startswith(NOT_EXPECTED))
        if listed := os.environ.get("VOIRKIT_LIST_SKIPS"):
            with open(listed, "a") as file:
                file.writelines(
                    f"{line}\n"
                    for line in (
                        f"{self.title}:",
                        *(f"  {line}" for line in self.lines() or ["none"]),
                    )
                )


def pytest_configure(config: pytest.Config) -> None:
    named = os.environ.get("VOIRKIT_EXPECTED_SKIPS")
    if not named or hasattr(config, "workerinput"):
        return  # a worker's reports come to the session that has started it
    title = " ".join(
        [
            "skips",
            *(["of -m", repr(config.option.markexpr)] if config.option.markexpr else []),
            *config.args,
        ]
    )
    config.pluginmanager.register(
        Skips(read_patterns((config.rootpath / named).read_text()), title), "skips"
    )
