"""The command line and configuration files."""

from voirkit.options.parser import ExtendedArgumentParser

__all__ = ["ExtendedArgumentParser"]
