"""The `penstock` command: finds the subcommand's file, parses its options, runs it, prints errors plainly."""

from __future__ import annotations

import importlib
import sys

import tyro

from penstock.errors import PenstockError

_COMMANDS = {
    "demo": "the embedded sample, the shipped checkpoint, a report in a minute or two",
    "inspect": "what would be gated, and why not; MACs",
    "data": "fetch a data set",
    "train": "train a network; resumes where it stopped",
    "sweep": "one accuracy/cost curve",
    "prune": "the static methods",
    "evaluate": "accuracy, MACs and measured milliseconds, through the engine",
    "bench": "milliseconds against other runtimes",
    "export": "write the network for another runtime",
    "report": "one HTML page of runs",
    "doctor": "CPU features, versions, what is missing",
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if not words or words[0] in ("-h", "--help"):
        print("usage: penstock COMMAND [options]\n")
        for name, purpose in _COMMANDS.items():
            print(f"  {name:9} {purpose}")
        print("\npenstock COMMAND --help tells a command's options")
        return 0
    if words[0] not in _COMMANDS:
        print(
            f"penstock: there is no command {words[0]!r}; there are: {', '.join(_COMMANDS)}", file=sys.stderr
        )
        return 2
    module = importlib.import_module(f"penstock.cli.{words[0]}")
    options = tyro.cli(
        module.Options, args=words[1:], prog=f"penstock {words[0]}", description=module.Options.__doc__
    )
    try:
        return int(module.run(options))
    except PenstockError as error:
        print(f"penstock {words[0]}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
