"""What to observe of main.py. voirkit finds this file because it lies beside the script; the script knows nothing of it.

Every function here whose name starts with ``instrument_`` runs along with the script. It is a generator: each ``yield`` waits for
the end of a phase of the run. A probe says which variable of which function to watch, and ``.give()`` puts its values into the
stream ``ov.given``, from which voirkit's own instruments (--dash, --train-rate, --verify, ...) take what they need by name.
"""


def instrument_probes(ov):
    """Gives what voirkit's instruments look for, under the names that they know."""
    # The functions must be there before they can be probed. "//" stands for the script itself: //main is its function main.
    yield ov.phases.load_script

    # Once in a run: where it computes, what it trains, where its batches come from. "as" gives a variable the expected name.
    ov.probe("//main > use_cuda").give()
    ov.probe("//main > model").give()
    ov.probe("//main > train_loader as loader").give()

    # At every assignment of loss, so at every step.
    ov.probe("//train_epoch > loss").give()

    # At the end of each turn of the loop "for inp, ... in ...", together with the batch of that turn: enough for --train-rate.
    ov.probe("//train_epoch(inp as batch) > #endloop_inp as step").give()

    # From the beginning (!) to the end (!!) of each turn, which leaves out the wait for the next batch: for --compute-rate.
    ov.probe("//train_epoch(inp as batch, !#loop_inp as compute_start, !!#endloop_inp as compute_end)").give()


def instrument_minimum_loss(ov):
    """Prints the smallest loss of the run: an example of a reduction, which says its word when the stream ends."""
    yield ov.phases.load_script
    import sys

    import torch

    # "?loss" takes the events that have a loss. The minimum is kept on the device and read once at the end; float() on each
    # loss would be shorter, but would make the script wait for the GPU at every step.
    minimum = ov.given["?loss"].map(torch.Tensor.detach).reduce(torch.minimum).map(float)
    # On stderr: what the script prints on stdout stays its own.
    minimum.subscribe(lambda loss: print(f"Minimum loss: {loss:.4f}", file=sys.stderr))
