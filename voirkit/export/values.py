"""What the formats may hold of a value: valid text, integers of 64 bits."""

from __future__ import annotations

# The argument that connects spans, also of several threads and processes: arrows lead from one to the next of the same value.
FLOW = "flow"

INT64 = range(-(2**63), 2**63)


def unicode_text(text: str) -> str:
    """The text, with what UTF-8 can not hold (half a surrogate pair: a file name of odd bytes, say) as escape sequences."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text
