"""Where a worker gets its API key, asked anew for every call, so a rotated key needs no restart.

The key comes from a variable of the worker's environment or from a file (mounted secrets are
replaced in place). It is judged by the rule of `api_key` and shown nowhere: it is a `SecretStr`
until a request is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trunkline_protocol.api_key import usable_api_key
from trunkline_protocol.failure import Code, LlmError
from trunkline_protocol.secret import SecretStr

from trunkline_workers.adapter import keep_quiet

_KEY_FILE_MAX_BYTES = 64 * 1024  # a key file that is larger is some other file


@dataclass(frozen=True, slots=True)
class KeySource:
    """Reads one provider's key.

    Attributes:
        owner: route, for errors.
        variable: name in the environment, empty for none.
        file: path of a file that holds nothing but the key; it wins over the variable.
        required: a call without a key is refused.
        environ: of the worker.
        conceal: told each key that is read, so that nothing that is written later shows it.
    """

    owner: str
    variable: str = ""
    file: str = ""
    required: bool = True
    environ: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    conceal: Callable[[str], None] = keep_quiet

    async def read(self) -> SecretStr | None:
        """Return the key to send now, or `None` where none is needed and none is set.

        Raises:
            LlmError: `MISSING_CREDENTIAL`, or `INVALID_CREDENTIAL` for a text that is no key.
        """
        if self.file:
            raw, ref = await asyncio.to_thread(self._from_file), f"file {self.file}"
        else:
            raw, ref = self.environ.get(self.variable), f"variable {self.variable}"
        if raw is None or (not raw.strip() and not self.required):
            if self.required:
                raise LlmError.of(self._missing(ref), Code.MISSING_CREDENTIAL)
            return None
        key = usable_api_key(raw, self.owner, ref)
        self.conceal(key)
        return SecretStr(key)

    def _from_file(self) -> str | None:
        """Read the key file; one that can't be read counts as missing."""
        try:
            with Path(self.file).open("rb") as source:
                return source.read(_KEY_FILE_MAX_BYTES).decode(errors="replace")
        except OSError:
            return None

    def _missing(self, ref: str) -> str:
        if not self.file and not self.variable:
            return f"{self.owner}: no API key is configured; set apiKeyEnv or apiKeyFile"
        hint = (
            "" if self.file else "; set it, and name it in the `env` list of the worker's section"
        )
        return f"{self.owner}: no API key in {ref}{hint}"


def bearer(key: SecretStr | None) -> dict[str, str]:
    """Return the header that carries a key in most APIs; none without a key."""
    return {} if key is None else {"authorization": f"Bearer {key.get_secret_value()}"}


def plain(headers: Mapping[str, SecretStr]) -> dict[str, str]:
    """Return configured headers as a request sends them."""
    return {name: value.get_secret_value() for name, value in headers.items()}
