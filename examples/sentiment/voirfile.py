"""What to observe of main.py, whose loop calls its batch ``tokens``. The voirfile of ../resnet explains more."""


def instrument_probes(ov):
    """Gives what voirkit's instruments look for, under the names that they know."""
    yield ov.phases.load_script

    ov.probe("//main > use_cuda").give()
    ov.probe("//main > model").give()
    ov.probe("//main > train_loader as loader").give()
    ov.probe("//train_epoch > loss").give()
    # "as" gives the names that the rates expect. The loops over test sentences are in other functions and do not count.
    ov.probe("//train_epoch(tokens as batch) > #endloop_tokens as step").give()
    ov.probe(
        "//train_epoch(tokens as batch, !#loop_tokens as compute_start, !!#endloop_tokens as compute_end)"
    ).give()


def instrument_metrics(ov):
    """Gives each entry of the dictionary ``metrics`` under its own name: accuracy, precision, recall and f1."""
    yield ov.phases.load_script
    ov.probe("//main > metrics")["metrics"].give()


def instrument_minimum_loss(ov):
    """Prints the smallest loss of the run once the stream of losses has ended."""
    yield ov.phases.load_script
    minimum = ov.given["?loss"].map(lambda loss: loss.item()).min()
    # ov.say writes to stderr. minimum.print("Minimum loss: {}") would write to stdout, which belongs to the script.
    minimum.subscribe(lambda loss: ov.say(f"Minimum loss: {loss:.4f}"))
