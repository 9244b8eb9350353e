"""What a tracer of system calls cost, in words."""

from voirkit_instruments.syscalls.show import cost_line


def test_a_tracer_that_no_clock_tick_saw_took_less_than_one_and_not_nothing():
    cost = {"tracer_s": 0.0, "call_s": 8e-6, "plain_call_s": 1e-7, "program_s": 4e-3, "events": 500}
    assert "strace took less than 10 ms of a processor" in cost_line("strace", cost)
    assert "strace took 20 ms of a processor" in cost_line("strace", {**cost, "tracer_s": 0.02})
