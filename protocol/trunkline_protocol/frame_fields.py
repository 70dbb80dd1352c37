"""What the fields of frames are: a type for readers, and the check that the codec makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from trunkline_protocol import wire_checks as check
from trunkline_protocol.ids import (
    CallId,
    ClientId,
    Epoch,
    Generation,
    LeaseId,
    PoolName,
    QueryId,
    RouteName,
    StreamKey,
)

Version = Annotated[tuple[int, int], check.version]
Uint = Annotated[int, check.uint]
Number = Annotated[float, check.number]
Flag = Annotated[bool, check.boolean]
Name = Annotated[str, check.name]
Label = Annotated[str, check.label]
Text = Annotated[str, check.text]
Place = Annotated[str, check.place]
Secret = Annotated[bytes, check.binary]
Recovery = Annotated[str, check.recovery]
RoleName = Annotated[str, check.role]
Names = Annotated[tuple[str, ...], check.names]
Map = Annotated[Mapping[str, Any], check.mapping]
Maps = Annotated[tuple[Mapping[str, Any], ...], check.mappings]
Client = Annotated[ClientId, check.client_id]
Call = Annotated[CallId, check.call_id]
Key = Annotated[StreamKey, check.stream_key]
Asked = Annotated[QueryId, check.query_id]
Lease = Annotated[LeaseId, check.lease_id]
Leases = Annotated[tuple[LeaseId, ...], check.lease_ids]
Route = Annotated[RouteName, check.route_name]
Pool = Annotated[PoolName, check.pool_name]
Since = Annotated[Epoch, check.epoch]
Born = Annotated[Generation, check.generation]

Body = bytes | memoryview
"""What the receiver alone decodes. A broker passes on a large one as it lies in ZeroMQ's memory."""
NO_BODY: Final = b""
