# SPDX-License-Identifier: Apache-2.0
"""Runs a script as `python script.py arguments` would, in this process."""

from __future__ import annotations

import builtins
import os
import re
import shlex
import sys
import threading
import types
from collections.abc import Sequence
from concurrent.futures.thread import _threads_queues as executor_workers
from pathlib import Path

from floatwise.errors import FloatwiseError, ScriptError
from floatwise.tap.frames import last_users_line, trimmed_text, trimmed_traceback
from floatwise.tap.launcher import expects_launcher
from floatwise.tap.patches import Patches

__all__ = ["explain_failure", "run_script", "shift_seeds"]


def run_script(path: str, arguments: Sequence[str]) -> None:
    """Executes the file as `__main__`, with its folder first on the module path and `sys.argv` its own.

    Waits for the threads that it has started, as Python does before it exits.

    Raises:
      ScriptError: The file cannot be read or is not Python.
    """
    code = _compile(path)
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=os.path.abspath(path), __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = main
    sys.argv = [path, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    before = set(threading.enumerate())
    exec(code, main.__dict__)
    for thread in set(threading.enumerate()) - before:
        # An executor's workers wait for work until the interpreter itself tells them to end.
        if not thread.daemon and thread not in executor_workers:
            thread.join()


def _compile(path: str) -> types.CodeType:
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise ScriptError(f"cannot read {path}: {error.strerror}; give the path of a Python training script") from error
    try:
        return compile(source, os.path.abspath(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        line = f":{error.lineno}" if error.lineno else ""
        raise ScriptError(f"{path}{line}: not valid Python: {error.msg}") from error
    except ValueError as error:
        raise ScriptError(f"{path}: not a Python source file: {error}") from error


def shift_seeds(patches: Patches, owner: object, name: str, offset: int) -> None:
    """Makes `owner.name(seed, …)` add `offset` to a whole number that it gets."""

    def make(original):  # type: ignore[no-untyped-def]
        def seed(value=None, *args, **kwargs):  # type: ignore[no-untyped-def]
            return original(value + offset if isinstance(value, int) else value, *args, **kwargs)

        return seed

    patches.replace(owner, name, make)


#: Terminal colours in a message (ECMA-48, SGR).
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
#: How PyTorch 2.6 to 2.13 says that operands differ in format: by the C++ names of the formats.
_MIXED_FORMATS = re.compile(r"BFloat16|Half|c10::|same dtype|scalar type")


def explain_failure(script: str, error: BaseException) -> tuple[str, str]:
    """Returns what a person is told about the script's failure, and the traceback trimmed to their frames."""
    if isinstance(error, ScriptError):
        return str(error), ""
    where = last_users_line(error.__traceback__) or script
    if isinstance(error, SystemExit):
        how = f"with exit code {error.code}" if isinstance(error.code, int) else f"and said: {error.code}"
        return f"{where}: the script ended itself {how}{_what_next(error)}", ""
    if _is_of(error, "torch.multiprocessing.spawn", "ProcessRaisedException"):
        # Its text is the traceback in the process that was spawned.
        traceback = trimmed_text(str(error).strip())
        last = traceback.splitlines()[-1]
        return f"{where}: a process that the script spawned failed with {last}{_what_next(error)}", traceback
    if isinstance(error, FloatwiseError):
        return f"{where}: {error}", ""
    # Keras colours parts of its messages.
    message = f"{where}: the script failed with {type(error).__name__}: {_COLOURS.sub('', str(error))}"
    return message + _what_next(error), trimmed_traceback(error)


def _is_of(error: BaseException, module: str, name: str) -> bool:
    """Returns whether the error is of a class of a module, which need not be loaded."""
    return module in sys.modules and isinstance(error, getattr(sys.modules[module], name))


def _has_cuda() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_available()


def _mixes_formats(error: BaseException, text: str) -> bool:
    if isinstance(error, RuntimeError) and _MIXED_FORMATS.search(text):
        return True
    # TensorFlow, by its own names of the formats.
    return "keras" in sys.modules and bool(re.search(r"bfloat16|float16|\bhalf\b", text))


def _what_next(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"\ninstall the package that provides {error.name!r} in this environment ({sys.prefix})"
    if expects_launcher(error):
        return "\nit expects torchrun: torchrun --nproc-per-node 2 -m floatwise run SCRIPT"
    text = str(error)
    if "CUDA" in text and not _has_cuda():
        return (
            "\nthis machine has no CUDA device; a script that picks its device (`torch.cuda.is_available()`) runs here"
        )
    if _mixes_formats(error, text):
        return (
            "\na tensor in 16 bits met one in another format. Where the plan stores weights in 16 bits (bf16-master, "
            "fp16-master), a mixed recipe keeps them float32: --recipe bf16-mixed; or keep this module in float32 by "
            "an entry under [[modules]] in a plan file"
        )
    if "RANK" in os.environ:
        return "\nif it runs by itself under torchrun, without -m floatwise run, the plan or its runtime is at fault"
    itself = shlex.join(["python", *sys.argv])
    return f"\nfirst make the script run by itself: {itself}; if it does, the plan or its runtime is at fault"
