"""Pages that follow from the code: each room of the package, the commands; and which code cites an equation."""

import re
from pathlib import Path
from typing import Any

import griffe
import typer

from docs.tools.docstrings import cited, everything

ROOT = "the root"
FIRST = ("objective", "model", "methods", "priors", "kernels", "marginals", "unsupervised")
"""Modules of the root that a reader looks for; what they stand on comes after them."""

NEEDED = {
    "metavib.FewShotRegressor": "real outputs of a table with groups, in scikit-learn's conventions",
    "metavib.FewShotClassifier": "classes of rows, pictures or embeddings, in scikit-learn's conventions",
    "metavib.Learner": "a trained model in use: adapt, update, merge, forget, predict",
    "metavib.vib": "the bound, a function of any model and tasks",
    "metavib.methods": "MAML, stochastic MAML, GP-VIB and GP+MAML, put together from the parts below",
    "metavib.training.run": "a training with checkpoints, validation, test and record",
    "metavib.serve.Client": "a server of `metavib serve`, from Python",
    "metavib.tune": "a search of hyperparameters",
}
"""The names that most people need."""


def package(source: Path) -> griffe.Module:
    """The package as its source tells it; nothing is imported."""
    found = griffe.load("metavib", search_paths=[str(source)])
    assert isinstance(found, griffe.Module)
    return found


def rooms(package: griffe.Module) -> dict[str, list[griffe.Module]]:
    """The modules of each folder of the package, in order; those of its root are a room of their own."""
    found: dict[str, list[griffe.Module]] = {ROOT: [package, *(package.modules[name] for name in FIRST)]}
    for name, module in sorted(package.modules.items()):
        if name == "__main__" or module.is_alias:
            continue
        if module.is_init_module:
            found[name] = sorted((m for m in everything(module) if m.is_module), key=lambda m: m.path)
        elif name not in FIRST:
            found[ROOT].append(module)
    return found


def overview_page(package: griffe.Module) -> str:
    """Where to look: the names that most people need, and what each room of the package answers."""
    lines = [
        "# Reference",
        "",
        "Of the program: every [command](commands.md), every [field of a config](../config.md), every",
        "[file format](../formats.md), and the [models](models.md) that come with it. Of the library: every public",
        "name, with its formula and the shapes of its tensors; examples are run by the tests.",
        "",
        "## The names that most people need",
        "",
        "| name | what it is |",
        "| --- | --- |",
        *(f"| `{name}` | {what} |" for name, what in NEEDED.items()),
        "",
        "## Where everything is",
        "",
        "| page | what is there |",
        "| --- | --- |",
    ]
    for name, modules in rooms(package).items():
        title = "metavib" if name == ROOT else f"metavib.{name}"
        lines.append(f"| [{title}]({title}.md) | {_summary(modules[0])} |")
    return "\n".join(lines) + "\n"


def room_page(name: str, modules: list[griffe.Module]) -> str:
    """The reference of one room: its modules one after the other, each with its public names."""
    title = "metavib" if name == ROOT else f"metavib.{name}"
    lines = [f"# {title}", ""]
    if len(modules) > 2:
        lines += ["| module | what is there |", "| --- | --- |"]
        short = [module.path.removeprefix(f"{title}.") for module in modules[1:]]  # a phone has little room
        lines += [f"| [`{s}`][{m.path}] | {_summary(m)} |" for s, m in zip(short, modules[1:], strict=True)]
        lines.append("")
    if name == "cli":
        lines += ["What to type is told by the [commands](commands.md); here are the functions behind them.", ""]
    for module in modules:
        options = ["    options:", "      heading_level: 2"]
        if name == "cli":  # the annotations of a command are its options and help texts
            options.append("      show_signature_annotations: false")
        if module.is_init_module:  # its own definitions, not its modules, which come next, nor what it imports
            own = [n for n, m in module.members.items() if not (m.is_alias or m.is_module or n.startswith("_"))]
            options += [f"      members: {own or 'false'}"]
        lines += [f"::: {module.path}", *options, ""]
    return "\n".join(lines)


def computing(package: griffe.Module) -> dict[str, list[str]]:
    """For each equation of the theory the full names of what cites it in its docstring."""
    found: dict[str, list[str]] = {}
    for obj in everything(package):
        for equation in dict.fromkeys(cited(obj.docstring.value)) if obj.docstring else ():
            path = public(obj.path)
            if path not in found.setdefault(equation, []):
                found[equation].append(path)
    return found


def public(path: str) -> str:
    """The nearest public object around one that may be private, which the reference does not show."""
    parts = path.split(".")
    private = [i for i, part in enumerate(parts) if part.startswith("_")]
    return ".".join(parts[: private[0]]) if private else path


def commands_page() -> str:
    """Every command of the program with its arguments and options."""
    from metavib.cli import app

    program = typer.main.get_command(app)
    lines = [
        "# Commands",
        "",
        "What `metavib --help` and `metavib COMMAND --help` print, on one page. With `--json` the result is printed as",
        "JSON for programs, and everything else goes to the standard error stream. Exit status: 0 if all is well, 2",
        "after bad input (with a message that says what was expected), 130 after Ctrl-C.",
        "",
        "| command | what it does |",
        "| --- | --- |",
    ]
    commands: dict[str, Any] = program.commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        lines.append(f"| [`metavib {name}`](#metavib-{name}) | {_first(command.help)} |")
    for name, command in commands.items():
        context = typer.Context(command, info_name=f"metavib {name}")
        usage = command.get_usage(context).removeprefix("Usage: ")
        text, examples = _text(command.help)
        lines += ["", f"## metavib {name}", "", text, "", "```console", f"$ {usage}", "```", ""]
        if examples:
            lines += ["For example:", "", "```console", *(f"$ {example}" for example in examples), "```", ""]
        lines += ["| argument or option | meaning |", "| --- | --- |"]
        for parameter in command.params:
            if not getattr(parameter, "hidden", False):
                what, help_ = parameter.get_help_record(context)
                lines.append(f"| `{what}` | {' '.join((help_ or '').split()).replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def models_page() -> str:
    """The cards of the models that come with the package."""
    from metavib.training import bundled

    lines = [
        "# Models that come with the package",
        "",
        "They need no training. Wherever a command takes a run folder, the name of a model will do",
        "(`metavib adapt characters`), and in Python `metavib.Learner.from_pretrained`. The cards are those that",
        "`metavib models` prints.",
    ]
    for name in bundled.names():
        lines += ["", f"## {name}", ""]
        for title, text in bundled.about(name).items():
            lines += [f"**{title[:1].upper()}{title[1:]}**", f":   {text}", ""]
    return "\n".join(lines) + "\n"


def _summary(module: griffe.Module) -> str:
    """The first sentence of a module's docstring, as the cell of a table."""
    return _first(module.docstring.value if module.docstring else "").replace("|", "\\|")


def _first(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


def _text(text: str | None) -> tuple[str, list[str]]:
    """A help text in paragraphs, and the commands that it gives as examples, in backticks after that word."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in (text or "").split("\n\n")]
    examples = [p for p in paragraphs if re.match("Examples?: ", p)]
    commands = [command for paragraph in examples for command in re.findall("`(.+?)`", paragraph)]
    return "\n\n".join(p for p in paragraphs if p not in examples), commands
