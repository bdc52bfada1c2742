"""The version of both distributions; their pyproject.toml files read it from here."""

__version__ = "0.1.0"
