"""`GenerateOptions` in, the body of a chat-completions request out; pure.

Images are resolved before (`images` names them), since reading a file is no matter of form.
What a provider can't honour is refused, never dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from trunkline_protocol.content import (
    ContentBlock,
    ImageBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from trunkline_protocol.failure import Code, LlmError, LlmFailure
from trunkline_protocol.messages import Message
from trunkline_protocol.options import GenerateOptions

from trunkline_workers.adapters.chat_completions.profiles import RequestRules
from trunkline_workers.adapters.chat_completions.replay import ReplayState, read_replay
from trunkline_workers.images import images_in

NO_OUTPUT = "(no output)"  # a tool message must have content


@dataclass(frozen=True, slots=True)
class RequestDefaults:
    """What the configuration adds where a call says nothing.

    Attributes:
        reasoning_effort: effort of calls that ask for none.
        thinking: `enabled` or `disabled` for providers with a switch.
        extra_body: keys added to every body; they never replace one.
    """

    reasoning_effort: str | None = None
    thinking: str | None = None
    extra_body: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True)
class ResolvedImage:
    """The bytes of an image in the form the request needs.

    Attributes:
        url: a data URL, or a URL the provider can read.
        file_id: id of a file that the provider holds already.
    """

    url: str = ""
    file_id: str = ""


Images = Mapping[str, ResolvedImage]


def build_body(
    options: GenerateOptions,
    rules: RequestRules,
    defaults: RequestDefaults | None = None,
    *,
    images: Images | None = None,
    report: Callable[[str], None] | None = None,
) -> dict[str, object]:
    """Build the request body.

    Args:
        options: the call; defaults of the exact model are in it already.
        rules: of the provider.
        defaults: of the configuration.
        images: what `image_blocks` resolved to, by attachment id.
        report: takes a line when stored replay state can't be used.

    Raises:
        LlmError: `UNSUPPORTED_CONTENT`, `UNSUPPORTED_REASONING_EFFORT` or `UNSUPPORTED`.
    """
    defaults = defaults or RequestDefaults()
    body: dict[str, object] = {"model": options.model}
    writer = _MessageWriter(rules, images or {}, report)
    body["messages"] = writer.conversation(options)
    body["stream"] = True
    if rules.stream_usage:
        body["stream_options"] = {"include_usage": True}
    body.update(_reasoning(options, rules, defaults))
    if options.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                },
            }
            for tool in options.tools
        ]
    body.update(_sampling(options, rules))
    return {**defaults.extra_body, **body}


def _sampling(options: GenerateOptions, rules: RequestRules) -> dict[str, object]:
    """Return the sampling fields.

    Raises:
        LlmError: `UNSUPPORTED` for an option that this API or provider has no field for.
    """
    unknown = sorted(options.model_extra or ())
    if unknown:
        raise _refused(Code.UNSUPPORTED, f"options not supported here: {', '.join(unknown)}")
    fields: dict[str, object] = {}
    if options.temperature is not None:
        fields["temperature"] = options.temperature
    if options.max_tokens is not None:
        fields[rules.max_tokens_field] = options.max_tokens
    if options.stop is not None:
        if rules.max_stop is not None and len(options.stop) > rules.max_stop:
            text = f"stop: this provider takes at most {rules.max_stop} texts"
            raise _refused(Code.UNSUPPORTED, text)
        fields["stop"] = list(options.stop)
    return fields


def _reasoning(
    options: GenerateOptions, rules: RequestRules, defaults: RequestDefaults
) -> Mapping[str, object]:
    """Return what an effort, or the switch without one, adds to the body."""
    if options.purpose == "session-title" and rules.no_thinking is not None:
        return rules.efforts[rules.no_thinking]  # a title is not worth thinking about
    asked = options.reasoning_effort
    effort = defaults.reasoning_effort if asked is None else asked
    if effort is None:
        return {} if defaults.thinking is None else rules.thinking.get(defaults.thinking, {})
    offered = offered_efforts(rules, defaults)
    if effort not in offered:
        some = ", ".join(offered) or "none"
        text = f"reasoning effort {effort!r} is not supported; supported: {some}"
        raise _refused(Code.UNSUPPORTED_REASONING_EFFORT, text)
    return rules.efforts[effort]


def offered_efforts(rules: RequestRules, defaults: RequestDefaults) -> tuple[str, ...]:
    """Return the efforts a call may ask for; a deployment without thinking has only `off`."""
    if defaults.thinking == "disabled" and rules.thinking:
        return tuple(effort for effort in rules.efforts if effort == rules.no_thinking)
    return tuple(rules.efforts)


def _refused(code: str, text: str) -> LlmError:
    return LlmError(LlmFailure(text, code))


def _text(blocks: Sequence[ContentBlock]) -> str:
    """Join the visible text of blocks, without a separator."""
    return "".join(block.text for block in blocks if isinstance(block, TextBlock))


class _MessageWriter:
    """Write the messages of one request."""

    def __init__(
        self, rules: RequestRules, images: Images, report: Callable[[str], None] | None
    ) -> None:
        self._rules = rules
        self._images = images
        self._report = report

    def conversation(self, options: GenerateOptions) -> list[dict[str, object]]:
        """Write the system prompt and all messages."""
        out: list[dict[str, object]] = []
        if options.system is not None:
            out.append({"role": self._rules.system_role, "content": options.system})
        for message in options.messages:
            if message.role == "assistant":
                out.append(self._assistant(message))
            elif message.role == "system":
                _refuse_images(message.content)
                out.append({"role": self._rules.system_role, "content": _text(message.content)})
            else:
                out += self._user(message.content)
        return out

    def _assistant(self, message: Message) -> dict[str, object]:
        _refuse_images(message.content)
        replay = read_replay(message, self._report) if self._rules.returns_details else None
        out: dict[str, object] = {"role": "assistant", "content": _text(message.content)}
        details = None if replay is None else replay.details
        reasoning = "".join(
            block.text for block in message.content if isinstance(block, ReasoningBlock)
        )
        if details:
            out["reasoning_details"] = details
        elif reasoning and self._rules.reasoning_field is not None:
            out[self._rules.reasoning_field] = reasoning
        calls = [
            _tool_call(block, replay, position)
            for position, block in enumerate(message.content)
            if isinstance(block, ToolCallBlock)
        ]
        if calls:
            out["tool_calls"] = calls
        return out

    def _user(self, content: Sequence[ContentBlock]) -> list[dict[str, object]]:
        """Write tool results, which have to follow their calls at once, then the rest."""
        results = [block for block in content if isinstance(block, ToolResultBlock)]
        out: list[dict[str, object]] = [
            {
                "role": "tool",
                "tool_call_id": block.tool_call_id,
                "content": _result_text(block.content) or NO_OUTPUT,
            }
            for block in results
        ]
        # A tool message can't hold an image, so those of results come with the user's own.
        shown = [block for result in results for block in images_in(result.content)]
        shown += [block for block in content if isinstance(block, ImageBlock)]
        text = _text(content)
        if shown:
            parts: list[dict[str, object]] = [self._image(block) for block in shown]
            if text:
                parts.insert(0, {"type": "text", "text": text})
            out.append({"role": "user", "content": parts})
        elif text or not results:
            out.append({"role": "user", "content": text})
        return out

    def _image(self, block: ImageBlock) -> dict[str, object]:
        if self._rules.images == "none":
            raise _no_images()
        image = self._images.get(block.attachment.attachment_id)
        if image is None:
            text = f"image {block.attachment.attachment_id} is not stored on this machine"
            raise _refused(Code.ATTACHMENT_MISSING, text)
        if image.file_id:
            return {"type": "file", "file": {"file_id": image.file_id}}
        return {"type": "image_url", "image_url": {"url": image.url}}


def _refuse_images(content: Sequence[ContentBlock]) -> None:
    """Refuse images in a role that can't show any."""
    if any(True for _ in images_in(content)):
        raise _no_images()


def _no_images() -> LlmError:
    text = "images are not supported by this provider in this place"
    return _refused(Code.UNSUPPORTED_CONTENT, text)


def _result_text(content: Sequence[ContentBlock]) -> str:
    """Join the text of a tool result, with that of results nested in it."""
    texts: list[str] = []
    for block in content:
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, ToolResultBlock):
            texts.append(_result_text(block.content))
    return "".join(texts)


def _tool_call(
    block: ToolCallBlock, replay: ReplayState | None, position: int
) -> dict[str, object]:
    """Write a tool call; its arguments stay the text they are."""
    out: dict[str, object] = {
        "id": block.id,
        "type": "function",
        "function": {"name": block.name, "arguments": block.arguments},
    }
    extra = None if replay is None else replay.extra_content(position)
    if extra is not None:
        out["extra_content"] = extra
    return out
