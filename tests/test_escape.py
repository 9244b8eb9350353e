"""Data hidden in terminal output comes out whole, and what is plain is never touched, however the stream is cut."""

from __future__ import annotations

import io
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voirkit.escape import Decoder, SmuggleWriter, decode_escape_sequence, encode_as_escape_sequence

ANSI = [
    b"\x1b[31m",
    b"\x1b[0m",
    b"\x1b[2K\r",
    b"\x1b[1;1H",
    b"\x1b[?25l",
    b"\x1b]0;title\x07",
    b"\x1b7",
    b"\x1b(B",
    b"\x1b[5~",
]
unhurried = settings(deadline=None)  # a busy machine is not a failure

HIDDEN = re.compile(rb"\x1b\[(?:[0-?][0-?])*z")

plain_pieces = st.one_of(
    st.sampled_from(ANSI), st.binary(max_size=20), st.text(max_size=10).map(lambda s: s.encode())
)
wires = st.lists(
    st.one_of(
        st.sampled_from([b"\x1b", b"[", b"z", b"0", b"1?", b"\n", b"\xc3", b"\xa9", *ANSI]),
        st.binary(max_size=3),
    )
)


def cut(wire: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(p % (len(wire) + 1) for p in places), len(wire)]
    return [wire[a:b] for a, b in pairwise(edges)]


def decoded(chunks: list[bytes], decoder: Decoder | None = None) -> tuple[bytes, bytes]:
    decoder = decoder or Decoder()
    pairs = [decoder.feed(chunk) for chunk in chunks]
    return b"".join(p for p, _ in pairs) + decoder.flush(), b"".join(d for _, d in pairs)


def encoded(text: str) -> bytes:
    return encode_as_escape_sequence(text).encode("ascii")


# the format


def test_a_text_is_written_in_the_format_of_voir() -> None:
    assert encode_as_escape_sequence('{"é"}\n') == "\x1b[7;22<3:9227=0:z"


@unhurried
@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    assert decode_escape_sequence(encode_as_escape_sequence(text)) == text


@unhurried
@given(st.text())
def test_a_sequence_holds_nothing_that_a_terminal_could_show(text: str) -> None:
    assert re.fullmatch(r"\x1b\[[0-?]*z", encode_as_escape_sequence(text))


def test_lone_surrogates_survive() -> None:
    assert decode_escape_sequence(encode_as_escape_sequence("a\udc80b")) == "a\udc80b"


@pytest.mark.parametrize(
    "wrong", ["", "abc", "\x1b[31m", "\x1b[123z", "\x1b[61z\n", "x\x1b[61z", "\x1b[6é1z"]
)
def test_what_is_no_such_sequence_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="not an escape sequence"):
        decode_escape_sequence(wrong)


# the writer


def test_a_writer_hides_each_write_in_the_stream_below() -> None:
    below = io.StringIO()
    writer = SmuggleWriter(below)
    below.write("plain")
    assert writer.write("abc") == 3
    writer.write("d\n")
    writer.flush()
    assert below.getvalue() == "plain" + encode_as_escape_sequence(
        "abc"
    ) + encode_as_escape_sequence("d\n")


def test_a_writer_flushes_the_stream_below() -> None:
    raw = io.BytesIO()
    writer = SmuggleWriter(io.TextIOWrapper(raw, encoding="ascii"))
    writer.write("abc")
    writer.flush()
    assert raw.getvalue() == encoded("abc")


def test_json_may_be_printed_to_a_writer() -> None:
    below = io.StringIO()
    print('{"loss": 1.5}', file=SmuggleWriter(below))
    assert decoded([below.getvalue().encode()]) == (b"", b'{"loss": 1.5}\n')


# the decoder


def test_plain_output_passes_through_at_once() -> None:
    assert Decoder().feed(b"no newline") == (b"no newline", b"")


def test_hidden_data_and_plain_output_are_parted() -> None:
    assert Decoder().feed(b"a" + encoded("X") + b"b" + encoded("Y") + b"c") == (b"abc", b"XY")


def test_the_pieces_tell_the_order_of_plain_output_and_data() -> None:
    wire = b"a" + encoded("X") + encoded("Y") + b"b"
    assert Decoder().pieces(wire) == [(False, b"a"), (True, b"X"), (True, b"Y"), (False, b"b")]


@pytest.mark.parametrize("sequence", ANSI)
def test_other_escape_sequences_are_left_alone(sequence: bytes) -> None:
    wire = b"a" + sequence + encoded("X") + sequence + b"b"
    assert decoded([wire]) == (b"a" + sequence + sequence + b"b", b"X")


def test_a_sequence_of_an_odd_number_of_digits_is_somebody_elses() -> None:
    assert decoded([b"\x1b[224z"]) == (b"\x1b[224z", b"")


def test_the_beginning_of_a_sequence_is_held_back_until_it_is_clear() -> None:
    decoder = Decoder()
    assert decoder.feed(b"a\x1b") == (b"a", b"")
    assert decoder.feed(b"[6") == (b"", b"")
    assert decoder.feed(b"1z") == (b"", b"a")


def test_what_turns_out_to_be_a_colour_is_let_go() -> None:
    decoder = Decoder()
    assert decoder.feed(b"\x1b[3") == (b"", b"")
    assert decoder.feed(b"1mred") == (b"\x1b[31mred", b"")


def test_what_is_held_at_the_end_is_plain_output() -> None:
    decoder = Decoder()
    decoder.feed(b"a\x1b[12")
    assert decoder.flush() == b"\x1b[12"
    assert decoder.flush() == b""


def test_a_sequence_that_grows_past_the_limit_is_given_up_as_plain_output() -> None:
    decoder = Decoder(limit=100)
    digits = b"1" * 30
    outputs = [
        decoder.feed(chunk)
        for chunk in [b"x\x1b[", digits, digits, digits, digits, b"z", encoded("X")]
    ]
    assert b"".join(plain for plain, _ in outputs) == b"x\x1b[" + 4 * digits + b"z"
    assert outputs[-1] == (b"", b"X")


def test_a_sequence_of_many_chunks_is_put_together() -> None:
    text = "x" * 1_000_000
    assert decoded(cut(encoded(text), list(range(0, 2_000_000, 65_536)))) == (b"", text.encode())


def test_an_escape_before_a_sequence_does_not_hide_it() -> None:
    assert decoded([b"\x1b", b"\x1b[1", b"\x1b[", encoded("X")]) == (b"\x1b\x1b[1\x1b[", b"X")


def test_characters_of_several_bytes_survive_a_cut_in_their_midst() -> None:
    wire = "é€😀".encode() + encoded("é€😀")
    assert decoded([wire[i : i + 1] for i in range(len(wire))]) == (
        "é€😀".encode(),
        "é€😀".encode(),
    )


@unhurried
@given(st.lists(st.one_of(plain_pieces, st.text(max_size=30))), st.lists(st.integers(0, 2000)))
def test_any_interleaving_comes_apart_however_it_is_cut(
    written: list[bytes | str], places: list[int]
) -> None:
    wire = b"".join(encoded(w) if isinstance(w, str) else w for w in written)
    # Plain pieces that make a hidden write by chance, or swallow the beginning of the next, are not a test of parting.
    marked = b"".join(b"\0" if isinstance(w, str) else w for w in written)
    if HIDDEN.search(marked):
        return
    plain = b"".join(w for w in written if isinstance(w, bytes))
    data = "".join(w for w in written if isinstance(w, str))
    assert decoded(cut(wire, places)) == (plain, data.encode())


@unhurried
@given(wires.map(b"".join), st.lists(st.integers(0, 200)))
def test_the_cuts_make_no_difference_whatever_the_bytes_are(wire: bytes, places: list[int]) -> None:
    assert decoded(cut(wire, places)) == decoded([wire])


@unhurried
@given(wires.map(b"".join), st.lists(st.integers(0, 200)))
def test_no_byte_is_lost_or_moved_whatever_the_bytes_are(wire: bytes, places: list[int]) -> None:
    decoder = Decoder()
    pieces = [piece for chunk in cut(wire, places) for piece in decoder.pieces(chunk)]
    told = b"".join(encoded_bytes(p) if hidden else p for hidden, p in pieces)
    assert told + decoder.flush() == wire


@unhurried
@given(wires.map(b"".join), st.lists(st.integers(0, 200)), st.integers(1, 8))
def test_a_small_limit_loses_no_byte_either(wire: bytes, places: list[int], limit: int) -> None:
    decoder = Decoder(limit=limit)
    pieces = [piece for chunk in cut(wire, places) for piece in decoder.pieces(chunk)]
    assert (
        b"".join(encoded_bytes(p) if hidden else p for hidden, p in pieces) + decoder.flush()
        == wire
    )


@unhurried
@given(wires.map(b"".join))
def test_the_decoder_agrees_with_a_search_for_whole_sequences(wire: bytes) -> None:
    hidden = HIDDEN.findall(wire)
    plain, data = decoded([wire])
    assert plain == HIDDEN.sub(b"", wire)
    assert data == b"".join(
        bytes.fromhex(h[2:-1].decode().translate(str.maketrans(":;<=>?", "abcdef"))) for h in hidden
    )


def encoded_bytes(data: bytes) -> bytes:
    """As the sequence of a text, for bytes that need not be one."""
    return b"\x1b[" + data.hex().translate(str.maketrans("abcdef", ":;<=>?")).encode() + b"z"
