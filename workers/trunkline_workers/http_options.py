"""The options that every HTTP adapter has in common: limits, connections, retry policy, base URL.

Pure. Every wrong option is a `ValueError` that names the key and what is allowed.
"""

from __future__ import annotations

from typing import Final, cast
from urllib.parse import urlsplit

from trunkline_protocol.retry_policy import ResolvedRetryPolicy, resolve_retry_policy

from trunkline_workers.clocks import StreamLimits
from trunkline_workers.http import ClientOptions, TransportName
from trunkline_workers.options_reader import OptionsReader

_TRANSPORTS: Final = ("aiohttp", "httpx")


def read_limits(reader: OptionsReader) -> StreamLimits:
    """Read the limits on waiting, each in milliseconds.

    Raises:
        ValueError: one is not a number above 0.
    """
    default = StreamLimits()
    return StreamLimits(
        connect_s=reader.seconds("connectTimeoutMs", default.connect_s) or 0,
        first_byte_s=reader.seconds("firstByteTimeoutMs", default.first_byte_s) or 0,
        idle_s=reader.seconds("streamIdleTimeoutMs", default.idle_s) or 0,
        progress_s=reader.seconds("progressTimeoutMs", default.progress_s) or 0,
        total_s=reader.seconds("totalTimeoutMs"),
        grace_s=reader.seconds("finishGraceMs", default.grace_s) or 0,
        pool_s=reader.seconds("poolTimeoutMs", default.pool_s) or 0,
    )


def read_client(reader: OptionsReader) -> ClientOptions:
    """Read how to connect.

    Raises:
        ValueError: an option is wrong, or two do not go together.
    """
    http2 = reader.flag("http2", default=False)
    transport = reader.choice("transport", _TRANSPORTS, "httpx" if http2 else "aiohttp")
    if http2 and transport != "httpx":
        raise reader.fail("transport", "http2 needs the httpx transport")
    return ClientOptions(
        max_connections=reader.count("maxConnections", 256) or 0,
        transport=cast("TransportName", transport),
        http2=http2,
        trust_env=reader.flag("trustEnv", default=True),
        keep_alive=reader.flag("keepAlive", default=True),
    )


def read_retry_policy(reader: OptionsReader) -> ResolvedRetryPolicy | None:
    """Read `retryPolicy`; `None`: the normal defaults.

    Raises:
        ValueError: a key of it is wrong.
    """
    if reader.raw("retryPolicy") is None:
        return None
    return resolve_retry_policy(reader.table("retryPolicy"), "retryPolicy")


def check_base_url(reader: OptionsReader, url: str) -> None:
    """Check `baseUrl`, after unknown keys were refused: a misspelt key would leave it empty.

    Raises:
        ValueError: no HTTP URL, or one with credentials or a query.
    """
    if not url:
        raise reader.fail("baseUrl", "required by this profile, such as https://host/v1")
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise reader.fail("baseUrl", "a URL that begins with http:// or https:// is required")
    if parts.username or parts.password or parts.query:
        raise reader.fail("baseUrl", "a URL without credentials and query is required")
