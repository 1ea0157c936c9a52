"""Error reports of every `steelyard` command: one line on standard error, `steelyard: error: MESSAGE`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""The base class of typer's errors for invalid options. It has no public name in every version of typer."""


def print_error(message: object) -> None:
    """Print a message, or that of an exception, as one line."""
    print(f"steelyard: error: {' '.join(str(message).split())}", file=sys.stderr)


def print_usage_error(error: Exception) -> None:
    """Print a `USAGE_ERROR` as one line; the help page for a command without arguments."""
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help page
        print(error, file=sys.stderr)
        return
    message = str(getattr(error, "format_message", error.__str__)())
    context = getattr(error, "ctx", None)
    command = "steelyard" if context is None else context.command_path
    print_error(f"{message.rstrip('.')}; see {command} --help")


@contextmanager
def exit_on(*kinds: type[Exception], code: int = 1) -> Iterator[None]:
    """Print an exception of these kinds as an error, and exit with `code`."""
    try:
        yield
    except kinds as error:
        print_error(error)
        raise typer.Exit(code) from None
