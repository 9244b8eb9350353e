"""What to observe of main.py. The script knows nothing of this file; voirkit finds it beside the script.

Every function here whose name starts with ``instrument_`` runs along with the script. It is a generator: each ``yield``
waits for the end of a phase of the run. A probe names a variable of a function of the script, and ``.give()`` puts each
value of it into the stream ``ov.given``, where voirkit's instruments (--train-rate, --dash, --verify) look for names that
they know. The script's options need no probe: --options gives what any argparse parser returns.
"""


def instrument_probes(ov):
    """Gives what voirkit's instruments look for, under the names that they know."""
    # Until then the script's functions are not there to be probed. "//main" is the function main of the script itself.
    yield ov.phases.load_script

    # Once in a run: where it computes, what it trains and where its batches come from. "as" renames.
    ov.probe("//main > use_cuda").give()
    ov.probe("//main > model").give()
    ov.probe("//main > train_loader as loader").give()

    # Each time that loss is assigned, so at each step.
    ov.probe("//train_epoch > loss").give()

    # At the end of each turn of the loop "for inp, target in loader", with its batch. --train-rate needs it.
    ov.probe("//train_epoch(inp as batch) > #endloop_inp as step").give()

    # From the beginning (!) to the end (!!) of each turn, so without the wait for a batch. --compute-rate needs it.
    ov.probe(
        "//train_epoch(inp as batch, !#loop_inp as compute_start, !!#endloop_inp as compute_end)"
    ).give()


def instrument_minimum_loss(ov):
    """Prints the smallest loss of the run: an example of a reduction, which gives its value when the stream ends."""
    yield ov.phases.load_script
    import torch

    # "?loss" takes the losses out of the events that have one. The minimum stays on the device and is read once, at the
    # end; .map(lambda loss: loss.item()).min() does the same, but makes the script wait for the GPU at each step.
    minimum = ov.given["?loss"].map(torch.Tensor.detach).reduce(torch.minimum)
    # ov.say writes to stderr. minimum.print("Minimum loss: {}") would write to stdout, which belongs to the script.
    minimum.subscribe(lambda loss: ov.say(f"Minimum loss: {loss.item():.4f}"))
