"""What of a request reaches an adapter: foreign replay state taken out, images projected."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from trunkline_protocol.images import project_images_for_text_model
from trunkline_protocol.messages import Message, ModelMessageSource
from trunkline_protocol.options import GenerateOptions


def without_foreign_replay(
    messages: Sequence[Message], owned_providers: Collection[str]
) -> Sequence[Message]:
    """Take out replay state that the adapter does not own.

    Args:
        messages: the conversation.
        owned_providers: routes that the very adapter instance of this call serves now.

    Returns:
        The same sequence if nothing was taken out; untouched messages stay the same objects. A
        source that loses its state keeps provider and model only.
    """
    kept = [_without_foreign(message, owned_providers) for message in messages]
    is_same = all(old is new for old, new in zip(messages, kept, strict=True))
    return messages if is_same else tuple(kept)


def _without_foreign(message: Message, owned_providers: Collection[str]) -> Message:
    source = message.source
    if (
        message.role != "assistant"
        or not isinstance(source, ModelMessageSource)
        or source.replay_state is None
        or source.provider in owned_providers
    ):
        return message
    bare = ModelMessageSource(provider=source.provider, model=source.model)
    return message.model_copy(update={"source": bare})


def adapter_options(
    options: GenerateOptions,
    owned_providers: Collection[str],
    input_modalities: Collection[str] | None,
) -> GenerateOptions:
    """Return the request as the adapter may see it.

    Args:
        options: from the application.
        owned_providers: routes that the very adapter instance of this call serves now.
        input_modalities: of the exact model; `None`: unknown, nothing is projected.

    Returns:
        The same object if nothing had to change.
    """
    messages = without_foreign_replay(options.messages, owned_providers)
    if input_modalities is not None and "image" not in input_modalities:
        messages = project_images_for_text_model(messages)
    if messages is options.messages:
        return options
    return options.model_copy(update={"messages": messages})
