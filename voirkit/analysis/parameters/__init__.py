"""What the parameters of a run did, from the records of ``--parameters``; also of runs that were killed."""

from voirkit.analysis.parameters.of_run import Optimizer, Parameter, parameters_of
from voirkit.analysis.parameters.summary import parameters_summary

__all__ = ["Optimizer", "Parameter", "parameters_of", "parameters_summary"]
