"""`postprior promote`, `rollback`, `alias`, `merge`, `forget`, `sweep`: what serves, what learns next."""

from typing import TYPE_CHECKING, Annotated

import typer

from postprior.cli import options, screen
from postprior.cli.history import plain_entry

if TYPE_CHECKING:
    from postprior.store.journal import Entry


def promote(
    store: options.StoreAt,
    ref: Annotated[str, typer.Argument(metavar="REF", help="The belief; otherwise the newest.")] = "candidate",
    json_: options.Json = False,
) -> None:
    """Make a belief the champion, whatever a gate said. Head moves there too, unless it is ahead or aside.

    \b
    [bold]Examples[/bold]
    postprior promote digits
    postprior promote digits berlin
    """
    from postprior.pipeline.store import Store

    _tell(Store.open(store).promote(ref), json_)


def rollback(
    store: options.StoreAt,
    to: Annotated[str | None, typer.Option(metavar="REF", help="An ancestor of head; otherwise its parent.")] = None,
    json_: options.Json = False,
) -> None:
    """Take head back to a belief before it, and the champion too if it lies ahead. Nothing is removed.

    The parts left behind may be absorbed anew.

    \b
    [bold]Examples[/bold]
    postprior rollback digits
    postprior rollback digits --to head~3
    """
    from postprior.pipeline.store import Store

    _tell(Store.open(store).rollback(to), json_)


def alias(
    store: options.StoreAt,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of your own.")],
    ref: Annotated[str | None, typer.Argument(metavar="REF", help="What it is to point at.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the name away.")] = False,
    json_: options.Json = False,
) -> None:
    """Give a belief a name of your own, or move one, or take it away.

    \b
    [bold]Examples[/bold]
    postprior alias digits release-7 champion
    postprior alias digits release-7 --remove
    """
    from postprior.pipeline.store import Store

    if (ref is None) != remove:
        raise typer.BadParameter("give either the belief that the name is to point at, or --remove.")
    _tell(Store.open(store).alias(name, ref), json_)


def merge(
    store: options.StoreAt,
    refs: Annotated[list[str], typer.Argument(metavar="REFS...", help="Two beliefs or more.")],
    base: Annotated[str, typer.Option(metavar="REF", help="The belief that all of them grew from.")],
    into: Annotated[str, typer.Option(metavar="ALIAS", help="What is to point at the outcome.")] = "head",
    drop_negative: Annotated[
        bool, typer.Option("--drop-negative", help="What came out less sure than the base counts as not learned.")
    ] = False,
    wait: options.Wait = False,
    device: options.Device = "cpu",
    json_: options.Json = False,
) -> None:
    """Combine beliefs that learned different parts since one base: their product over base^(K-1), in closed form.

    No data is needed for it. It is exact where the beliefs are the true
    posteriors; evidence that two of them share would count twice, and is
    refused, and so is a weight of which less than nothing would be known.

    \b
    [bold]Example[/bold]
    postprior merge digits berlin lisbon --base champion
    """
    from postprior.pipeline.store import Store

    opened = Store.open(store, device=device)
    _tell(opened.merge(refs, base=base, into=into, drop_negative=drop_negative, wait=wait), json_)


def forget(
    store: options.StoreAt,
    part: Annotated[str, typer.Option(metavar="NAME", help="The part, as `postprior show` lists it.")],
    wait: options.Wait = False,
    device: options.Device = "cpu",
    json_: options.Json = False,
) -> None:
    """Divide what one part taught out of head. This is approximate: later parts were learned from where it had led.

    The champion stays where it is. Beliefs from before the division remain in
    the store; the part's data never was.

    \b
    [bold]Example[/bold]
    postprior forget digits --part 2026-11-18
    """
    from postprior.pipeline.store import Store

    entry = Store.open(store, device=device).forget(part, wait=wait)
    if not json_:
        screen.warn("this is approximate: the parts after it were learned from where it had led")
    _tell(entry, json_)


def sweep(store: options.StoreAt, json_: options.Json = False) -> None:
    """Remove what dead processes left half-written, which nobody sees. Nothing that the log names is touched.

    \b
    [bold]Example[/bold]
    postprior sweep digits
    """
    from postprior.pipeline.store import Store

    count = Store.open(store).sweep()
    screen.document({"removed": count}) if json_ else print(f"{count:,} beliefs that nobody acknowledged were removed.")


def _tell(entry: "Entry", as_json: bool) -> None:
    if as_json:
        screen.document(plain_entry(entry))
        return
    print(f"{entry.event}, entry {entry.sequence}: the aliases are now")
    screen.lines((f"  {name}", id[: screen.SHORT]) for name, id in entry.aliases.items())
