"""How the files of a recording look: the one place where writers and readers agree.

Every process has, in the folder ``trace`` of the run, files with one stem, ``<host>-r<rank>-<pid>``
(with ``.1``, ``.2`` ... behind it when that is taken: a process id comes again, and survives an
exec):

- ``<stem>.names``: lines of JSON: the header, then what the numbers in records stand for; each is
  there before a record needs it. A rank that the process learns late has a line too, and holds for
  all its records: the file keeps its name. The last line says how long the segments are, unless the
  process was killed: one that is shorter has been cut by whoever copied it.
- ``<stem>-<n>.seg``: records, one such file for each thread that lives at the same time.
- ``<stem>.dropped``: how many records of each name were not written, 64-bit numbers by name id;
  only if there are any.
"""

from __future__ import annotations

SCHEMA = 1
# what recorder.py expects of the C recorder: one that was built before a change is not used
ENGINE = 2

# A segment: a header, then records. Little endian everywhere. What has not been written yet is
# zero.
MAGIC = b"voirseg1"
# magic, schema, bytes of a record, pid, number of the segment, perf_counter_ns
HEADER = "<8sIIqqq24x"
HEADER_BYTES = 64
# start_ns, duration_ns, value (a counter's is a double), id of the arguments, of the name: written
# last, 0 if not there
RECORD = "<qqqII"
RECORD_BYTES = 32
# in place of a name: from here on the records are those of the thread whose native id is in value
THREAD = 0xFFFFFFFF

# Keys of a record's own number that is a double, as a counter's is: a figure, and the loss that
# backward was called on.
FIGURE, LOSS = "figure", "loss"
DOUBLES = (FIGURE, LOSS)

# the kind of records that say which items a batch holds: for comparing runs, and no event of the
# timeline
BATCH_KIND = "batch"

# A segment grows in windows, each reserved on the disk and mapped; 64 KiB divides into pages
# wherever Linux, macOS and Windows run.
GRANULE = 1 << 16
# while one takes the place of another both are mapped: 8 MiB a thread at most
LARGEST_WINDOW = 1 << 22

# Lines of .names, told apart by their first key.
NAME, ARGUMENTS, THREAD_NAME = "n", "a", "t"
GROUP = "g"  # the rank of this process in a group, written once it is known
ENDS = "e"  # the bytes of each segment, by its number


def folder_of(run: str) -> str:
    """Where a run's recording is."""
    return f"{run}/trace"
