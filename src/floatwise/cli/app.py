# SPDX-License-Identifier: Apache-2.0
"""The command line as a whole: its subcommands, and how errors reach the person."""

from __future__ import annotations

import io
import signal
import sys
import threading

import typer
import typer.exceptions

from floatwise._version import __version__
from floatwise.cli.diff import diff
from floatwise.cli.explain import explain
from floatwise.cli.export import export
from floatwise.cli.import_config import import_config
from floatwise.cli.info import info
from floatwise.cli.new import new
from floatwise.cli.plan import plan
from floatwise.cli.report import report
from floatwise.cli.run import run as run_command
from floatwise.errors import FloatwiseError, ScriptError

__all__ = ["app", "run"]

app = typer.Typer(
    name="floatwise",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Decides by measurement which precision a training script needs, and trains it with that precision.",
)
app.command(name="plan")(plan)
app.command(name="run")(run_command)
app.command(name="report")(report)
app.command(name="export")(export)
app.command(name="import")(import_config)
app.command(name="diff")(diff)
app.command(name="info")(info)
app.command(name="new")(new)
app.command(name="explain")(explain)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"floatwise {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """Options before the subcommand."""


def run(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows no Chinese, or no multiplication sign
    _end_children_on_signals()
    try:
        code = typer.main.get_command(app).main(args=arguments, prog_name="floatwise", standalone_mode=False)
    except FloatwiseError as error:
        _complain(error)
        return 2
    except OSError as error:
        print(f"floatwise: {error}", file=sys.stderr)  # a full disk, a closed pipe
        return 2
    except typer.exceptions.TyperException as error:
        error.show()  # type: ignore[attr-defined]
        command = getattr(getattr(error, "ctx", None), "info_name", "")
        if type(error).__name__ == "NoSuchOption" and command in ("plan", "run"):
            print("arguments of your own script come after --", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return 130
    return code if isinstance(code, int) else 0


def _end_children_on_signals() -> None:
    def leave(number: int, frame: object) -> None:
        sys.exit(128 + number)

    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):
            if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) == signal.SIG_DFL:
                signal.signal(getattr(signal, name), leave)


def _complain(error: FloatwiseError) -> None:
    if isinstance(error, ScriptError) and error.traceback:
        print(error.traceback.rstrip(), file=sys.stderr)
    print(f"floatwise: {error}", file=sys.stderr)
