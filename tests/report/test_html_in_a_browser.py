"""Pages in a headless Chromium: nothing is asked of anybody, the script runs without complaint, nothing sticks out. Run by ``make test-readers``."""

from __future__ import annotations

import os
import subprocess
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest
from conftest import Place
from hostile import FILE, PAYLOAD, SCRIPT
from live_training import TRAINING
from perfetto_page import FLAGS, chromium

pytestmark = [
    pytest.mark.readers,
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        chromium() is None, reason="no Chromium on this machine (Debian: apt-get install chromium)"
    ),
]

# Put at the end of a page: says what a reader would see of it, as the title of the page.
PROBE = """<script>
const wide = document.documentElement.scrollWidth > innerWidth;
const svg = document.querySelector("#steps svg[data-group=time]"), box = svg.getBoundingClientRect(), before = svg.getAttribute("viewBox");
const at = (type, share) => svg.dispatchEvent(new PointerEvent(type, {clientX: box.left + share * box.width, clientY: box.top + 9, button: 0, pointerId: 1}));
svg.setPointerCapture = () => 0;
at("pointerdown", 0.25); at("pointermove", 0.5); at("pointerup", 0.5);
const zoomed = svg.getAttribute("viewBox").split(" ").map(Number), whole = before.split(" ").map(Number);
const axis = document.querySelector("#steps .ticks[data-group=time]"), units = {"s": 1, "ms": 1e-3};
const apart = [...axis.children].map((one) => {
  const [number, unit] = one.textContent.split(" ");
  return Math.abs(parseFloat(one.style.left) / 100 - (number * units[unit] - zoomed[0]) / zoomed[2]);
});
const ticks = apart.length > 1 && Math.max(...apart) < 1e-3;
svg.dispatchEvent(new MouseEvent("dblclick"));
const hit = svg.querySelector(".hit");
hit.dispatchEvent(new MouseEvent("mousemove", {bubbles: true, clientX: box.left + 9, clientY: box.top + 9}));
const tip = document.getElementById("tip");
document.title = JSON.stringify({
  wide, ticks, zoom: (zoomed[2] / whole[2]).toFixed(3), from: ((zoomed[0] - whole[0]) / whole[2]).toFixed(3), back: svg.getAttribute("viewBox") === before,
  tip: tip.hidden ? null : tip.textContent.split("\\n")[0], fetched: performance.getEntriesByType("resource").length,
});
</script></body>"""


def seen(page: Path, profile: Path, width: int) -> tuple[str, str]:
    """The page's title after its script, and what the browser complained of."""
    browser = chromium()
    assert browser is not None
    probed = profile / "page.html"
    profile.mkdir()
    allowed = f"script-src 'sha256-{b64encode(sha256(PROBE[8:-16].encode()).digest()).decode()}'"
    text = (
        page.read_text(encoding="utf-8").replace("script-src", allowed, 1).replace("</body>", PROBE)
    )
    probed.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [browser, *FLAGS, f"--user-data-dir={profile}/browser", f"--window-size={width},900", "--enable-logging=stderr", "--dump-dom", f"file://{probed}"],
        capture_output=True, text=True, timeout=90, check=True, env={**os.environ, "HOME": str(profile)},
    )  # fmt: skip
    title = done.stdout.partition("<title>")[2].partition("</title>")[0]
    return title, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@pytest.mark.parametrize("width", [1280, 500])
def test_a_page_fits_zooms_and_fetches_nothing(place: Place, tmp_path: Path, width: int) -> None:
    place.write(main=TRAINING + "Training(length=100).epoch()\n")
    place.voirkit("--html", "main.py", "--an-argument-that-is-long", "x" * 300)
    title, complaints = seen(place.folder / "run" / "report.html", tmp_path / "browser", width)
    assert complaints == ""
    assert (
        title
        == '{"wide":false,"ticks":true,"zoom":"0.250","from":"0.250","back":true,"tip":"step 0 10 ms","fetched":0}'
    )


def test_names_that_are_scripts_run_none_and_one_that_got_in_would_not(
    place: Place, tmp_path: Path
) -> None:
    (place.folder / FILE).write_text(SCRIPT)
    place.voirkit("--loader", "--checks", "--flame", "--html", FILE, f"arg{PAYLOAD}")
    page = place.folder / "run" / "report.html"
    title, complaints = seen(page, tmp_path / "as it is", 1280)
    assert complaints == ""
    assert title.startswith("{")
    text = page.read_text(encoding="utf-8")
    page.write_text(
        text.replace(
            "</body>",
            "<script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\"></body>",
        )
    )
    title, complaints = seen(page, tmp_path / "with a script", 1280)
    assert title.startswith("{")
    assert "Content Security Policy" in complaints
