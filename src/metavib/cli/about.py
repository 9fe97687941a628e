"""Commands that explain: the config of an experiment or a run, a field of it, the datasets."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metavib.cli.options import Given, Improved, Json, KernelName, Method, Set, Shots, described
from metavib.training.config import EXPERIMENTS, HIERARCHICAL, METHODS

if TYPE_CHECKING:
    from metavib.training.config import Config


def config(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="WHAT",
            help=f"An experiment ({', '.join(EXPERIMENTS)}), a run folder, or a field such as `train.lr`.",
            autocompletion=lambda incomplete: [name for name in EXPERIMENTS if name.startswith(incomplete)],
        ),
    ] = None,
    method: Method = None,
    improved: Improved = False,
    shots: Shots = None,
    kernel: KernelName = None,
    assign: Set = [],  # noqa: B006 - typer copies it
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the page that explains every field, docs/config.md.")
    ] = False,
    json_: Json = False,
) -> None:
    """Print the config of an experiment or of a run, or explain one of its fields.

    A config decides everything a run depends on: which tasks, which model, how it is trained and how it is tested. It
    comes from a recipe, one for each experiment and method, and `--set FIELD=VALUE` changes any field of it. What is
    printed can be edited and handed back: `metavib config glyphs > mine.toml`, `metavib train --config mine.toml`.

    Examples: `metavib config glyphs --method maml`, `metavib config runs/glyphs-gp-vib-0`, `metavib config train.lr`
    """
    from metavib.show.console import print_markdown
    from metavib.training import reference
    from metavib.training.fields import to_dict, to_toml

    if markdown:
        typer.echo(reference.page(), nl=False)
    elif what is None:
        raise ValueError(
            "say what to print: an experiment, a run folder or a field; `metavib config --help` has examples. "
            f"Experiments: {', '.join(EXPERIMENTS)}. Methods: {', '.join((*METHODS, HIERARCHICAL))}."
        )
    elif what in EXPERIMENTS or (Path(what) / "config.json").exists():
        given = Given(assign, {"--shots": ("tasks.shots", shots), "--kernel": ("model.kernel", kernel)})
        found = _config(what, method, given, improved=improved)
        typer.echo(json.dumps(to_dict(found), indent=2) if json_ else to_toml(found))
    else:
        print_markdown(reference.explain(what))


def data(
    root: Annotated[Path | None, typer.Option(help="Folder to look in. Default: `$METAVIB_DATA`, else `data`.")] = None,
    json_: Json = False,
) -> None:
    """List the datasets: what each is, where to get it, and what was found.

    Example: `metavib data --root ~/datasets`
    """
    from metavib.data import catalog
    from metavib.show import tables
    from metavib.show.console import print_markdown

    entries = catalog(root)
    if json_:
        typer.echo(
            json.dumps([{**e._asdict(), "found": [str(f) for f in e.found]} for e in entries], indent=2, default=str)
        )
        return
    rows = [["glyphs", "built in", "characters from matplotlib's fonts; nothing to download"]]
    rows += [[e.name, f"ready ({e.form})" if e.ready else "missing", e.what] for e in entries]
    print_markdown(tables.markdown(("dataset", "status", "what"), rows))
    for e in entries:
        if not e.ready:
            print_markdown(f"\n**{e.name}**: {e.remedy}")


def models(
    name: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="A model, for its whole card. Default: a list of all.")
    ] = None,
    json_: Json = False,
) -> None:
    """List the models that come with the package, or print the card of one.

    They need no training: wherever a command takes a run folder, the name of a model will do.

    Examples: `metavib models`, `metavib models characters`, `metavib adapt characters --support DIR`
    """
    from metavib.show import tables
    from metavib.show.console import print_markdown
    from metavib.training import bundled

    cards = {known: bundled.about(known) for known in bundled.names()}
    if name is not None:
        card = bundled.about(name)
        typer.echo(json.dumps(card, indent=2)) if json_ else print_markdown(tables.markdown((name, ""), card.items()))
    elif json_:
        typer.echo(json.dumps(cards, indent=2))
    else:
        print_markdown(tables.markdown(("model", "what"), [(known, card["what"]) for known, card in cards.items()]))


def _config(what: str, method: str | None, given: Given, *, improved: bool) -> "Config":
    """The config of an experiment's recipe, or of a run folder, changed by what was given."""
    if what in EXPERIMENTS:
        return described(what, method, given, config=None, improved=improved)
    from metavib.training.config import read
    from metavib.training.fields import override

    return override(read(Path(what) / "config.json"), given.values | ({} if method is None else {"method": method}))
