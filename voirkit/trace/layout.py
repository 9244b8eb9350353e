"""The file format of a recording, shared by the code that writes it and the code that reads it.

The files of a process are in the folder ``trace`` of the run. Their names begin with a common stem,
``<host>-r<rank>-<pid>``. If the stem is taken, ``.1``, ``.2`` ... is appended: a process id may be
reused, and stays the same after an exec.

- ``<stem>.names``: lines of JSON. The first line is the header. Other lines tell which names,
  arguments and threads the ids in records stand for; each is written before the first record that
  uses it. If the process learns its rank late, a line has the rank, which applies to all its
  records; the file keeps its name. The last line gives the sizes of the segments, unless the
  process was killed. A segment that is shorter than that was truncated afterwards, as by a copy.
- ``<stem>-<n>.seg``, a segment: records. There are as many as threads that recorded at the same
  time.
- ``<stem>.dropped``: the number of records of each name that could not be written, as 64-bit
  integers indexed by name id. It exists only if records were dropped.
"""

from __future__ import annotations

SCHEMA = 1
# Version of the interface between recorder.py and the C recorder. A C recorder that was built for
# another version is not used.
ENGINE = 2

# A segment is a header followed by records. All numbers are little endian. Bytes that have not been
# written yet are zero.
MAGIC = b"voirseg1"
# fields: magic, schema, size of a record in bytes, pid, number of the segment, perf_counter_ns
HEADER = "<8sIIqqq24x"
HEADER_BYTES = 64
# fields: start_ns, duration_ns, value (a double for counters), id of the arguments, id of the name.
# The id of the name is written last: while it is 0, there is no record.
RECORD = "<qqqII"
RECORD_BYTES = 32
# Name id of a record that only names a thread: the records that follow it in the segment belong to
# the thread whose native id is in its value.
THREAD = 0xFFFFFFFF

# Keys of values that are stored as doubles, as the values of counters are: ``figure``, a number
# that ``--parameters`` measures, and ``loss``, the loss on which ``backward`` was called.
FIGURE, LOSS = "figure", "loss"
DOUBLES = (FIGURE, LOSS)

# Kind of the records that tell which samples are in a batch. They serve to compare runs, and are
# not events of the timeline.
BATCH_KIND = "batch"

# A segment grows by windows: parts of the file that are reserved on disk and mapped. Their sizes
# are multiples of 64 KiB, which is a multiple of the page size on Linux, macOS and Windows.
GRANULE = 1 << 16
# When a new window replaces an old one, both are mapped for a moment: at most 8 MiB per thread.
LARGEST_WINDOW = 1 << 22

# The first key of each kind of line in ``.names``.
NAME, ARGUMENTS, THREAD_NAME = "n", "a", "t"
GROUP = "g"  # rank and world size, if the process learns them after its first record
ENDS = "e"  # size of each segment in bytes, by its number


def folder_of(run: str) -> str:
    """Return the folder that holds the trace of a run directory."""
    return f"{run}/trace"
