"""The `penstock` command: finds the subcommand's file, parses its options, runs it, prints errors plainly."""

from __future__ import annotations

import importlib
import os
import re
import sys
import warnings
from types import ModuleType
from typing import Any

import tyro

from penstock.errors import PenstockError
from penstock_runtime.pipes import run_until_unread

_COMMANDS = {
    "demo": "the embedded sample, the shipped checkpoint, a report in a minute or two",
    "inspect": "what would be gated, and why not; MACs; milliseconds, dense and gated",
    "data": "fetch a data set",
    "train": "train a network; resumes where it stopped",
    "sweep": "one accuracy/cost curve",
    "prune": "FBS's rivals: networks made smaller for good, or skipping otherwise",
    "search": "densities per layer for a budget of milliseconds, MACs or accuracy",
    "quantize": "scales for int8 into a checkpoint; what each layer loses",
    "evaluate": "accuracy, MACs and measured milliseconds, through the engine",
    "compile": "one file that runs without PyTorch",
    "bench": "milliseconds against other runtimes",
    "export": "write the network for another runtime",
    "report": "one HTML page of runs",
    "serve": "compiled networks behind HTTP; density follows the load",
    "batch": "folders of images classified with Ray Data",
    "reproduce": "the paper's tables and figures",
    "doctor": "CPU features, versions, what is missing",
}
_NO_MEMORY = re.compile(r"can't allocate memory|not enough memory|out of memory|bad_alloc", re.IGNORECASE)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    usual, warnings.formatwarning = warnings.formatwarning, _format_warning
    try:
        return run_until_unread(lambda: _run(words))
    finally:
        warnings.formatwarning = usual


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A line without the place in the code, which says nothing to users."""
    return f"penstock: {message}\n"


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print("usage: penstock COMMAND [options]\n")
        for name, purpose in _COMMANDS.items():
            print(f"  {name:9} {purpose}")
        print("\npenstock COMMAND --help tells a command's options")
        return 0
    if words[0] == "--version":
        from penstock import __version__

        print(__version__)
        return 0
    if words[0] not in _COMMANDS:
        print(
            f"penstock: there is no command {words[0]!r}; there are: {', '.join(_COMMANDS)}", file=sys.stderr
        )
        return 2
    try:
        return run_command(words)
    except BrokenPipeError:
        raise
    except PenstockError as error:
        return _fail(words[0], str(error))
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except OSError as error:
        where = f"{error.filename}: " if error.filename else "a file cannot be read or written: "
        return _fail(words[0], f"{where}{error.strerror or error}")
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _NO_MEMORY.search(str(error)):
            raise
        hint = "a smaller --recipe.batch-size, or --recipe.accumulate" if words[0] in _TRAINING else "less"
        return _fail(words[0], f"out of memory; files that were written are whole. Try {hint} at a time")


def run_command(words: list[str]) -> int:
    """Run a command that there is; what it refuses is raised."""
    if words[0] in (*_TRAINING, "reproduce"):
        # A step alternates between OpenMP's threads (torch) and those of our kernels. One that spins while it
        # waits keeps a core from the others: on two cores a step at d = 0.5 took 0.60 of a dense one, 0.54
        # when they sleep (benchmarks/training_step.py). OpenMP looks here once, when torch is imported.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    module = importlib.import_module(f"penstock.cli.{words[0]}")
    options = _parse(module, words)
    return 0 if options is None else int(module.run(options))


_TRAINING = ("train", "sweep", "prune")


def _parse(module: ModuleType, words: list[str]) -> Any:
    """The command's options, or None if help was all that was asked for."""
    from penstock.cli.layers import first_page, print_recipe_help

    program, given = f"penstock {words[0]}", words[1:]
    options: Any = module.Options
    default = module.defaults(given) if hasattr(module, "defaults") else tyro.MISSING_NONPROP
    if "--help-recipe" in given:
        print_recipe_help(options, default, program)
        return None
    description = options.__doc__ or ""
    if {"-h", "--help", "--help-all"} & set(given):
        further = () if "--help-all" in given else getattr(module, "FURTHER", ())
        options, description = first_page(options, further, program)
        given = [*(word for word in given if word != "--help-all"), "--help"]
    return tyro.cli(options, args=given, prog=program, description=description, default=default)


def _fail(command: str, message: str) -> int:
    print(f"penstock {command}: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
