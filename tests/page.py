"""An HTML page, read: whether it is whole, what it says, and what it would ask of others."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "br", "hr", "img", "input", "link"}
ASKING = {"src", "href", "xlink:href", "action", "poster", "data", "srcset", "background"}


class Page(HTMLParser):
    """A page that has been read.

    Attributes:
        faults: Tags that do not match, ids that are there twice.
        text: What is to be read, by the id of the section that it stands in; "" outside of any.
        tags: All tags with their attributes.
        asked: What a browser would fetch.
    """

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.faults: list[str] = []
        self.text: dict[str, str] = {}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.asked: list[str] = []
        self._open: list[str] = []
        self._sections: list[str] = []
        self._ids: set[str] = set()
        self.feed(page)
        self.close()
        self.faults += [f"<{tag}> is not closed" for tag in self._open]

    @classmethod
    def of(cls, path: Path) -> Page:
        return cls(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._take(tag, attributes)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._take(tag, attributes)

    def _take(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.tags.append((tag, found))
        self.faults += [
            f"{name} is there twice in <{tag}>"
            for name in found
            if [one for one, _ in attributes].count(name) > 1
        ]
        if found.get("id"):
            id = str(found["id"])
            self.faults += [f"the id {id} is there twice"] * (id in self._ids)
            self._ids.add(id)
        if tag == "section":
            self._sections.append(found.get("id") or "")
        self.asked += [
            value
            for name, value in attributes
            if name in ASKING and value and not value.startswith("#")
        ]
        self.faults += [f"{name} runs a script" for name in found if name.startswith("on")]

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1] != tag:
            self.faults.append(f"</{tag}> closes {self._open[-1:] or 'nothing'}")
        elif tag == "section":
            self._sections.pop()
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in ("style", "script"):
            self.asked += [
                word
                for word in (
                    "url(",
                    "@import",
                    "fetch(",
                    "XMLHttpRequest",
                    "http:",
                    "https:",
                    "import(",
                )
                if word in data
            ]
        else:
            id = self._sections[-1] if self._sections else ""
            self.text[id] = self.text.get(id, "") + data
