"""Descriptions of hangs and of how ranks ended, from the files that the ranks wrote, and the report
section on them.

The functions are pure functions over the documents in these files. A rank that hangs loads this
module too, so it imports only the standard library and light modules of voirkit.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from voirkit.phase_table import phase_of_function
from voirkit.report import duration
from voirkit.runs.directory import read_json
from voirkit.runs.other_processes import is_alive, is_here
from voirkit_instruments.hangs import FOLDER

if TYPE_CHECKING:
    from voirkit.analysis.document import Rank
    from voirkit.analysis.verdict.evidence import Evidence
    from voirkit.report.sections import Block, Section
    from voirkit.runs.opened import Run

Document = Mapping[str, Any]
# tolerance for differences between host clocks and for the time between two checks of a rank
_SLACK_NS = 5_000_000_000
# a process that ends this soon after its hang has only gone on in order to end
_RIGHT_AFTER_NS = 1_000_000_000
_MOST_FRAMES = 40  # most frames of a stack
_MOST_END_LINES = 8  # most lines that say how ranks ended
_BUSY = 0.2
# messages of gloo and NCCL about a rank that is gone
_PEER_IS_GONE = re.compile(
    r"(?is)^(RuntimeError|(torch\.distributed\.)?Dist\w+Error)\b"
    r".*(\bpeer\b|connection|\bremote\b|timed ?out)"
)

_DOES = {
    "futex": "waiting for a lock or another thread",
    "poll": "waiting for input",
    "select": "waiting for input",
    "sleep": "sleeping",
    "wait4": "waiting for a process",
    "read": "reading {}",
    "write": "writing {}",
    "receive": "receiving from {}",
    "send": "sending",
    "fsync": "writing {} to the disk",
    "open": "opening a file",
    "connect": "connecting",
    "accept": "waiting for a connection",
}


def documents(path: str) -> list[dict[str, Any]]:
    """Return the documents that the processes of a run have written, sorted by rank.
    ``seen_time_ns`` is when a process last showed life. ``exit_code`` is the exit code that its
    parent saw; None if the parent is no process of the run."""
    folder = os.path.join(path, FOLDER)
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    exit_codes: dict[tuple[str, str], int] = {}
    processes = []
    for name in names:
        if not name.endswith(".json"):
            continue
        file = os.path.join(folder, name)
        document = read_json(file, 1)
        if document is None:
            continue
        if isinstance(document.get("codes"), dict):
            for pid, code in document["codes"].items():
                exit_codes[document["host"], pid] = code
        if isinstance(document.get("hangs"), list):
            processes.append({**document, "seen_time_ns": _modified_ns(file)})
    for document in processes:
        document["exit_code"] = exit_codes.get((document["host"], str(document["pid"])))
    return sorted(processes, key=lambda document: (document["rank"], document["clocks"]["time_ns"]))


def _modified_ns(file: str) -> int:
    try:
        return os.stat(file).st_mtime_ns
    except OSError:
        return 0


def phases_of(frames: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the phases that a stack is in, innermost first, each once."""
    phases: list[str] = []
    for frame in reversed(frames):
        phase = phase_of_function(str(frame["file"]), str(frame["function"]))
        if phase and phase not in phases:
            phases.append(phase)
    return phases


def _slashed_path(frame: Mapping[str, Any]) -> str:
    return str(frame["file"]).replace("\\", "/")


def own_frame(frames: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the innermost frame of the script's own code, or of the whole stack if the script has
    no frame on it; None for an empty stack."""
    script_frames = [frame for frame in frames if frame["own"]]
    candidates = script_frames or frames
    return candidates[-1] if candidates else None


def place_of(frame: Mapping[str, Any]) -> str:
    """Return the file and line of a frame: ``train.py:88``."""
    return f"{os.path.basename(str(frame['file']))}:{frame['line']}"


def named(frame: Mapping[str, Any]) -> str:
    """Return the function, file and line of a frame: ``evaluate(), train.py:88``."""
    name = str(frame["function"]).replace("<locals>.", "")
    return place_of(frame) if name == "<module>" else f"{name}(), {place_of(frame)}"


def doing(state: Mapping[str, Any]) -> str:
    """Return what a thread or process is doing, as far as the kernel knows: ``reading /data/x``;
    empty if the kernel does not know."""
    if (state.get("busy") or 0.0) > _BUSY:
        return "computing"
    text = _DOES.get(state.get("call") or "", "")
    return text.replace("{}", state.get("file") or "a file")


def shape_of(pending: Mapping[str, Any]) -> str:
    """Return the inputs of a collective in words: ``[10] Float``."""
    sizes = pending.get("sizes") or []
    dtypes = [*(pending.get("dtypes") or []), *[""] * len(sizes)]
    inputs = [f"{size} {dtype}".strip() for size, dtype in zip(sizes, dtypes, strict=False)]
    text = ", ".join(inputs[:3])
    return f"{text} and {len(inputs) - 3} more" if len(inputs) > 3 else text


def describe(state: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the state of a process during a hang, for a sentence and a table.

    Returns ``verb`` and ``what`` for the sentence (``waits`` and ``in all_reduce 41 (backward),
    train.py:30``), ``waits`` (True if the process waits for other ranks), ``phase``, ``where``,
    ``doing`` and ``collective``.
    """
    main = _main_thread(state)
    frames = main["frames"]
    phases = phases_of(frames)
    innermost = phases[0] if phases else None
    frame = own_frame(frames)
    where = named(frame) if frame else ""
    activity = doing(main)
    group = _longest_waiting(state.get("collectives") or [])
    described: dict[str, Any] = {
        "verb": "is",
        "phase": innermost,
        "where": where,
        "doing": activity,
        "collective": None,
        "waits": False,
    }
    if innermost == "wait":
        workers = _joined([_worker(worker) for worker in state.get("workers") or []])
        described["verb"] = "waits"
        described["what"] = (
            "for the data loader" + _prefixed(", ", where) + _prefixed(": ", workers)
        )
    elif _is_in_collective(innermost, group) and activity != "computing":
        words = _collective_words(group, phases, frames)
        described["verb"] = "waits"
        described["waits"] = True
        described["what"] = f"in {words}" + _prefixed(", ", where)
        if group is not None:
            described["collective"] = {
                **group["pending"][0],
                "group": group["group"],
                "ranks": group.get("ranks"),
            }
    else:
        place = f"in {where}" if where else "outside of Python"
        described["what"] = place + _prefixed(", ", activity)
    return described


def _is_in_collective(innermost: str | None, group: Mapping[str, Any] | None) -> bool:
    """True if a thread waits for other ranks. Its innermost phase need not be communication: torch
    also runs collectives within other phases, such as backward."""
    return innermost == "communication" or (innermost is not None and group is not None)


def _collective_words(
    group: Mapping[str, Any] | None,
    phases: Sequence[str],
    frames: Sequence[Mapping[str, Any]],
) -> str:
    """Name the collective that a process waits in: ``all_reduce 41 of tensor_parallel (backward)``.
    It is the first pending collective of the group; without a group, the function on the stack."""
    if group is None:
        words = _collective_function(frames)
    else:
        first = group["pending"][0]
        words = f"{first['name'] or 'a collective'} {first['seq']}"
        if _is_named(group):
            words += f" of {group['name']}"
    for phase in phases:
        if phase != "communication":
            return f"{words} ({phase})"
    return words


def _main_thread(state: Mapping[str, Any]) -> Mapping[str, Any]:
    for thread in state["threads"]:
        if thread["main"]:
            return dict(thread)
    return {"frames": []}


def _prefixed(prefix: str, text: str) -> str:
    return f"{prefix}{text}" if text else ""


def _longest_waiting(groups: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the group whose collective has been pending for the longest time."""
    waiting = [group for group in groups if group["pending"]]
    return min(
        waiting,
        key=lambda group: group["pending"][0].get("created_time_ns") or 0,
        default=None,
    )


def _collective_function(frames: Sequence[Mapping[str, Any]]) -> str:
    """Return the outermost function of ``torch.distributed`` on a stack, skipping wrappers of
    decorators."""
    inner = [
        str(frame["function"]) for frame in frames if "torch/distributed/" in _slashed_path(frame)
    ]
    for function in inner:
        if function not in ("wrapper", "inner"):
            return function
    return inner[-1]


def _is_named(group: Mapping[str, Any]) -> bool:
    return group["name"] not in ("default_pg", "")


def _worker(worker: Mapping[str, Any]) -> str:
    name = f"worker {worker['name']} (pid {worker['pid']})"
    if not worker["alive"]:
        return f"{name} {_exit_text(worker.get('exit_code'))}"
    return f"{name} is {doing(worker) or 'alive'}"


def _exit_text(code: int | None) -> str:
    if code is None:
        return "has died"
    if code >= 0:
        return f"ended with exit code {code}"
    signal_names = {number.value: number.name for number in signal.Signals}
    return f"was killed by {signal_names.get(-code, f'signal {-code}')}"


def _joined(words: Sequence[str], most: int = 4) -> str:
    parts = list(words[:most])
    if len(words) > most:
        parts.append(f"{len(words) - most} more")
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def ended_text(document: Document) -> str:
    """Return how a process ended, in words: ``ended by an exception (ValueError: no)``."""
    ended = document.get("ended")
    if ended is None:
        code = document.get("exit_code")
        if code is None:
            return "ended without a word: a signal ended it, or os._exit()"
        return _exit_text(code)
    if ended["how"] == "exception":
        return f"ended by an exception ({ended['error']})"
    if ended["how"] == "signal":
        return "ended by Ctrl-C"
    return f"ended with exit code {ended['exit_code']}"


_PLURAL = {"waits": "wait", "is": "are", "has": "have"}


def sentence(rows: Sequence[Mapping[str, Any]]) -> str:
    """Join the descriptions of ranks into one sentence.

    The result is like ``ranks 0 and 2 wait in all_reduce 41 (backward), train.py:30; rank 1 is in
    evaluate(), train.py:88, reading /data/x``. Each of ``rows`` has ``rank`` (None if the run has
    only one process), ``verb`` and ``what``. The sentence keeps their order.
    """
    ranks_by_words: dict[tuple[str, str], list[int | None]] = {}
    for row in rows:
        ranks_by_words.setdefault((row["verb"], row["what"]), []).append(row["rank"])
    clauses = []
    for (verb, predicate), ranks in ranks_by_words.items():
        if ranks == [None]:
            subject = "the program"
        elif len(ranks) == 1:
            subject = f"rank {ranks[0]}"
        else:
            subject = f"ranks {_joined([str(rank) for rank in ranks], 8)}"
            verb = _PLURAL.get(verb, verb)
        clauses.append(" ".join(word for word in (subject, verb, predicate) if word))
    return "; ".join(clauses)


_STATE_ORDER = ("hung", "going on", "silent", "died", "ended", "unknown")


def rows_of(
    processes: Sequence[Document], states: Mapping[int, Mapping[str, Any]], until_ns: int
) -> list[dict[str, Any]]:
    """Return a row for each rank in a hang: first ranks that wait for others, last ranks that have
    died, ended or are unknown.

    ``states`` holds what each process wrote about the hang, by its index in ``processes``.
    ``until_ns`` is when the hang was over, or now.
    """
    ranks = {document["rank"] for document in processes}
    world_size = max((document["world_size"] for document in processes), default=1)
    is_alone = len(ranks) < 2 and world_size < 2
    rows: list[dict[str, Any]] = []
    for number, document in enumerate(processes):
        state = states.get(number)
        if state is not None:
            words = {**describe(state), "state": "hung" if state["hangs"] else "going on"}
        elif document["clocks"]["time_ns"] > until_ns or _is_followed(document, processes):
            continue  # the process belongs to a later or an earlier start of the ranks
        else:
            words = _describe_without_state(document, until_ns)
        identity = {
            "rank": None if is_alone else document["rank"],
            "host": document["host"],
            "pid": document["pid"],
        }
        rows.append({**identity, **words, "n": number})
    for rank in range(world_size):
        if rank not in ranks:
            identity = {"rank": rank, "host": None, "pid": None}
            words = {"verb": "has", "what": "written nothing here", "state": "unknown"}
            rows.append({**identity, **words, "n": -1})
    return sorted(rows, key=_row_order)


def _row_order(row: Mapping[str, Any]) -> tuple[bool, int, int]:
    return not row.get("waits"), _STATE_ORDER.index(row["state"]), row["rank"] or 0


def _describe_without_state(document: Document, until_ns: int) -> dict[str, Any]:
    """Describe a process that has written nothing about a hang."""
    ended = document.get("ended")
    if ended is not None and ended["time_ns"] < until_ns:
        ago_s = max(until_ns - ended["time_ns"], 0) / 1e9
        text = f"{ended_text(document)} {duration(ago_s)} before"
        return {"verb": "", "what": text, "state": "ended"}
    if not _is_alive(document):
        text = f"{ended_text(document)}; last heard of at {_clock(document['seen_time_ns'])}"
        return {"verb": "", "what": text, "state": "died"}
    text = "not answered: C code may hold the GIL there"
    return {"verb": "has", "what": text, "state": "silent"}


def _is_followed(document: Document, processes: Sequence[Document]) -> bool:
    """True if the ranks were started again after this process began; torchrun always restarts all
    ranks."""
    restart = document.get("restart", 0)
    return any(other.get("restart", 0) > restart for other in processes)


def _is_alive(document: Document) -> bool:
    if document.get("ended") is not None:
        return False
    if not is_here(document["host"]):
        return True
    clocks = document["clocks"]
    return is_alive(document["pid"], clocks["perf_counter_ns"], clocks["time_ns"])


def differences(
    processes: Sequence[Document], states: Mapping[int, Mapping[str, Any]]
) -> list[str]:
    """Return a sentence for each difference between the collectives that the ranks of a group have
    called."""
    groups: dict[str, dict[int, Mapping[str, Any]]] = {}
    for number, state in states.items():
        rank = processes[number]["rank"]
        for group in state.get("collectives") or []:
            by_rank = groups.setdefault(f"{group['group']} {group.get('ranks', '')}", {})
            by_rank[rank] = group
    return [line for by_rank in groups.values() for line in _differences_in_group(by_rank)]


def _differences_in_group(by_rank: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    calls = {}
    last_of_others = {}  # by rank: the last collective of each rank that has no pending one
    for rank, group in sorted(by_rank.items()):
        if group["pending"]:
            pending = group["pending"][0]
            calls[rank] = pending["seq"], pending["name"], shape_of(pending)
        else:
            last_of_others[rank] = group["last_enqueued"]
    if len(set(calls.values())) > 1:
        clauses = [
            f"rank {rank} calls {name} {seq}{shape and f' of {shape}'}"
            for rank, (seq, name, shape) in calls.items()
        ]
        yield f"The ranks of a group do not call the same collective: {'; '.join(clauses[:6])}."
    if calls and last_of_others:
        seq, name, _ = next(iter(calls.values()))
        if all(last < seq for last in last_of_others.values()):
            ranks = [f"rank {rank} (its last is {last})" for rank, last in last_of_others.items()]
            yield f"{name} {seq} has not been called by {_joined(ranks)}."


# (index of a process, what the process has written about one hang)
_NumberedState = tuple[int, Mapping[str, Any]]


def hangs_of(processes: Sequence[Document]) -> list[dict[str, Any]]:
    """Return the hangs of a run. Everything that processes of the same start of the ranks wrote at
    about the same time belongs to one hang."""
    hangs = []
    for restart in sorted({document.get("restart", 0) for document in processes}):
        started = [document for document in processes if document.get("restart", 0) == restart]
        is_last = not _is_followed(started[0], processes)
        for states in _states_by_hang(started):
            if any(state["hangs"] for _, state in states):
                hangs.append(_hang(started, states, is_last))
    return hangs


def _states_by_hang(processes: Sequence[Document]) -> list[list[_NumberedState]]:
    """Return all states that processes have written, grouped by time: each group is one hang."""
    numbered = [
        (number, state) for number, document in enumerate(processes) for state in document["hangs"]
    ]
    numbered.sort(key=lambda pair: pair[1]["noticed_time_ns"])
    groups: list[list[_NumberedState]] = []
    for number, state in numbered:
        if not groups or not _is_of_same_hang(state, [earlier for _, earlier in groups[-1]]):
            groups.append([])
        groups[-1].append((number, state))
    return groups


def _over_ns(states: Iterable[Mapping[str, Any]]) -> int | None:
    """Return when the last hung process made progress again; None if one never did."""
    over_ns: list[int | None] = [state["over_time_ns"] for state in states if state["hangs"]]
    known_ns = [moment_ns for moment_ns in over_ns if moment_ns is not None]
    return max(known_ns) if known_ns and len(known_ns) == len(over_ns) else None


def _is_of_same_hang(state: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]]) -> bool:
    noticed_ns: int = state["noticed_time_ns"]
    if not any(other["hangs"] for other in earlier):
        last_ns: int = earlier[-1]["noticed_time_ns"]
        return noticed_ns - last_ns < 2 * _SLACK_NS
    over_ns = _over_ns(earlier)
    if over_ns is None:
        return True
    return bool(state["since_time_ns"] < over_ns and noticed_ns < over_ns + _SLACK_NS)


def _hang(
    processes: Sequence[Document], states: Sequence[_NumberedState], is_last: bool
) -> dict[str, Any]:
    hung = [state for _, state in states if state["hangs"]]
    since_ns = _minimum(hung, "since_time_ns")
    noticed_ns = _minimum(hung, "noticed_time_ns")
    over_ns = _over_ns(hung)
    until_ns = over_ns or max(map(_last_seen_ns, hung))
    lasted_s = None if over_ns is None else (over_ns - since_ns) / 1e9
    # one state of each process; if the process hung itself, the state of its own hang
    latest = dict(sorted(states, key=lambda pair: (pair[1]["hangs"], pair[0])))
    rows = rows_of(processes, latest, over_ns or max(time.time_ns(), noticed_ns))
    lasts_to_end = over_ns is None or _ended_right_after(processes, latest, over_ns)
    is_end = lasts_to_end and is_last and not any(map(_is_alive, processes))
    return {
        "since_time_ns": since_ns,
        "noticed_time_ns": noticed_ns,
        "over_time_ns": over_ns,
        "until_time_ns": until_ns,
        "lasted_s": lasted_s,
        "until_end": is_end,
        "until_restart": lasts_to_end and not is_last,
        "limit_s": _minimum(hung, "limit_s"),
        "without_step_s": (noticed_ns - since_ns) / 1e9,
        "sentence": sentence(rows),
        "different": differences(processes, latest),
        "ranks": [_with_evidence(row, latest) for row in rows],
    }


def _minimum(states: Iterable[Mapping[str, Any]], key: str) -> Any:
    return min(state[key] for state in states)


def _last_seen_ns(state: Mapping[str, Any]) -> int:
    seen_ns: int = state.get("seen_time_ns", state["noticed_time_ns"])
    return seen_ns


def _ended_right_after(
    processes: Sequence[Document], states: Mapping[int, Mapping[str, Any]], over_ns: int
) -> bool:
    """True if each hung process made progress only to end: by Ctrl-C, or after a collective timed
    out."""
    for number, state in states.items():
        if not state["hangs"]:
            continue
        end = processes[number].get("ended")
        if end is None or end["how"] == "normal":
            return False
        if end["time_ns"] >= over_ns + _RIGHT_AFTER_NS:
            return False
    return True


def _with_evidence(
    row: Mapping[str, Any], states: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a row of ``rows_of`` with the stacks, workers and collectives of its process, without
    the index ``n``."""
    full = {key: value for key, value in row.items() if key != "n"}
    state = states.get(row["n"])
    if state is not None:
        for key in ("since_time_ns", "threads", "workers", "collectives"):
            full[key] = state[key]
    return full


def ends_of(processes: Sequence[Document]) -> list[dict[str, Any]]:
    """Return how the processes of several ranks ended; empty if none ended abnormally.

    Processes that ended by themselves come first, then those that a signal may have ended, then
    those that ended because another rank was gone. Those that ended normally come last.
    """
    ranks = [document for document in processes if document["world_size"] > 1]
    last = [document for document in ranks if not _is_followed(document, processes)]
    ended = [document for document in last if not _is_alive(document)]
    if all(map(_ended_normally, ended)):
        return []
    return sorted(map(_end_row, ended), key=_end_order)


def _ended_normally(document: Document) -> bool:
    ended = document.get("ended")
    return ended is not None and not ended["exit_code"]


def _end_row(document: Document) -> dict[str, Any]:
    ended = document.get("ended") or {
        "how": "died",
        "exit_code": document.get("exit_code"),
        "error": None,
        "time_ns": document["seen_time_ns"],
    }
    row = {key: document[key] for key in ("rank", "host", "pid")}
    row |= {key: ended[key] for key in ("how", "exit_code", "error", "time_ns")}
    row["what"] = ended_text(document)
    return row


def _end_order(end: Mapping[str, Any]) -> tuple[bool, bool, bool, int]:
    is_normal = end["exit_code"] == 0
    return is_normal, not _is_first(end), end["exit_code"] is not None, end["time_ns"]


def _is_first(end: Mapping[str, Any]) -> bool:
    """True if a rank is known to have ended by itself; False also if an unobserved signal may have
    ended it."""
    if end["how"] not in ("exception", "exit", "died") or end["exit_code"] is None:
        return False
    return not is_consequence(end)


def is_consequence(end: Mapping[str, Any]) -> bool:
    """True if a rank ended because another rank was gone, or by SIGTERM, which launchers send to
    all remaining ranks."""
    if _PEER_IS_GONE.search(end["error"] or ""):
        return True
    return bool(end["exit_code"] == -signal.SIGTERM)


def end_lines(ends: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the ends of ranks as lines, one for each way in which ranks ended, in the given
    order."""
    by_text: dict[str, list[Mapping[str, Any]]] = {}
    for end in ends:
        by_text.setdefault(end["what"], []).append(end)
    return [_end_line(text, alike) for text, alike in by_text.items()]


def _end_line(text: str, ends: Sequence[Mapping[str, Any]]) -> str:
    """Return the line for ranks that ended in the same way; ``text`` describes it for a single
    rank."""
    ranks = [str(end["rank"]) for end in ends]
    if len(ranks) == 1:
        line = f"rank {ranks[0]} {text}"
    else:
        plural = text.replace("was", "were", 1).replace("ended it", "ended them")
        line = f"ranks {_joined(ranks, 8)} {plural}"
    if ends[0]["how"] != "died":
        return line
    steps = {end["steps"] for end in ends if end.get("steps") is not None}
    if len(steps) == 1:
        line += f", after step {max(steps)}"
    times_ns = [end["time_ns"] for end in ends]
    clocks = dict.fromkeys([_clock(min(times_ns)), _clock(max(times_ns))])
    return f"{line}; last heard of at {' to '.join(clocks)}"


def _clock(time_ns: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(time_ns / 1e9))


def capitalized(text: str) -> str:
    """Return a line with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def longest(hangs: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the hang that lasted longest."""
    return max(hangs, key=lasted_s)


def lasted_s(hang: Mapping[str, Any]) -> float:
    """Return how many seconds a hang lasted, or had lasted when it was last seen."""
    return float(hang["until_time_ns"] - hang["since_time_ns"]) / 1e9


def went_on(hang: Mapping[str, Any]) -> bool:
    """True if the run took steps again after a hang."""
    return hang["lasted_s"] is not None and not hang["until_end"] and not hang["until_restart"]


def newest_line(path: str) -> str:
    """Return the last hang of a run as a line for the user; empty if the run has no hang."""
    hangs = hangs_of(documents(path))
    return line_of(hangs[-1]) if hangs else ""


def line_of(hang: Mapping[str, Any]) -> str:
    """Return a hang as one line."""
    if went_on(hang):
        return (
            f"no step ended for {duration(hang['lasted_s'])}, then the run went on:"
            f" {hang['sentence']}."
        )
    if hang["until_restart"]:
        return (
            f"the run hung for {duration(lasted_s(hang))}, until its ranks were started again:"
            f" {hang['sentence']}."
        )
    if hang["until_end"]:
        return f"the run hung to its end: {hang['sentence']}."
    without_s = max((time.time_ns() - hang["since_time_ns"]) / 1e9, hang["without_step_s"])
    return f"the run hangs, no step ended for {duration(without_s)}: {hang['sentence']}."


def live_lines(path: str) -> list[str]:
    """Return the warnings of ``voirkit watch``: of a hang that is not over, otherwise of ranks that
    have died or raised an exception."""
    processes = documents(path)
    hangs = hangs_of(processes)
    if hangs and hangs[-1]["over_time_ns"] is None:
        return [line_of(hangs[-1])]
    return end_lines([end for end in ends_of(processes) if end["how"] in ("died", "exception")])


# Summary and reports


def summarise(
    runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the ``hangs`` part of a summary, with ``hangs`` and ``ends``; None if nothing hung and
    no rank died."""
    processes = [document for run in runs for document in _seen_by_records(run)]
    hangs = hangs_of(processes)
    steps = {rank.rank: len(rank.steps.train) for rank in ranks}
    ends = [{**end, "steps": steps.get(end["rank"])} for end in ends_of(processes)]
    return {"hangs": {"hangs": hangs, "ends": ends}} if hangs or ends else None


def evidence(part: Mapping[str, Any], phases: Sequence[str]) -> Iterator[Evidence]:
    """Yield each hang, from the last progress until it was over or last seen."""
    from voirkit.analysis.verdict.evidence import Evidence

    for hang in part["hangs"]:
        yield Evidence(
            line_of(hang),
            0.0,
            details={key: hang[key] for key in ("since_time_ns", "until_time_ns")},
        )


def _seen_by_records(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the documents of a run, with ``seen_time_ns`` taken from what each process recorded:
    the modification times of copied files are wrong."""
    last_ns: dict[tuple[str, int], int] = {}
    for _, host, pid, _, tally in run.tallies():
        last_ns[host, pid] = max(tally.end_ns, last_ns.get((host, pid), 0))
    for document in documents(run.path):
        recorded_ns = last_ns.get((document["host"], document["pid"]))
        if recorded_ns is not None:
            clocks = document["clocks"]
            seen_ns = [recorded_ns + clocks["time_ns"] - clocks["perf_counter_ns"]]
            seen_ns += map(_last_seen_ns, document["hangs"])
            document["seen_time_ns"] = max(seen_ns)
        yield document


def sections(part: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the section on hangs and ends of ranks.

    Each hang has a line, a row for each rank, and all stacks. The ends of ranks follow, in the
    order of ``ends_of``. The longest hang has only a short line here, because a finding describes
    it.
    """
    from voirkit.report.sections import Section, Text

    hangs = part["hangs"]
    longest_hang = longest(hangs) if hangs else None
    blocks: list[Block] = []
    for hang in hangs:
        is_longest = hang is longest_hang
        if is_longest:
            line = f"{duration(lasted_s(hang))} without a step"
        else:
            line = line_of(hang)
        mood = "warning" if went_on(hang) else "bad"
        blocks.append(Text(capitalized(line), strong=True, mood=mood))
        blocks += _states(hang)
    for number, line in enumerate(end_lines(part["ends"])[:_MOST_END_LINES]):
        is_first = number == 0
        mood = "bad" if is_first else "note"
        blocks.append(Text(f"{capitalized(line)}.", strong=is_first, mood=mood))
    yield Section("hangs", "Hangs and ends of ranks", blocks, least=4)


def _states(hang: Mapping[str, Any]) -> Iterator[Block]:
    """Yield a table with a row for each rank, and the stacks of each rank."""
    from voirkit.report.sections import Column, Details, Table, Text

    heads = (
        Column("rank", left=True),
        Column("state", left=True),
        Column("where", left=True, cut=True),
        Column("doing", left=True, narrowest=72, cut=True),
        Column("last collective enqueued, completed", left=True, narrowest=116),
    )
    rows = []
    for row in hang["ranks"]:
        where = row.get("where") or row["what"]
        rows.append((_rank(row), row["state"], where, row.get("doing") or "", _counts(row)))
    yield Table(heads, rows, most=16)
    for row in hang["ranks"]:
        for thread in row.get("threads") or ():
            title = f"{_rank(row)}: thread {thread['name']}"
            yield Details(title, [Text(_stack(thread["frames"]))])


def _rank(row: Mapping[str, Any]) -> str:
    return f"pid {row['pid']}" if row["rank"] is None else f"rank {row['rank']}"


def _counts(row: Mapping[str, Any]) -> str:
    counts = []
    for group in row.get("collectives") or []:
        name = f"{group['name']} " if _is_named(group) else ""
        counts.append(f"{name}{group['last_enqueued']}, {group['last_completed']}")
    return "; ".join(counts)


def _stack(frames: Sequence[Mapping[str, Any]]) -> str:
    innermost_first = frames[::-1]
    lines = [
        f"{frame['function']} {frame['file']}:{frame['line']}"
        for frame in innermost_first[:_MOST_FRAMES]
    ]
    return " < ".join(lines) or "no frame of Python"
