"""Who waits where, and who does not: hangs and ends of ranks, in words, from the files that each rank has left; and how reports show them.

Pure functions over these documents. A rank that hangs loads this module too: it imports nothing but the standard library.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
_SLACK_NS = 5_000_000_000  # between the clocks of hosts, and from one look of a rank to the next
_SHOWN, _ENDS = 40, 8  # frames of a stack, ways in which ranks ended
_BUSY = 0.2
_WANTS = re.compile(r"(?i)\bpeer\b|connection|\bremote\b|timed ?out")  # what gloo and NCCL say of a rank that is gone

# What a thread does, by functions that it is in: (file, function) to the phase, as reports name it. The innermost wins.
_PHASES = (
    (r"torch/utils/data/|torchdata/", r"__next__|_next_data|_get_data|_try_get_data|fetch|__iter__", "wait"),
    (r"torch/distributed/checkpoint/|torch/serialization\.py", r"", "checkpoint"),
    (r"torch/distributed/", r"", "communication"),
    (r"torch/autograd/|torch/_tensor\.py", r"(.*\.)?(backward|_engine_run_backward)", "backward"),
    (r"torch/optim/", r"(.*\.)?(step|wrapper)", "optimizer"),
    (r"torch/nn/modules/module\.py", r"(.*\.)?(_call_impl|_wrapped_call_impl)", "forward"),
)
_DOES = {
    "futex": "waiting for a lock or another thread", "poll": "waiting for input", "select": "waiting for input", "sleep": "sleeping",
    "wait4": "waiting for a process", "read": "reading {}", "write": "writing {}", "receive": "receiving from {}", "send": "sending",
    "fsync": "writing {} to the disk", "open": "opening a file", "connect": "connecting", "accept": "waiting for a connection",
}  # fmt: skip


def documents(path: str) -> list[dict[str, Any]]:
    """What the processes of a run have written, by rank. ``seen_time_ns`` is when each last showed life, ``exit_code`` what its parent
    learnt of its end (None where that was no process of the run)."""
    folder, found = os.path.join(path, FOLDER), []
    codes: dict[tuple[str, str], int] = {}
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    for name in names:
        document = read_json(os.path.join(folder, name), 1) if name.endswith(".json") else None
        if document is not None and isinstance(document.get("codes"), dict):
            codes.update({(document["host"], pid): code for pid, code in document["codes"].items()})
        if document is not None and isinstance(document.get("hangs"), list):
            try:
                seen = os.stat(os.path.join(folder, name)).st_mtime_ns
            except OSError:
                seen = 0
            found.append({**document, "seen_time_ns": seen})
    found = [{**one, "exit_code": codes.get((one["host"], str(one["pid"])))} for one in found]
    return sorted(found, key=lambda one: (one["rank"], one["clocks"]["time_ns"]))


def phases_of(frames: Sequence[Mapping[str, Any]]) -> list[str]:
    """The phases that a stack is in, innermost first, each once."""
    found: list[str] = []
    for frame in reversed(frames):
        path = str(frame["file"]).replace("\\", "/")
        for where, function, phase in _PHASES:
            if re.search(where, path) and re.fullmatch(function or ".*", str(frame["function"]).rpartition(".")[2]):
                if phase not in found:
                    found.append(phase)
                break
    return found


def own_frame(frames: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The innermost frame that is the script's own code."""
    return next((frame for frame in reversed(frames) if frame["own"]), frames[-1] if frames else None)


def place_of(frame: Mapping[str, Any]) -> str:
    """``train.py:88``."""
    return f"{os.path.basename(str(frame['file']))}:{frame['line']}"


def named(frame: Mapping[str, Any]) -> str:
    """``evaluate(), train.py:88``."""
    name = str(frame["function"]).replace("<locals>.", "")
    return place_of(frame) if name == "<module>" else f"{name}(), {place_of(frame)}"


def doing(state: Mapping[str, Any]) -> str:
    """What a thread or process does, by what the system knows of it: ``reading /data/x``; empty where it does not."""
    if (state.get("busy") or 0.0) > _BUSY:
        return "computing"
    text = _DOES.get(state.get("call") or "", "")
    return text.replace("{}", state.get("file") or "a file") if text else ""


def shape_of(pending: Mapping[str, Any]) -> str:
    """``[10] Float``: the inputs of a collective."""
    sizes, dtypes = pending.get("sizes") or [], pending.get("dtypes") or []
    shown = [f"{size} {dtype}".strip() for size, dtype in zip(sizes, [*dtypes, *[""] * len(sizes)], strict=False)]
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")


def describe(state: Mapping[str, Any]) -> dict[str, Any]:
    """What a process did when it or another hung. Returns ``verb`` and ``what`` of a sentence (``waits`` ``in all_reduce 41 (backward),
    train.py:30``), ``waits`` (whether for other ranks), ``phase``, ``where``, ``doing`` and ``collective``."""
    main: Mapping[str, Any] = next((thread for thread in state["threads"] if thread["main"]), {"frames": []})
    phases, frame = phases_of(main["frames"]), own_frame(main["frames"])
    where, does = named(frame) if frame else "", doing(main)
    groups = state.get("collectives") or []
    waiting = [(one["pending"][0].get("created_time_ns") or 0, n) for n, one in enumerate(groups) if one["pending"]]
    phase = next((one for one in phases if one != "communication"), "")
    described: dict[str, Any] = {
        "verb": "is",
        "phase": phases[0] if phases else None,
        "where": where,
        "doing": does,
        "collective": None,
        "waits": False,
    }
    if phases and phases[0] != "wait" and does != "computing" and (waiting or phases[0] == "communication"):
        of = [f"({phase})"] if phase else []
        if waiting:
            group = groups[min(waiting)[1]]
            first = group["pending"][0]
            described["collective"] = {**first, "group": group["group"], "ranks": group.get("ranks")}
            called = " ".join([first["name"] or "a collective", str(first["seq"]), *_group(group), *of])
        else:
            inner = [frame for frame in main["frames"] if "torch/distributed/" in str(frame["file"]).replace("\\", "/")]
            outermost = next((one for one in inner if str(one["function"]) not in ("wrapper", "inner")), inner[-1])
            called = " ".join([str(outermost["function"]), *of])
        return {**described, "verb": "waits", "waits": True, "what": f"in {called}" + (f", {where}" if where else "")}
    if phases and phases[0] == "wait":
        workers = [f"{_worker(one)}" for one in state.get("workers") or []]
        what = "for the data loader" + (f", {where}" if where else "")
        return {**described, "verb": "waits", "what": f"{what}{': ' if workers else ''}{_joined(workers)}"}
    return {**described, "what": ", ".join(filter(None, [f"in {where}" if where else "outside of Python", does]))}


def _group(group: Mapping[str, Any]) -> list[str]:
    return [] if group["name"] in ("default_pg", "") else [f"of {group['name']}"]


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
    known = {one.value: one.name for one in signal.Signals}
    return f"was killed by {known.get(-code, f'signal {-code}')}"


def _joined(words: Sequence[str], most: int = 4) -> str:
    shown = [*words[:most], *([f"{len(words) - most} more"] if len(words) > most else [])]
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)


def ended_text(document: Document) -> str:
    """How a process ended: ``ended by an exception (ValueError: no)``."""
    ended = document.get("ended")
    if ended is None:
        code = document.get("exit_code")
        return "ended without a word: a signal ended it, or os._exit()" if code is None else _exit_text(code)
    if ended["how"] == "exception":
        return f"ended by an exception ({ended['error']})"
    return "ended by Ctrl-C" if ended["how"] == "signal" else f"ended with exit code {ended['exit_code']}"


def sentence(rows: Sequence[Mapping[str, Any]]) -> str:
    """``ranks 0 and 2 wait in all_reduce 41 (backward), train.py:30; rank 1 is in evaluate(), train.py:88, reading /data/x``. ``rows``:
    ``rank`` (None of a process without others), ``verb`` and ``what`` of each, in the order in which they are to be told."""
    told: dict[tuple[str, str], list[int | None]] = {}
    for row in rows:
        told.setdefault((row["verb"], row["what"]), []).append(row["rank"])
    parts = []
    for (verb, what), ranks in told.items():
        if ranks == [None]:
            parts.append(" ".join(filter(None, ["the program", verb, what])))
        elif len(ranks) == 1:
            parts.append(" ".join(filter(None, [f"rank {ranks[0]}", verb, what])))
        else:
            plural = {"waits": "wait", "is": "are", "has": "have"}.get(verb, verb)
            parts.append(" ".join(filter(None, [f"ranks {_joined([str(rank) for rank in ranks], 8)}", plural, what])))
    return "; ".join(parts)


def rows_of(processes: Sequence[Document], states: Mapping[int, Mapping[str, Any]], until_ns: int) -> list[dict[str, Any]]:
    """What each rank did in a hang: those that wait for others first, then the others, then those that are gone. ``states``: what ranks
    have written of the hang, by place in ``processes``; ``until_ns``: when it was over, or now."""
    rows = []
    is_alone = len({one["rank"] for one in processes}) < 2 and max((one["world_size"] for one in processes), default=1) < 2
    for number, document in enumerate(processes):
        base = {"rank": None if is_alone else document["rank"], "host": document["host"], "pid": document["pid"]}
        state, ended = states.get(number), document.get("ended")
        if state is not None:
            rows.append({**base, **describe(state), "state": "hung" if state["hangs"] else "going on", "n": number})
        elif document["clocks"]["time_ns"] > until_ns or _is_followed(document, processes):
            continue  # of another start of the ranks
        elif ended is not None and ended["time_ns"] < until_ns:
            ago = duration(max(until_ns - ended["time_ns"], 0) / 1e9)
            rows.append({**base, "verb": "", "what": f"{ended_text(document)} {ago} before", "state": "ended", "n": number})
        elif not _is_alive(document):
            what = f"{ended_text(document)}; last heard of at {_clock(document['seen_time_ns'])}"
            rows.append({**base, "verb": "", "what": what, "state": "died", "n": number})
        else:
            rows.append({**base, "verb": "has", "what": "not answered: C code may hold the GIL there", "state": "silent", "n": number})
    known = {one["rank"] for one in processes}
    size = max((one["world_size"] for one in processes), default=1)
    rows += [
        {"rank": rank, "host": None, "pid": None, "verb": "has", "what": "written nothing here", "state": "unknown", "n": -1}
        for rank in range(size)
        if rank not in known
    ]
    order = {"hung": 1, "going on": 2, "silent": 3, "died": 4, "ended": 5, "unknown": 6}
    return sorted(rows, key=lambda row: (not row.get("waits"), order[row["state"]], row["rank"] or 0))


def _is_followed(document: Document, processes: Sequence[Document]) -> bool:
    """Whether the ranks were started again after it; torchrun starts all of them."""
    return any(one.get("restart", 0) > document.get("restart", 0) for one in processes)


def _is_alive(document: Document) -> bool:
    clocks = document["clocks"]
    return document.get("ended") is None and (
        not is_here(document["host"]) or is_alive(document["pid"], clocks["perf_counter_ns"], clocks["time_ns"])
    )


def differences(processes: Sequence[Document], states: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Where the ranks of a group did not call the same collective, a sentence each."""
    groups: dict[str, dict[int, Mapping[str, Any]]] = {}
    for number, state in states.items():
        for group in state.get("collectives") or []:
            groups.setdefault(f"{group['group']} {group.get('ranks', '')}", {})[processes[number]["rank"]] = group
    lines = []
    for by_rank in groups.values():
        pending = {rank: group["pending"][0] for rank, group in sorted(by_rank.items()) if group["pending"]}
        calls = {rank: (one["seq"], one["name"], shape_of(one)) for rank, one in pending.items()}
        if len(set(calls.values())) > 1:
            told = [f"rank {rank} calls {name} {seq}{shape and f' of {shape}'}" for rank, (seq, name, shape) in calls.items()]
            lines.append(f"The ranks of a group do not call the same collective: {'; '.join(told[:6])}.")
        behind = [rank for rank, group in sorted(by_rank.items()) if not group["pending"]]
        if pending and behind:
            seq, name, _ = next(iter(calls.values()))
            last = _joined([f"rank {rank} (its last is {by_rank[rank]['last_enqueued']})" for rank in behind])
            if all(by_rank[rank]["last_enqueued"] < seq for rank in behind):
                lines.append(f"{name} {seq} has not been called by {last}.")
    return lines


def hangs_of(processes: Sequence[Document]) -> list[dict[str, Any]]:
    """The hangs of a run, by its processes: what those of one start of the ranks wrote of the same moments is one hang."""
    hangs = []
    for restart in sorted({one.get("restart", 0) for one in processes}):
        started = [one for one in processes if one.get("restart", 0) == restart]
        written = sorted(
            ((state["noticed_time_ns"], number, state) for number, one in enumerate(started) for state in one["hangs"]),
            key=lambda one: one[0],
        )
        groups: list[list[tuple[int, Any]]] = []
        for _, number, state in written:
            if not groups or not _is_of(state, [one for _, one in groups[-1]]):
                groups.append([])
            groups[-1].append((number, state))
        is_last = not _is_followed(started[0], processes)
        hangs += [_hang(started, group, is_last) for group in groups if any(state["hangs"] for _, state in group)]
    return hangs


def _over_ns(states: Iterable[Mapping[str, Any]]) -> int | None:
    """When all that hung went on; None: some never did."""
    over = [state["over_time_ns"] for state in states if state["hangs"]]
    return max(over) if over and None not in over else None


def _is_of(state: Mapping[str, Any], states: Sequence[Mapping[str, Any]]) -> bool:
    over = _over_ns(states)
    if not any(one["hangs"] for one in states):
        return bool(state["noticed_time_ns"] - states[-1]["noticed_time_ns"] < 2 * _SLACK_NS)
    return over is None or bool(state["since_time_ns"] < over and state["noticed_time_ns"] < over + _SLACK_NS)


def _hang(processes: Sequence[Document], states: Sequence[tuple[int, Mapping[str, Any]]], is_last: bool) -> dict[str, Any]:
    hung = [state for _, state in states if state["hangs"]]
    since, over = min(state["since_time_ns"] for state in hung), _over_ns(state for _, state in states)
    noticed = min(state["noticed_time_ns"] for state in hung)
    latest = {
        number: state for _, number, state in sorted(((state["hangs"], number, state) for number, state in states), key=lambda one: one[:2])
    }
    rows = rows_of(processes, latest, over or max(time.time_ns(), noticed))
    return {
        "since_time_ns": since, "noticed_time_ns": noticed, "over_time_ns": over,
        "until_time_ns": over or max(state.get("seen_time_ns", state["noticed_time_ns"]) for state in hung),
        "lasted_s": None if over is None else (over - since) / 1e9, "until_end": over is None and not any(map(_is_alive, processes)),
        "until_restart": over is None and not is_last,
        "limit_s": min(state["limit_s"] for state in hung),
        "without_step_s": (noticed - since) / 1e9, "sentence": sentence(rows), "different": differences(processes, latest),
        "ranks": [{**{k: v for k, v in row.items() if k != "n"}, **_evidence(latest.get(row["n"]))} for row in rows],
    }  # fmt: skip


def _evidence(state: Mapping[str, Any] | None) -> dict[str, Any]:
    if state is None:
        return {}
    return {key: state[key] for key in ("since_time_ns", "threads", "workers", "collectives")}


def ends_of(processes: Sequence[Document]) -> list[dict[str, Any]]:
    """How the processes of several ranks ended, if one did not do so normally or died; empty while all go on. Those that ended by
    themselves come first, then those that a signal may have ended, then those that ended for want of them."""
    last = [one for one in processes if one["world_size"] > 1 and not _is_followed(one, processes)]
    gone = [one for one in last if not _is_alive(one)]
    if not any(one.get("ended") is None or one["ended"]["exit_code"] for one in gone):
        return []
    rows = [
        {
            "rank": one["rank"], "host": one["host"], "pid": one["pid"], "how": (one.get("ended") or {}).get("how", "died"),
            "exit_code": (one.get("ended") or one).get("exit_code"), "error": (one.get("ended") or {}).get("error"),
            "time_ns": one["ended"]["time_ns"] if one.get("ended") else one["seen_time_ns"], "what": ended_text(one),
        }
        for one in gone
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (row["exit_code"] == 0, not _is_first(row), row["exit_code"] is not None, row["time_ns"]))


def _is_first(end: Mapping[str, Any]) -> bool:
    """Whether a rank ended by itself: not by SIGTERM, which launchers send to all that are left, nor for want of another rank. Where a
    signal may have ended it that nobody has seen, this is not known."""
    if end["how"] in ("exception", "exit"):
        return not _WANTS.search(end["error"] or "")
    return end["how"] == "died" and end["exit_code"] not in (None, -signal.SIGTERM)


def end_lines(ends: Sequence[Mapping[str, Any]]) -> list[str]:
    """How ranks ended, a line for each way; in their order."""
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for one in ends:
        lines.setdefault(one["what"], []).append(one)
    told = []
    for what, which in lines.items():
        ranks = [str(one["rank"]) for one in which]
        steps = {one["steps"] for one in which if one.get("steps") is not None}
        after = f", after step {max(steps)}" if len(steps) == 1 and which[0]["how"] == "died" else ""
        if which[0]["how"] == "died":
            times = [one["time_ns"] for one in which]
            after += f"; last heard of at {' to '.join(dict.fromkeys((_clock(min(times)), _clock(max(times)))))}"
        subject = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {_joined(ranks, 8)}"
        told.append(f"{subject} {what.replace('was', 'were', 1).replace('ended it', 'ended them') if len(ranks) > 1 else what}{after}")
    return told


def _clock(time_ns: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(time_ns / 1e9))


def newest_line(path: str) -> str:
    """The last hang of a run, in a line for the user; empty without one."""
    hangs = hangs_of(documents(path))
    return line_of(hangs[-1]) if hangs else ""


def line_of(hang: Mapping[str, Any]) -> str:
    """A hang in a line."""
    if hang["lasted_s"] is not None:
        return f"no step ended for {duration(hang['lasted_s'])}, then the run went on: {hang['sentence']}."
    if hang["until_restart"]:
        lasted = duration((hang["until_time_ns"] - hang["since_time_ns"]) / 1e9)
        return f"the run hung for {lasted}, until its ranks were started again: {hang['sentence']}."
    if hang["until_end"]:
        return f"the run hung to its end: {hang['sentence']}."
    without_s = max((time.time_ns() - hang["since_time_ns"]) / 1e9, hang["without_step_s"])
    return f"the run hangs, no step ended for {duration(without_s)}: {hang['sentence']}."


def live_lines(path: str) -> list[str]:
    """What ``voirkit watch`` warns of: a hang that is not over, and ranks that have died."""
    found = documents(path)
    lines = [line_of(hang) for hang in hangs_of(found)[-1:] if hang["over_time_ns"] is None]
    return lines or end_lines([one for one in ends_of(found) if one["how"] in ("died", "exception")])


# the summary and reports


def summarise(runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """``hangs`` of a summary: ``hangs`` and ``ends``; None where nothing hung and no rank died."""
    found = [document for run in runs for document in _seen_by_records(run)]
    hangs, ends = hangs_of(found), ends_of(found)
    steps = {rank.rank: len(rank.steps.train) for rank in ranks}
    ends = [{**one, "steps": steps.get(one["rank"])} for one in ends]
    return {"hangs": {"hangs": hangs, "ends": ends}} if hangs or ends else None


def evidence(part: Mapping[str, Any], phases: Sequence[str]) -> Iterator[Evidence]:
    """Each hang, from the last progress to when it was over, or was last seen."""
    from voirkit.analysis.verdict.evidence import Evidence

    for hang in part["hangs"]:
        yield Evidence(line_of(hang), 0.0, details={key: hang[key] for key in ("since_time_ns", "until_time_ns")})


def _seen_by_records(run: Run) -> Iterator[dict[str, Any]]:
    """The documents of a run, with ``seen_time_ns`` by what each process has recorded: files that were copied have other times."""
    last_ns: dict[tuple[str, int], int] = {}
    for _, host, pid, _, tally in run.tallies():
        last_ns[host, pid] = max(tally.end_ns, last_ns.get((host, pid), 0))
    for document in documents(run.path):
        clocks, last = document["clocks"], last_ns.get((document["host"], document["pid"]))
        if last is not None:
            hung = [state.get("seen_time_ns", state["noticed_time_ns"]) for state in document["hangs"]]
            document["seen_time_ns"] = max([last + clocks["time_ns"] - clocks["perf_counter_ns"], *hung])
        yield document


def sections(part: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[Section]:
    """Each hang in a sentence, a row for each rank, and all stacks; then how the ranks ended, the first to end first."""
    from voirkit.report.sections import Column, Details, Section, Table, Text

    blocks: list[Block] = []
    for hang in part["hangs"]:
        line = line_of(hang)
        blocks.append(Text(line[0].upper() + line[1:], strong=True, mood="bad" if hang["lasted_s"] is None else "warning"))
        blocks += [Text(different, mood="bad") for different in hang["different"]]
        heads = (
            Column("rank", left=True), Column("state", left=True), Column("where", left=True, cut=True),
            Column("doing", left=True, narrowest=72, cut=True), Column("last collective enqueued, completed", left=True, narrowest=116),
        )  # fmt: skip
        rows = [
            (_rank(row), row["state"], row.get("where") or row["what"], row.get("doing") or "", _counts(row))
            for row in hang["ranks"]
        ]  # fmt: skip
        blocks.append(Table(heads, rows, most=16))
        blocks += [
            Details(f"{_rank(row)}: thread {thread['name']}", [Text(_stack(thread["frames"]))])
            for row in hang["ranks"]
            for thread in row.get("threads") or ()
        ]
    if part["ends"]:
        lines = [f"{line[0].upper()}{line[1:]}." for line in end_lines(part["ends"])]
        blocks += [Text(line, strong=not number, mood="note" if number else "bad") for number, line in enumerate(lines[:_ENDS])]
    yield Section("hangs", "Hangs and ends of ranks", blocks, least=4)


def _rank(row: Mapping[str, Any]) -> str:
    return f"pid {row['pid']}" if row["rank"] is None else f"rank {row['rank']}"


def _counts(row: Mapping[str, Any]) -> str:
    groups = row.get("collectives") or []
    return "; ".join(
        f"{'' if one['name'] in ('default_pg', '') else one['name'] + ' '}{one['last_enqueued']}, {one['last_completed']}" for one in groups
    )


def _stack(frames: Sequence[Mapping[str, Any]]) -> str:
    shown = [f"{frame['function']} {frame['file']}:{frame['line']}" for frame in frames[::-1][:_SHOWN]]
    return " < ".join(shown) or "no frame of Python"
