# SPDX-License-Identifier: Apache-2.0
"""The questions of `floatwise new`, asked one after the other in the current language."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

from floatwise.errors import BadInputError, FloatwiseError, UnknownNameError
from floatwise.hardware import best_here, get_device
from floatwise.language import Text
from floatwise.scaffold import FRAMEWORKS, Answers
from floatwise.scaffold.answers import SIZES, TASKS, TROUBLES
from floatwise.scaffold.framework import PARALLELS

__all__ = ["ask_for"]

_FRAMEWORK = Text("Which framework?", "使用哪个框架？")
_BACKEND = Text("Which backend?", "使用哪个后端？")
_PARALLEL = Text("One device or several?", "单卡还是多卡？")
_GPUS = Text("How many devices?", "用几张卡？")
_DEVICE = Text("Which device (t4, 'RTX 3090', cpu, here …)?", "什么设备（t4、RTX 3090、cpu、here……）？")
_SIZE = Text("How large is the model?", "模型多大？")
_TASK = Text("What is the task?", "什么任务？")
_TROUBLE = Text("Is there trouble to begin with?", "目前遇到了什么问题？")
_DATA = Text("Your data (empty: a set that a package brings)?", "自己的数据路径（留空则用软件包自带的数据）？")
_ENDED = "the input ended at the question {question!r}; answer it, give its option, or --yes for all defaults"


def ask_for(given: Mapping[str, Any], console: Console) -> dict[str, Any]:
    """Returns the answers that are given, and those of the person to the rest.

    Every answer is checked where it is given; a wrong one is told and asked for again.

    Args:
      given: What options have answered, by field of `Answers`.
      console: Where to ask.

    Raises:
      BadInputError: The input ended, or what is given is wrong.
      UnknownNameError: A name given is unknown.
    """
    answers = dict(given)
    Answers(**answers)  # what is given is refused before anything is asked

    def ask(name: str, question: Text, choices: Mapping[str, Text], default: str) -> None:
        if name not in answers:
            answers[name] = _one_of(name, str(question), choices, default, console)

    ask("framework", _FRAMEWORK, {name: row.title for name, row in FRAMEWORKS.items()}, "pytorch")
    row = FRAMEWORKS[answers["framework"]]
    if row.backends:
        ask("backend", _BACKEND, {name: Text("", "") for name in row.backends}, row.backends[0])
    possible = row.parallels(answers.get("backend", ""))
    ask("parallel", _PARALLEL, {name: PARALLELS[name] for name in possible}, "single")
    if answers["parallel"] != "single" and "gpus" not in answers:
        answers["gpus"] = _until(lambda text: _count(text), str(_GPUS), "2", console)
    if "device" not in answers:
        here = best_here().device
        default = here.id if here is not None else "cpu"
        answers["device"] = _until(lambda text: _fitting_device(answers, text), str(_DEVICE), default, console)
    ask("size", _SIZE, SIZES, Answers(**answers).size)
    ask("task", _TASK, TASKS, "image")
    ask("trouble", _TROUBLE, TROUBLES, "none")
    if "data" not in answers:
        answers["data"] = _until(lambda text: _fitting_data(answers, text), str(_DATA), "", console)
    return answers


def _one_of(name: str, question: str, choices: Mapping[str, Text], default: str, console: Console) -> str:
    def read(text: str) -> str:
        if text not in choices:
            raise UnknownNameError(name, text, choices)
        return text

    width = max(map(len, choices))
    listed = "\n".join(f"  {choice.ljust(width)}  {text}".rstrip() for choice, text in choices.items())
    return str(_until(read, f"{question}\n{listed}\n ", default, console))


def _until(read: Callable[[str], Any], question: str, default: str, console: Console) -> Any:
    while True:
        shown = f"{escape(question)} [cyan]({escape(default)})[/cyan] " if default else f"{escape(question)} "
        try:
            text = console.input(shown).strip() or default
        except EOFError:
            raise BadInputError(_ENDED.format(question=question.partition("\n")[0])) from None
        try:
            return read(text)
        except FloatwiseError as error:
            console.print(f"[red]{escape(str(error))}[/red]", highlight=False)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 2:
        raise BadInputError(f"got {text!r}, expected a whole number of 2 or more")
    return int(text)


def _fitting_device(answers: Mapping[str, Any], text: str) -> str:
    device = get_device(text).id
    Answers(**{**answers, "device": device})
    return device


def _fitting_data(answers: Mapping[str, Any], text: str) -> str:
    Answers(**{**answers, "data": text})
    return text
