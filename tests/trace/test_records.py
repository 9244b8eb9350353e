"""What is recorded is what is read."""

from __future__ import annotations

import json
import math

from columns import read
from tracing import Traced

from voirkit.trace import names


def rows(traced: Traced) -> list[tuple[object, ...]]:
    columns = traced.read()
    return [
        (*columns.names[name], start, duration, columns.arguments[args], value)
        for name, start, duration, args, value in zip(
            *(
                columns[key].tolist()
                for key in ("name", "start_ns", "duration_ns", "args", "value")
            ),
            strict=True,
        )
    ]


def test_spans_marks_and_counters_are_read_as_they_were_recorded(traced: Traced) -> None:
    traced.run("""
        recorder.begin(FOLDER, rank=3, host="node-7")
        args = recorder.arguments({"epoch": 1})
        span(name("compute", "forward"), 1000, 1500, args)
        span(name("data", "item", value="count"), 2000, 2001, value=-7)
        recorder.mark(name("data", "start", "mark"), 3000, args, 5)
        recorder.counter(name("loss", "loss", "counter"), 4000, 0.1)
        span(name_id=name("compute", "forward"), start_ns=5000, end_ns=5000, args=0)
        print(recorder.end())
    """)
    import struct

    loss = struct.unpack("<q", struct.pack("<d", 0.1))[0]
    assert rows(traced) == [
        ("span", "compute", "forward", None, 1000, 500, {"epoch": 1}, 0),
        ("span", "data", "item", "count", 2000, 1, {}, -7),
        ("mark", "data", "start", None, 3000, 0, {"epoch": 1}, 5),
        ("counter", "loss", "loss", None, 4000, 0, {}, loss),
        ("span", "compute", "forward", None, 5000, 0, {}, 0),
    ]
    columns = traced.read()
    assert set(columns["rank"].tolist()) == {3}
    assert columns.processes[0].host == "node-7"
    assert columns.processes[0].name == "program.py"


def test_totals_say_how_much_was_recorded_and_what_it_took(traced: Traced) -> None:
    out = traced.run("""
        recorder.begin(FOLDER)
        n = name("a", "b")
        for i in range(50_000):
            span(n, i, i)
        totals = recorder.end()
        print(totals.events, totals.dropped, totals.stopped, 0 < totals.seconds < 5)
        print(recorder.end().events)
    """)
    assert out.split("\n") == ["50000 {} None True", "0", ""]


def test_records_that_were_timed_while_they_were_made_are_counted_once(traced: Traced) -> None:
    told = traced.run(
        """
        recorder.begin("run")
        main = name("t", "main")
        for i in range(1000):
            span(main, i, i + 1)
        recorder.timed(600, 2_000_000)
        recorder.timed(400, 1_000_000)
        print(recorder.end().seconds)
        recorder.begin("again")
        span(main, 1, 2)
        recorder.timed(0, 0)
        print(0 < recorder.end().seconds)
        """
    )
    assert told.split() == ["0.003", "True"]


def test_nothing_is_made_in_the_folder_before_something_is_recorded(traced: Traced) -> None:
    traced.run("""
        recorder.begin(FOLDER)
        n = name("a", "b")
        recorder.arguments({"x": 1})
        assert not os.path.exists(FOLDER)
        span(n, 1, 2)
        assert os.path.exists(FOLDER)
    """)
    assert len(rows(traced)) == 1


def test_nothing_is_recorded_before_begin_and_after_end(traced: Traced) -> None:
    traced.run("""
        n = name("a", "b")
        def some(first):
            span(n, first, first)
            with Span(n): pass
            recorder.mark(n, 1)
            recorder.counter(n, 1, 1.0)
        some(1)
        recorder.begin(FOLDER)
        assert recorder.is_recording()
        span(n, 2, 2)
        recorder.end()
        assert not recorder.is_recording()
        some(3)
    """)
    assert [row[4] for row in rows(traced)] == [2]


def test_a_second_recording_has_files_of_its_own(traced: Traced) -> None:
    traced.run("""
        n = name("a", "b")
        pinned = recorder.arguments({"k": 1})
        for i in range(3):
            recorder.begin(FOLDER)
            span(n, i, i, pinned)
            assert recorder.end().events == 1
    """)
    assert [(row[4], row[6]) for row in rows(traced)] == [(i, {"k": 1}) for i in range(3)]
    assert len([path for path in traced.files if path.suffix == ".names"]) == 3


def test_arguments_of_any_kind_are_kept_or_named_by_their_type(traced: Traced) -> None:
    traced.run("""
        import enum
        class Colour(enum.IntEnum):
            RED = 4
        class Text(str):
            def __str__(self): raise SystemExit(9)
        class Odd:
            def __repr__(self): raise SystemExit(9)
            def __eq__(self, other): raise SystemExit(9)
            @property
            def __class__(self): raise SystemExit(9)
        class Meta(type):
            @property
            def __name__(cls): raise SystemExit(9)
        class Odder(metaclass=Meta): pass
        class Real(float): pass
        loop = []; loop.append(loop)
        recorder.begin(FOLDER)
        n = name("a", "b")
        for some in [
            {"int": 1, "big": 2**80, "least": -2**63, "huge": -7**9999, "bool": True, "none": None, "float": 0.1, "inf": float("inf")},
            {"text": 'a"b\\\\c\\n\\ud800', "colour": Colour.RED, "str": Text("x"), "real": Real(0.5)},
            {"odd": Odd(), "odder": Odder(), "loop": loop, "bytes": b"x", "complex": 1j, 5: 6},
            {"nan": float("nan")}, {},
        ]:
            span(n, 1, 1, recorder.arguments(some))
        for wrong in (None, 5, [1], Odd()):
            assert recorder.arguments(wrong) == 0
        assert recorder.arguments({"k": 1}) != recorder.arguments({"k": True}) != recorder.arguments({"k": 1.0})
    """)
    one, two, three, four, five = [row[6] for row in rows(traced)]
    assert one == {
        "int": 1, "big": 2**80, "least": -(2**63), "huge": -(7**9999), "bool": True, "none": None, "float": 0.1, "inf": math.inf,
    }  # fmt: skip
    assert one["bool"] is True  # type: ignore[index]
    assert two == {"text": 'a"b\\c\n\ud800', "colour": 4, "str": "x", "real": 0.5}
    assert three == {
        "odd": "Odd",
        "odder": "Odder",
        "loop": "list",
        "bytes": "bytes",
        "complex": "complex",
        "int": 6,
    }
    assert math.isnan(four["nan"])  # type: ignore[index]
    assert five == {}


def test_numbers_beyond_64_bits_are_as_large_as_they_can_be(traced: Traced) -> None:
    traced.run("""
        recorder.begin(FOLDER)
        n = name("a", "b")
        span(n, 1, 2, 0, 2**70)
        span(n, 1, 2, 0, -2**70)
        span(0, 1, 2)
        span(-1, 1, 2)
        span(n, 7, 8)
        print(recorder.end().dropped)
    """)
    assert [row[7] for row in rows(traced)] == [2**63 - 1, -(2**63), 0]


def test_names_are_the_same_for_equal_texts_and_told_apart_by_kind_and_value_key(
    traced: Traced,
) -> None:
    traced.run("""
        import enum
        class Category(str, enum.Enum):
            A = "a"
        a = name("a", "b")
        assert a == name("a", "b") == name(Category.A, "b")
        assert len({a, name("a", "b", "mark"), name("a", "b", value="k"), name("b", "a")}) == 4
        assert name(["unhashable"], {}) > 0
    """)


def test_arguments_from_before_the_recording_are_there(traced: Traced) -> None:
    traced.run("""
        pinned = [recorder.arguments({"i": i}) for i in range(100)]
        n = name("a", "b")
        recorder.begin(FOLDER)
        for i in (5, 99, 5):
            span(n, i, i, pinned[i])
        again = recorder.arguments({"i": 7})
        assert again != pinned[7]  # this one costs no look-up each time
        span(n, 7, 7, again)
    """)
    assert [row[6] for row in rows(traced)] == [{"i": i} for i in (5, 99, 5, 7)]


def test_more_arguments_than_are_kept_are_all_right_in_the_file(traced: Traced) -> None:
    traced.run("""
        from voirkit.trace import names
        names.MOST_ARGUMENTS = 50
        recorder.begin(FOLDER)
        n = name("a", "b")
        first = recorder.arguments({"i": -1})
        for i in range(1000):
            span(n, i, i, recorder.arguments({"i": i}))
        span(n, -1, -1, first)
        kept = recorder._names
        assert len(kept._young) + len(kept._old) <= 102
    """)
    assert all(row[6] == {"i": row[4]} for row in rows(traced))
    assert len(rows(traced)) == 1001


def test_names_beyond_the_most_are_dropped_and_counted(traced: Traced) -> None:
    out, err = traced.told("""
        from voirkit.trace import names
        names.MOST_NAMES = 10
        recorder.begin(FOLDER)
        for i in range(20):
            span(name("a", str(i)), i, i)
        print(sum(recorder.end().dropped.values()))
    """)
    assert out == "10\n"
    assert [row[2] for row in rows(traced)] == [str(i) for i in range(10)]
    assert err.count("voirkit:") == 1


def test_only_wanted_names_are_read(traced: Traced) -> None:
    traced.run("""
        recorder.begin(FOLDER)
        for i in range(10):
            span(name("a", "odd" if i % 2 else "even"), i, i)
    """)
    columns = read(str(traced.folder / "run"), names=["odd"])
    assert columns["start_ns"].tolist() == [1, 3, 5, 7, 9]


def test_columns_have_their_types_and_one_length(traced: Traced) -> None:
    traced.run("""
        recorder.begin(FOLDER)
        span(name("a", "b"), 1, 2)
    """)
    columns = traced.read()
    assert {key: (str(values.dtype), len(values)) for key, values in columns.items()} == {
        "start_ns": ("int64", 1), "duration_ns": ("int64", 1), "name": ("uint32", 1), "args": ("uint32", 1), "value": ("int64", 1),
        "process": ("uint32", 1), "pid": ("int64", 1), "tid": ("int64", 1), "rank": ("int32", 1),
    }  # fmt: skip
    assert columns.rows == 1


class Whole(int):
    pass


class Text(str):
    pass


def test_arguments_are_written_as_json_has_them() -> None:
    values = [
        0,
        -1,
        True,
        None,
        1.5,
        float("nan"),
        -0.0,
        10**400,
        1 << 8191,
        -(1 << 8191),
        'a"\\\n\0\ud800é',
        Whole(3),
        Text("q"),
        [1],
        object(),
    ]
    for value in values:
        for key in ("k", '"\ud800', Text("z"), 5):
            plain = {names.text_of(key): names._plain(value), "more": 2}
            assert names._text_of_arguments({key: value, "more": 2}) == json.dumps(
                plain, separators=(",", ":")
            )
