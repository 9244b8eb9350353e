"""Lines that ``perf script`` printed: every kind that was met in recordings of training runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voirkit_instruments.stacks.analyse_samples import Sample, lost_samples, parse_sample

RECORDED = {
    # with a period and an event, as voirkit asks for
    "9471/9471    650.598076006:    2004008 cpu-clock:      7fb78a9eb289 [unknown] (/usr/lib/x86_64-linux-gnu/libz.so.1.2.13)":
        Sample(9471, 9471, 650_598076006, "cpu-clock", 2004008, False, None, "libz.so.1.2.13", False),
    # the kernel
    " 9471/9471    650.600078230:    2004008 cpu-clock:  ffffffff81415b8e rcu_core ([kernel.kallsyms])":
        Sample(9471, 9471, 650_600078230, "cpu-clock", 2004008, False, "rcu_core", "[kernel.kallsyms]", True),
    "  12/14  1.000000001:  2004008 cpu-clock:  ffffffffc0001234 nft_do_chain+0x1f2 ([nf_tables])":
        Sample(12, 14, 1_000000001, "cpu-clock", 2004008, False, "nft_do_chain", "[nf_tables]", True),
    "  12/14  1.000000001:  2004008 cpu-clock:  ffffffff81000000 _stext ([kernel.kallsyms]_stext)":
        Sample(12, 14, 1_000000001, "cpu-clock", 2004008, False, "_stext", "[kernel.kallsyms]", True),
    # code of the kernel's in the process's own memory
    "  12/14  1.000000001:  2004008 cpu-clock:      7ffd1a5fa9b1 __vdso_clock_gettime ([vdso])":
        Sample(12, 14, 1_000000001, "cpu-clock", 2004008, False, "__vdso_clock_gettime", "[vdso]", False),
    # not root: the kernel is left out
    " 9393/9393    648.388059284:    2004008 cpu-clock:u:      7f36e6f2cda0 deflate_slow (/usr/lib/libz.so.1)":
        Sample(9393, 9393, 648_388059284, "cpu-clock", 2004008, True, "deflate_slow", "libz.so.1", False),
    # hardware counters
    " 93/93    648.388059284:    413002 cycles:ppp:      7f36e6f2cda0 deflate_slow (/usr/lib/libz.so.1)":
        Sample(93, 93, 648_388059284, "cycles", 413002, False, "deflate_slow", "libz.so.1", False),
    " 93/93    648.388059284:    77 cache-misses:u:      7f36e6f2cda0 deflate_slow (/usr/lib/libz.so.1)":
        Sample(93, 93, 648_388059284, "cache-misses", 77, True, "deflate_slow", "libz.so.1", False),
    " 93/93    648.388059284:    413002 cpu_core/cycles/u:      7f36e6f2cda0 deflate_slow (/usr/lib/libz.so.1)":
        Sample(93, 93, 648_388059284, "cycles", 413002, True, "deflate_slow", "libz.so.1", False),
    # without period and event, as in the note on loaders
    "28837/28837  1807.844020610:  ffffffff815d2ca6 vma_interval_tree_insert ([kernel.kallsyms])":
        Sample(28837, 28837, 1807_844020610, "", 1, False, "vma_interval_tree_insert", "[kernel.kallsyms]", True),
    "28837/28837  1807.844020:  7f5d2ca6 main (/bin/x)":
        Sample(28837, 28837, 1807_844020000, "", 1, False, "main", "x", False),
    # C++: blanks, parentheses, angle brackets, colons
    "7/9  2.5:  2004008 cpu-clock:  7f0001 at::native::(anonymous namespace)::copy_kernel(at::TensorIterator&, bool)+0x4f "
    "(/opt/venv/lib/libtorch_cpu.so)":
        Sample(7, 9, 2_500000000, "cpu-clock", 2004008, False, "at::native::(anonymous namespace)::copy_kernel(at::TensorIterator&, bool)",
               "libtorch_cpu.so", False),
    "7/9  2.5:  2004008 cpu-clock:  7f0001 c10::function_ref<void (char**, long const*, long, long)>::callback_fn<at::native::f(float)::"
    "{lambda(char**, long const*, long, long)#1}> (/opt/venv/lib/libtorch_cpu.so)":
        Sample(7, 9, 2_500000000, "cpu-clock", 2004008, False, "c10::function_ref<void (char**, long const*, long, long)>::"
               "callback_fn<at::native::f(float)::{lambda(char**, long const*, long, long)#1}>", "libtorch_cpu.so", False),
    "7/9  2.5:  2004008 cpu-clock:  7f0001 Functor::operator() (/opt/lib.so)":
        Sample(7, 9, 2_500000000, "cpu-clock", 2004008, False, "Functor::operator()", "lib.so", False),
    # files that are gone, and memory that never was one
    "7/9  2.5:  2004008 cpu-clock:  7f0001 work (/tmp/build/_ext.so (deleted))":
        Sample(7, 9, 2_500000000, "cpu-clock", 2004008, False, "work", "_ext.so", False),
    "7/9  2.5:  2004008 cpu-clock:  7f0001 [unknown] (/memfd:jit (deleted))":
        Sample(7, 9, 2_500000000, "cpu-clock", 2004008, False, None, "[jit]", False),
    "7/9  2.5:  2004008 cpu-clock:  7f0001 [unknown] (//anon)":
        Sample(7, 9, 2_500000000, "cpu-clock", 2004008, False, None, "[jit]", False),
    "7/9  2.5:  2004008 cpu-clock:  7f0001 [unknown] ([unknown])":
        Sample(7, 9, 2_500000000, "cpu-clock", 2004008, False, None, "?", False),
    "7/9  2.5:  2004008 cpu-clock:  7f0001 work (/srv/data (copy)/lib.so)":
        Sample(7, 9, 2_500000000, "cpu-clock", 2004008, False, "work", "lib.so", False),
    # inlined functions, in a recording with call stacks
    "7/9  2.5:  2004008 cpu-clock:  7f0001 clip8 (inlined)":
        Sample(7, 9, 2_500000000, "cpu-clock", 2004008, False, "clip8", "?", False),
    # Python 3.12 and later with their names for perf
    "7/9  2.5:  2004008 cpu-clock:  7f0001 py::train_epoch:/srv/my scripts/main.py (/tmp/perf-7.map)":
        Sample(7, 9, 2_500000000, "cpu-clock", 2004008, False, "py::train_epoch:/srv/my scripts/main.py", "[jit]", False),
    # a name that is an address is none; functions may have names that could be one
    "7/9  2.5:  2004008 cpu-clock:  7f0001 0x00007f0001 (/opt/lib.so)":
        Sample(7, 9, 2_500000000, "cpu-clock", 2004008, False, None, "lib.so", False),
    "7/9  2.5:  2004008 cpu-clock:  7f0001 add (/opt/lib.so)":
        Sample(7, 9, 2_500000000, "cpu-clock", 2004008, False, "add", "lib.so", False),
}  # fmt: skip


@pytest.mark.parametrize("line", RECORDED)
def test_a_recorded_line_is_read(line: str) -> None:
    assert parse_sample(line) == RECORDED[line]
    assert parse_sample(line + "\n") == RECORDED[line]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "\n",
        "# captured on: Sun",
        "9471/9471    650.598076006:    2004008 cpu-cl",
        "no sample at all",
    ],
)
def test_what_is_no_sample_is_none(line: str) -> None:
    assert parse_sample(line) is None


def test_lost_samples_are_counted() -> None:
    assert lost_samples("  python  7/9  2.500000000: PERF_RECORD_LOST lost 12\n") == 12
    assert lost_samples("  7/9  2.500000000: PERF_RECORD_LOST_SAMPLES lost 3\n") == 3
    assert lost_samples("7/9  2.5:  2004008 cpu-clock:  7f0001 lost (/opt/lib.so)") == 0


NAMES = st.from_regex(
    r"[A-Za-z_~][A-Za-z0-9_:<>,&*{}#~]{0,20}(\([A-Za-z0-9_ ,&*:]{0,20}\))?( const)?", fullmatch=True
)
PATHS = st.from_regex(r"(/[A-Za-z0-9_.+-]{1,8}){1,3}( \(deleted\))?", fullmatch=True)


@given(
    st.integers(1, 10**7),
    st.integers(1, 10**7),
    st.integers(0, 10**15),
    st.integers(1, 10**12),
    st.integers(0, 2**64 - 1),
    NAMES,
    PATHS,
)
def test_whatever_is_printed_in_this_form_is_read(
    pid: int, tid: int, at: int, period: int, ip: int, name: str, path: str
) -> None:
    printed = f"{pid:>7}/{tid:<7} {at // 10**9:>6}.{at % 10**9:09d}: {period:>10} cpu-clock: {ip:>16x} {name} ({path})\n"
    library = path.removesuffix(" (deleted)").rpartition("/")[2]
    read = parse_sample(printed)
    assert read is not None
    assert read._replace(function=None) == Sample(
        pid, tid, at, "cpu-clock", period, False, None, library, ip >= 2**63
    )
    assert read.function in (name, None)  # None where it looks like an address


@given(st.text())
def test_no_text_makes_the_parser_fail(text: str) -> None:
    assert parse_sample(text) is None or text.strip()
