"""The JSON Schema of ``summary.json``: voirkit's own keys, and those of all installed instruments.

No run loads this module.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from voirkit.plugins import installed_instruments

NAME = "summary.schema.json"


def summary_schema() -> dict[str, Any]:
    """The schema, of draft 2020-12.

    Two words are not of the standard, and validators pass over them: ``unit`` of a figure, and ``key``, what the keys of a mapping are.
    """
    schema = _read("voirkit.runs")
    for package in dict.fromkeys(instrument.schema for instrument in installed_instruments() if instrument.schema):
        schema["properties"].update(_read(package)["properties"])
    return schema


def _read(package: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(resources.files(package).joinpath(NAME).read_text(encoding="utf-8"))
    return document
