"""The instruments that come with voirkit, each in a module of its own, written only against voirkit's public API."""
