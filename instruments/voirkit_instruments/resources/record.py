"""For installs from before the instrument was declared."""

from voirkit_instruments.resources import INSTRUMENT as instrument_resources  # noqa: F401
