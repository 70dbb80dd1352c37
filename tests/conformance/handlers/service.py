"""`service`: an application's runtime, a real broker, and a worker whose adapter does as told.

Two things cannot be seen across processes and are put in their place. Whether an adapter got the
very request of the application is told by comparing values. And an image that reaches an adapter
must be in the broker's store: those of the vectors have hashes of nothing, so they travel under the
name of an image that exists.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import trunkline
from trunkline_protocol.chunks import Finish
from trunkline_protocol.finish import failed_finish

from tests.conformance.handlers.small_files import is_deep_frozen
from tests.conformance.handlers.thrown import thrown
from tests.support.control import Control, controlled_broker
from tests.support.images import a_png
from tests.support.timing import until

_POOL: Final = "double"
_ROUTE: Final = "route"
_MODEL: Final = "model"
# What the adapter of these vectors emits before it fails.
_SCRIPT: Final = (
    {"type": "block-start", "index": 0, "blockType": "text"},
    {"type": "text-delta", "index": 0, "text": "hi"},
)
# What the cases say of an image that nobody has. The broker has another, whose size must be true.
_NAMELESS: Final = "sha256:" + "ab" * 32
_BYTES: Final = '"bytes": 3'
_PLACES: Final = {"prepareCall": "resolveModel"}  # a direct call prepares itself by resolving


class Service:
    """Runs the cases; each finds an empty registry."""

    def __init__(self, control: Control, llm: trunkline.SyncRuntime) -> None:
        self._control = control
        self._llm = llm
        self._image = llm.attachments.put(a_png(1, 1))
        self._operations: Mapping[str, Callable[[dict[str, Any]], object]] = {
            "resolveModelInfo": self._resolve_model_info,
            "listModels": self._list_models,
            "resolveCallConfig": self._resolve_call_config,
            "prepareCall": self._prepare_call,
            "discoverModels": self._discover_models,
            "adapterRequest": self._adapter_request,
            "streamFailure": self._stream_failure,
        }

    def run(self, given: dict[str, Any]) -> object:
        try:
            return self._operations[given["op"]](given)
        except trunkline.LlmError as exc:
            return {"error": {"code": exc.code}}
        finally:
            self._ask("reset")

    def _ask(self, op: str, **fields: Any) -> Any:
        return self._control.ask(_POOL, op, **fields)

    def _register(self, **plan: Any) -> None:
        self._ask("register", handle="A", adapter="A", providers=[_ROUTE], plan=plan)

    # --- queries -------------------------------------------------------------------------------

    def _resolve_model_info(self, given: dict[str, Any]) -> object:
        self._register(resolved=given["resolved"])
        return {"info": self._llm.resolve_model_info(_ROUTE, _MODEL).to_dict()}

    def _list_models(self, given: dict[str, Any]) -> object:
        self._register(models=given["models"])
        return {"models": [model.to_dict() for model in self._llm.list_models(_ROUTE)]}

    def _resolve_call_config(self, given: dict[str, Any]) -> object:
        self._register(resolved=given["resolved"])
        config = trunkline.LlmCallConfig.from_dict(given["config"])
        resolved = self._llm.resolve_call_config(config)
        return {"config": resolved.to_dict(), "sameObject": resolved is config}

    def _prepare_call(self, given: dict[str, Any]) -> object:
        self._register(resolved=given["resolved"])
        with self._llm.prepare_call(given["config"]) as prepared:
            result: dict[str, object] = {
                "config": prepared.config.to_dict(),
                "adapterDefaults": prepared.adapter_defaults.to_dict(),
                "frozen": is_deep_frozen(prepared.config),
            }
            if prepared.context is not None:
                result["context"] = prepared.context.to_dict()
            if prepared.input_modalities is not None:
                result["inputModalities"] = list(prepared.input_modalities)
            return result

    def _discover_models(self, given: dict[str, Any]) -> object:
        self._ask(
            "registerDiscovery",
            handle="D",
            settingsNs=given["registered"],
            discovered=given["discovered"],
        )
        found = self._llm.discover_models(given["settingsNs"], given["request"])
        return {"models": [model.to_dict() for model in found]}

    # --- calls ---------------------------------------------------------------------------------

    def _adapter_request(self, given: dict[str, Any]) -> object:
        modalities = (
            {"inputModalities": given["inputModalities"]} if ("inputModalities" in given) else {}
        )
        for name, providers in given["adapters"].items():
            plan = {"resolved": modalities, "fillsIdentity": True}
            self._ask("register", handle=name, adapter=name, providers=providers, plan=plan)
        for name in given["disposeBefore"]:
            self._ask("dispose", handle=name)
        options = trunkline.GenerateOptions.from_dict(
            self._renamed(
                {"provider": given["target"], "model": _MODEL, "messages": given["messages"]},
                (_NAMELESS, self._image.attachment_id),
                (_BYTES, self._stored_bytes),
            )
        )
        chunks = list(self._llm.stream(options))
        for name in given["adapters"]:
            for seen in self._ask("seen", adapter=name)["requests"]:
                return self._compared(name, options.to_dict(), seen)
        return {"adapter": None, "chunks": [trunkline.chunk_to_dict(chunk) for chunk in chunks]}

    def _compared(self, adapter: str, sent: dict[str, Any], seen: dict[str, Any]) -> object:
        pairs = zip(sent["messages"], seen["messages"], strict=True)
        stored = self._image.attachment_id
        named = self._renamed(
            seen, (stored, _NAMELESS), (stored[:15], _NAMELESS[:15]), (self._stored_bytes, _BYTES)
        )
        return {
            "adapter": adapter,
            "sameRequest": seen == sent,
            "sameMessages": [old == new for old, new in pairs],
            "messages": named["messages"],
        }

    @property
    def _stored_bytes(self) -> str:
        return f'"bytes": {self._image.bytes}'

    @staticmethod
    def _renamed(value: dict[str, Any], *names: tuple[str, str]) -> dict[str, Any]:
        text = json.dumps(value)
        for old, new in names:
            text = text.replace(old, new)
        return json.loads(text)

    def _stream_failure(self, given: dict[str, Any]) -> object:
        prefix = list(_SCRIPT[: given.get("afterChunks", 0)])
        place = _PLACES.get(given["at"], given["at"])
        if place != "selection":
            is_cancelled = given["signalAborted"]
            if is_cancelled and place != "resolveModel":
                place = "next"  # only there can an adapter wait for the cancellation
            plan = {"hangAt" if is_cancelled else "failAt": place, "thrown": given["thrown"]}
            self._register(chunks=prefix, **plan)
            if is_cancelled:
                return self._cancelled(given, len(prefix))
        chunks = list(self._llm.stream(provider=_ROUTE, model=_MODEL, messages="x"))
        return {"chunks": [trunkline.chunk_to_dict(chunk) for chunk in chunks]}

    def _cancelled(self, given: dict[str, Any], count: int) -> object:
        """Cancel while the adapter waits; it then raises what the case says.

        The application has its one `aborted` finish at once and does not wait for what the adapter
        makes of it; the facts of that are looked up where the worker's boundary would put them.
        """
        with self._llm.stream(provider=_ROUTE, model=_MODEL, messages="x") as stream:
            chunks = [next(stream) for _ in range(count)]
            until(lambda: any("hangs" in note for note in self._notes()))
            stream.cancel()
            chunks += stream
            until(lambda: any("cancelled" in note for note in self._notes()))
        assert stream.finish is not None
        assert stream.finish.kind == "aborted"
        finish = Finish(failed_finish(thrown(given["thrown"]), was_cancelled=True))
        return {"chunks": [trunkline.chunk_to_dict(each) for each in (*chunks[:-1], finish)]}

    def _notes(self) -> list[str]:
        return self._ask("seen", adapter="A")["notes"]


@contextlib.contextmanager
def service() -> Iterator[Callable[[Any], object]]:
    """Yield the handler of this file, with its broker."""
    with (
        controlled_broker((_POOL,)) as (broker, control),
        trunkline.connect_sync(broker.endpoint) as llm,
    ):
        yield Service(control, llm).run


OPENERS = {"service": service}
