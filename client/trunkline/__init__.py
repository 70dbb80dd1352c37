"""Trunkline's client: stream model calls through the broker of this machine.

    import trunkline

    async with trunkline.connect() as llm:
        async for chunk in llm.stream(provider="scripted", model="demo", messages="Hi"):
            ...

Names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trunkline_protocol.assembler import BlockAssembler
    from trunkline_protocol.chunks import (
        BlockEnd,
        BlockStart,
        Finish,
        ReasoningDelta,
        StreamChunk,
        TextDelta,
        ToolCallDelta,
        Usage,
        chunk_from_dict,
        chunk_to_dict,
        is_token_delta,
    )
    from trunkline_protocol.codes import Code
    from trunkline_protocol.content import (
        ContentBlock,
        ImageAttachment,
        ImageBlock,
        ReasoningBlock,
        TextBlock,
        ToolCallBlock,
        ToolResultBlock,
    )
    from trunkline_protocol.failure import (
        LlmError,
        LlmFailure,
        LocalProtocolError,
        ProtocolError,
        RemoteProtocolError,
        TrunklineError,
    )
    from trunkline_protocol.finish import (
        FinishReason,
        ReplayEnvelope,
        TokenUsage,
    )
    from trunkline_protocol.messages import (
        AssistantProvenance,
        ContextSnapshotSection,
        Message,
        MessageSource,
        ModelMessageSource,
        PluginMessageSource,
        ToolMessageSource,
        UserMessageSource,
        bound_context_summary,
        create_assistant_message,
        create_message,
        create_tool_result_message,
        create_user_message,
        freeze_message,
    )
    from trunkline_protocol.models import (
        LlmConfigurableProvider,
        LlmDiscoveredModel,
        LlmModelContext,
        LlmModelDiscoveryRequest,
        LlmModelInfo,
        LlmModelReasoningInfo,
        LlmProviderInfo,
        LlmReasoningEffortInfo,
        LlmResolvedModelInfo,
    )
    from trunkline_protocol.options import (
        GenerateOptions,
        LlmCallConfig,
        LlmCallConfigAdapterDefaults,
        ToolSchema,
        call_config_equals,
    )
    from trunkline_protocol.retry_policy import (
        AlwaysRetryPolicy,
        NormalRetryPolicy,
        ResolvedRetryPolicy,
        policy_key,
    )
    from trunkline_protocol.version import __version__

    from trunkline.core.effects import RetryNotice
    from trunkline.core.queues import QueueStatistics
    from trunkline.errors import (
        BrokerRefusedError,
        BrokerUnreachableError,
        ForkedClientError,
    )
    from trunkline.events import AdapterUpdates
    from trunkline.marker import (
        is_agent_loop_request,
        mark_agent_loop_request,
    )
    from trunkline.middleware import (
        GenerateListener,
        NextResult,
        NextStream,
        StreamListener,
    )
    from trunkline.prepared import PreparedLlmCall
    from trunkline.runtime import (
        LlmRuntime,
        connect,
    )
    from trunkline.stream import (
        BlockStream,
        GenerateResult,
        RetryEvent,
        ServedBy,
        Stream,
    )
    from trunkline.sync import (
        SyncRuntime,
        connect_sync,
    )
    from trunkline.sync_listeners import (
        SyncGenerateListener,
        SyncNextResult,
        SyncNextStream,
        SyncStreamListener,
    )
    from trunkline.sync_stream import (
        SyncAdapterUpdates,
        SyncBlockStream,
        SyncPreparedLlmCall,
        SyncStream,
    )

__all__ = [
    "AdapterUpdates",
    "AlwaysRetryPolicy",
    "AssistantProvenance",
    "BlockAssembler",
    "BlockEnd",
    "BlockStart",
    "BlockStream",
    "BrokerRefusedError",
    "BrokerUnreachableError",
    "Code",
    "ContentBlock",
    "ContextSnapshotSection",
    "Finish",
    "FinishReason",
    "ForkedClientError",
    "GenerateListener",
    "GenerateOptions",
    "GenerateResult",
    "ImageAttachment",
    "ImageBlock",
    "LlmCallConfig",
    "LlmCallConfigAdapterDefaults",
    "LlmConfigurableProvider",
    "LlmDiscoveredModel",
    "LlmError",
    "LlmFailure",
    "LlmModelContext",
    "LlmModelDiscoveryRequest",
    "LlmModelInfo",
    "LlmModelReasoningInfo",
    "LlmProviderInfo",
    "LlmReasoningEffortInfo",
    "LlmResolvedModelInfo",
    "LlmRuntime",
    "LocalProtocolError",
    "Message",
    "MessageSource",
    "ModelMessageSource",
    "NextResult",
    "NextStream",
    "NormalRetryPolicy",
    "PluginMessageSource",
    "PreparedLlmCall",
    "ProtocolError",
    "QueueStatistics",
    "ReasoningBlock",
    "ReasoningDelta",
    "RemoteProtocolError",
    "ReplayEnvelope",
    "ResolvedRetryPolicy",
    "RetryEvent",
    "RetryNotice",
    "ServedBy",
    "Stream",
    "StreamChunk",
    "StreamListener",
    "SyncAdapterUpdates",
    "SyncBlockStream",
    "SyncGenerateListener",
    "SyncNextResult",
    "SyncNextStream",
    "SyncPreparedLlmCall",
    "SyncRuntime",
    "SyncStream",
    "SyncStreamListener",
    "TextBlock",
    "TextDelta",
    "TokenUsage",
    "ToolCallBlock",
    "ToolCallDelta",
    "ToolMessageSource",
    "ToolResultBlock",
    "ToolSchema",
    "TrunklineError",
    "Usage",
    "UserMessageSource",
    "__version__",
    "bound_context_summary",
    "call_config_equals",
    "chunk_from_dict",
    "chunk_to_dict",
    "connect",
    "connect_sync",
    "create_assistant_message",
    "create_message",
    "create_tool_result_message",
    "create_user_message",
    "freeze_message",
    "is_agent_loop_request",
    "is_token_delta",
    "mark_agent_loop_request",
    "policy_key",
]

_MODULES: Final = {
    "trunkline_protocol.assembler": ("BlockAssembler",),
    "trunkline_protocol.chunks": (
        "BlockEnd",
        "BlockStart",
        "Finish",
        "ReasoningDelta",
        "StreamChunk",
        "TextDelta",
        "ToolCallDelta",
        "Usage",
        "chunk_from_dict",
        "chunk_to_dict",
        "is_token_delta",
    ),
    "trunkline_protocol.codes": ("Code",),
    "trunkline_protocol.content": (
        "ContentBlock",
        "ImageAttachment",
        "ImageBlock",
        "ReasoningBlock",
        "TextBlock",
        "ToolCallBlock",
        "ToolResultBlock",
    ),
    "trunkline_protocol.failure": (
        "LlmError",
        "LlmFailure",
        "LocalProtocolError",
        "ProtocolError",
        "RemoteProtocolError",
        "TrunklineError",
    ),
    "trunkline_protocol.finish": (
        "FinishReason",
        "ReplayEnvelope",
        "TokenUsage",
    ),
    "trunkline_protocol.messages": (
        "AssistantProvenance",
        "ContextSnapshotSection",
        "Message",
        "MessageSource",
        "ModelMessageSource",
        "PluginMessageSource",
        "ToolMessageSource",
        "UserMessageSource",
        "bound_context_summary",
        "create_assistant_message",
        "create_message",
        "create_tool_result_message",
        "create_user_message",
        "freeze_message",
    ),
    "trunkline_protocol.models": (
        "LlmConfigurableProvider",
        "LlmDiscoveredModel",
        "LlmModelContext",
        "LlmModelDiscoveryRequest",
        "LlmModelInfo",
        "LlmModelReasoningInfo",
        "LlmProviderInfo",
        "LlmReasoningEffortInfo",
        "LlmResolvedModelInfo",
    ),
    "trunkline_protocol.options": (
        "GenerateOptions",
        "LlmCallConfig",
        "LlmCallConfigAdapterDefaults",
        "ToolSchema",
        "call_config_equals",
    ),
    "trunkline_protocol.retry_policy": (
        "AlwaysRetryPolicy",
        "NormalRetryPolicy",
        "ResolvedRetryPolicy",
        "policy_key",
    ),
    "trunkline_protocol.version": ("__version__",),
    "trunkline.core.effects": ("RetryNotice",),
    "trunkline.core.queues": ("QueueStatistics",),
    "trunkline.errors": (
        "BrokerRefusedError",
        "BrokerUnreachableError",
        "ForkedClientError",
    ),
    "trunkline.events": ("AdapterUpdates",),
    "trunkline.marker": (
        "is_agent_loop_request",
        "mark_agent_loop_request",
    ),
    "trunkline.middleware": (
        "GenerateListener",
        "NextResult",
        "NextStream",
        "StreamListener",
    ),
    "trunkline.prepared": ("PreparedLlmCall",),
    "trunkline.runtime": (
        "LlmRuntime",
        "connect",
    ),
    "trunkline.stream": (
        "BlockStream",
        "GenerateResult",
        "RetryEvent",
        "ServedBy",
        "Stream",
    ),
    "trunkline.sync": (
        "SyncRuntime",
        "connect_sync",
    ),
    "trunkline.sync_listeners": (
        "SyncGenerateListener",
        "SyncNextResult",
        "SyncNextStream",
        "SyncStreamListener",
    ),
    "trunkline.sync_stream": (
        "SyncAdapterUpdates",
        "SyncBlockStream",
        "SyncPreparedLlmCall",
        "SyncStream",
    ),
}
_HOMES: Final = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a public name from the module that defines it."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
