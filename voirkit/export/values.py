"""What the formats may hold of a value: valid text, integers of 64 bits, strict JSON.

JSON of events is made by SQL: DuckDB writes the text of a million of them in half a second, python in three. Every text in it passes
through ``to_json``, so that every line is strict JSON.
"""

from __future__ import annotations

import hashlib
import json

# The argument that connects spans, also of several threads and processes: arrows lead from one to the next of the same value.
FLOW = "flow"

INT64 = range(-(2**63), 2**63)

_KEY = "to_json(value_key)::VARCHAR"
# nan becomes null where it is recorded
_NUMBER = "CASE WHEN number IS NULL THEN 'null' WHEN isfinite(number) THEN number::VARCHAR ELSE to_json(number::VARCHAR)::VARCHAR END"
_OWN = f"concat({_KEY}, ':', CASE WHEN value IS NULL THEN {_NUMBER} ELSE value::VARCHAR END)"
_MERGED = f"json_merge_patch(args, concat('{{', {_OWN}, '}}'))::VARCHAR"

# The arguments of an event of the table `events`, its own number among them, as the inside of an object: no braces; null if there are none.
# An argument that has the same name is replaced, since a key that stands twice means different things to different readers.
ARGUMENTS = f"""CASE
    WHEN value_key IS NULL THEN args[2:-2]
    WHEN args IS NULL THEN {_OWN}
    WHEN contains(args, concat({_KEY}, ':')) THEN ({_MERGED})[2:-2]
    ELSE concat(args[2:-2], ',', {_OWN})
END"""


def unicode_text(text: str) -> str:
    """The text, with what UTF-8 cannot hold (half a surrogate pair: a file name of odd bytes, say) as escape sequences."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def dumps(value: object) -> str:
    """Strict JSON without spaces.

    Raises:
        ValueError: It holds nan or inf.
    """
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def digest(text: str) -> str:
    """16 hexadecimal digits that stand for a text, as DFTracer has them for hosts and commands."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()
