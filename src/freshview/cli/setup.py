"""`freshview init`: create a warehouse."""

from __future__ import annotations

from freshview.cli.output import say, write_json
from freshview.cli.place import Command, JsonOption, Place, command


@command
def init(place: Place, json: JsonOption = False) -> None:
    """Create a warehouse: a folder for data, and a catalog. An existing warehouse is left as it is."""
    from freshview.warehouse.opening import is_warehouse

    is_new = not is_warehouse(place.folder)
    with place.open_catalog(new=True) as catalog:
        where, database = place.folder.absolute(), str(catalog.database)
    if json:
        write_json({"warehouse": where, "catalog": database, "created": is_new})
        return
    say(f"{'Made a' if is_new else 'There is a'} warehouse in {where}, with its catalog in {database}.")
    if is_new:
        say('Next: freshview sql "CREATE TABLE t (id INT PRIMARY KEY, name STRING)", or freshview demo.')


COMMANDS = (Command(init, "Begin", ("freshview init", "freshview init -w sales --json")),)
