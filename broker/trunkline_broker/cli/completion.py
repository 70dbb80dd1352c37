"""`trunkline completion`: the script that completes commands and options in a shell."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated, Final

import typer

COMPLETE_ENV: Final = "_TRUNKLINE_COMPLETE"


class Shell(StrEnum):
    """A shell that is known."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish.")],
) -> None:
    """Print the completion script of a shell; zsh finds it where $fpath looks.

    \b
      echo 'source <(trunkline completion bash)' >> ~/.bashrc
      trunkline completion zsh > ~/.zfunc/_trunkline
      trunkline completion fish > ~/.config/fish/completions/trunkline.fish
    """
    from typer.completion import get_completion_script  # pyright: ignore[reportPrivateImportUsage]

    # Typer offers it only as an option of the command; its own name for it is stable since 0.12.
    script = get_completion_script(
        prog_name="trunkline", complete_var=COMPLETE_ENV, shell=shell.value
    )
    typer.echo(script)


def prepare() -> None:
    """Make the command answer the shell's question, if this run is one."""
    if COMPLETE_ENV in os.environ:
        from typer.completion import completion_init  # pyright: ignore[reportPrivateImportUsage]

        completion_init()
