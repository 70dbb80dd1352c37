"""`trunkline providers` and `trunkline models`: what can be called."""

from __future__ import annotations

from typing import Annotated

import typer

from trunkline_broker.cli.connection import broker, run_async
from trunkline_broker.cli.names import provider_names
from trunkline_broker.cli.terminal import err, out, print_json

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def providers(*, as_json: Json = False) -> None:
    """List the providers that have a worker.

    \b
      trunkline providers
      trunkline providers --json | jq -r '.[].id'
    """

    async def listed() -> list[dict[str, object]]:
        async with broker("providers") as llm:
            return [dict(info.to_dict()) for info in await llm.list_providers()]

    _print(run_async(listed()), "no provider is served yet: see trunkline status", as_json=as_json)


def models(
    provider: Annotated[
        str,
        typer.Argument(help="A provider of `trunkline providers`.", autocompletion=provider_names),
    ],
    *,
    as_json: Json = False,
) -> None:
    """List the models that a provider advertises; others may work too.

    \b
      trunkline models local
    """

    async def listed() -> list[dict[str, object]]:
        async with broker("models") as llm:
            return [dict(info.to_dict()) for info in await llm.list_models(provider)]

    _print(run_async(listed()), f"{provider} advertises none; any may work", as_json=as_json)


def _print(rows: list[dict[str, object]], none: str, *, as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    if not rows:
        err().print(none, markup=False)
    for row in rows:
        name = "" if row.get("name") == row["id"] else f"  {row.get('name', '')}"
        out().print(f"{row['id']}{name}", markup=False)
