"""What to observe of main.py: the shortest voirfile that gives losses and rates. The one of ../resnet explains more."""


def instrument_probes(ov):
    """Gives what voirkit's instruments look for, under the names that they know."""
    yield ov.phases.load_script

    ov.probe("//main > use_cuda").give()
    ov.probe("//main > model").give()
    ov.probe("//main > train_loader as loader").give()
    ov.probe("//train_epoch > loss").give()
    ov.probe("//train_epoch(inp as batch) > #endloop_inp as step").give()
    ov.probe(
        "//train_epoch(inp as batch, !#loop_inp as compute_start, !!#endloop_inp as compute_end)"
    ).give()


def instrument_minimum_loss(ov):
    """Prints the smallest loss of the run once the stream of losses has ended."""
    yield ov.phases.load_script
    minimum = ov.given["?loss"].map(lambda loss: loss.item()).min()
    # ov.say writes to stderr. minimum.print("Minimum loss: {}") would write to stdout, which belongs to the script.
    minimum.subscribe(lambda loss: ov.say(f"Minimum loss: {loss:.4f}"))
