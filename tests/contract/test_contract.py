"""Every adapter of this repository against the numbered contract; one suite for all of them."""

from __future__ import annotations

import importlib.util
from contextlib import AbstractAsyncContextManager

import pytest
from trunkline_workers.adapters.local.model_file import find_model
from trunkline_workers.testing import AdapterContract, Subject

from tests.contract import subjects
from tests.support import recorded

pytestmark = pytest.mark.integration

without_library = pytest.mark.skipif(
    importlib.util.find_spec("pydantic_ai") is None,
    reason="pydantic-ai is not installed here; `make library` runs these in a venv that has it",
)
without_model = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None or find_model(None) is None,
    reason="the local model is not installed; `trunkline setup local` installs it",
)


class TestScripted(AdapterContract):
    def subject(self) -> AbstractAsyncContextManager[Subject]:
        return subjects.scripted()


class TestChatCompletions(AdapterContract):
    def subject(self) -> AbstractAsyncContextManager[Subject]:
        return subjects.chat_completions()


@without_model
class TestLocal(AdapterContract):
    def subject(self) -> AbstractAsyncContextManager[Subject]:
        return subjects.local()


@without_library
class TestPydanticAiAnthropic(AdapterContract):
    def subject(self) -> AbstractAsyncContextManager[Subject]:
        return subjects.pydantic_ai(recorded.ANTHROPIC)


@without_library
class TestPydanticAiGemini(AdapterContract):
    def subject(self) -> AbstractAsyncContextManager[Subject]:
        return subjects.pydantic_ai(recorded.GEMINI)


@without_library
class TestPydanticAiResponses(AdapterContract):
    def subject(self) -> AbstractAsyncContextManager[Subject]:
        return subjects.pydantic_ai(recorded.RESPONSES)


@without_library
class TestPydanticAiMistral(AdapterContract):
    def subject(self) -> AbstractAsyncContextManager[Subject]:
        return subjects.pydantic_ai(recorded.MISTRAL)


@without_library
class TestPydanticAiGroq(AdapterContract):
    def subject(self) -> AbstractAsyncContextManager[Subject]:
        return subjects.pydantic_ai(recorded.GROQ)


@without_library
class TestPydanticAiBedrock(AdapterContract):
    def subject(self) -> AbstractAsyncContextManager[Subject]:
        return subjects.pydantic_ai(recorded.BEDROCK)


@without_library
class TestPydanticAiBedrockConverse(AdapterContract):
    def subject(self) -> AbstractAsyncContextManager[Subject]:
        return subjects.pydantic_ai(recorded.CONVERSE)


@without_library
class TestPydanticAiXai(AdapterContract):
    def subject(self) -> AbstractAsyncContextManager[Subject]:
        return subjects.pydantic_ai(recorded.XAI)
