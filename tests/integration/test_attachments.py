"""Images from an application to a provider: client, broker, store, worker, HTTP."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trunkline
from trunkline import Code, ImageAttachment, ImageBlock, LlmError, LocalProtocolError
from trunkline_protocol import frames
from trunkline_protocol.attachments import attachment_id, digest_of
from trunkline_protocol.codec import pack_body, unpack_body
from trunkline_protocol.ids import QueryId
from trunkline_protocol.limits import ATTACHMENT_PART_BYTES

from tests.support.broker import BrokerProcess, broker_in, broker_process, run_directory
from tests.support.calls import DONE_EVENT, text_event
from tests.support.images import a_gif, a_png
from tests.support.raw_http import Answer, RawServer
from tests.support.raw_peer import RawClient
from tests.support.timing import SLOW, until_async

pytestmark = pytest.mark.integration

SHORT = (text_event("Hel"), text_event("lo"), text_event("", "stop"), DONE_EVENT)
PART = ATTACHMENT_PART_BYTES
WAIT_S = 20 * SLOW


def chat_worker(server: RawServer, name: str = "chat", extra: str = "") -> str:
    """Return the configuration of a chat-completions worker that takes images."""
    return textwrap.dedent(f"""\
        [worker.{name}]
        adapter = "chat_completions"
        providers = ["{name}"]
        {extra}
        [worker.{name}.options]
        profile = "custom"
        baseUrl = "{server.url}/v1"
        images = "data-url"
        trustEnv = false
        """)


def scripted_worker(journal: Path) -> str:
    """Return the configuration of a scripted worker; one of its models knows no images."""
    return textwrap.dedent(f"""\
        [worker.scripted]
        adapter = "scripted"
        providers = ["scripted"]
        [worker.scripted.options]
        journal = "{journal}"
        models = {{ blind = {{ inputModalities = ["text"] }} }}
        """)


@asynccontextmanager
async def connected(broker: BrokerProcess, *pools: str) -> AsyncIterator[trunkline.LlmRuntime]:
    """Yield a client, once the pools serve."""
    for pool in pools:
        await asyncio.to_thread(broker.until_ready, pool)
    async with trunkline.connect(broker.endpoint) as llm:
        yield llm


async def ask(
    llm: trunkline.LlmRuntime, images: Sequence[ImageAttachment], **fields: Any
) -> trunkline.GenerateResult:
    """Make one call that names images."""
    content = [{"type": "text", "text": "look"}]
    blocks = [ImageBlock(attachment=image).to_dict() for image in images]
    messages = [{"role": "user", "content": [*content, *blocks]}]
    fields = {"provider": "chat", "model": "m", "recovery": "none", **fields}
    return await asyncio.wait_for(llm.generate(messages=messages, **fields), WAIT_S)


def urls(body: bytes) -> list[str]:
    """Return the image URLs of a request that a provider has received."""
    parts = json.loads(body)["messages"][0]["content"]
    return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]


def data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def store(broker: BrokerProcess) -> Path:
    return broker.run_dir / "attachments"


def files(broker: BrokerProcess) -> set[str]:
    """Return the names of the files in the store."""
    return {path.name for path in store(broker).iterdir()} - {"lock"}


def counter(broker: BrokerProcess, name: str) -> int:
    return broker.status()["counters"].get(name, 0)


async def test_bytes_reach_the_provider(tmp_path: Path) -> None:
    """Of several parts and of one; what the broker has is not sent again; files are private."""
    large, small = a_png(64, 48, padding=3 * PART), a_gif(5, 7)
    (tmp_path / "small.gif").write_bytes(small)
    async with (
        RawServer(Answer(SHORT)) as server,
        broker_process(chat_worker(server)) as broker,
        connected(broker, "chat") as llm,
    ):
        first = await llm.attachments.put(large, name="large.png")
        second = await llm.attachments.put_file(tmp_path / "small.gif")
        assert first == ImageAttachment(
            attachment_id=attachment_id(large),
            media_type="image/png",
            bytes=len(large),
            width=64,
            height=48,
            name="large.png",
        )
        assert (second.name, second.width, second.height) == ("small.gif", 5, 7)
        before = counter(broker, "queries")
        assert await llm.attachments.put(large, "image/png", "large.png") == first
        # One question for the upload; the other is the status document's.
        assert counter(broker, "queries") - before == 2
        result = await ask(llm, [first, second, first])
        assert result.raise_for_failure().text == "Hello"
        seen = urls(server.exchanges[0].body)
        pairs = [("image/png", large), ("image/gif", small), ("image/png", large)]
        assert seen == [data_url(*pair) for pair in pairs]
        for name in files(broker):
            assert (store(broker) / name).stat().st_mode & 0o777 == 0o600


async def test_many_at_once_are_each_whole() -> None:
    """Sixteen clients' tasks put eight images, each of them twice."""
    images = [a_png(8, 8, padding=PART + 1000 * number) for number in range(8)]
    async with broker_process() as broker, connected(broker) as one, connected(broker) as two:
        tasks = [llm.attachments.put(image) for image in images for llm in (one, two)]
        await asyncio.wait_for(asyncio.gather(*tasks), WAIT_S)
        for image in images:
            path = store(broker) / digest_of(attachment_id(image))
            assert path.read_bytes() == image
            assert path.stat().st_mode & 0o777 == 0o600
        assert len(files(broker)) == len(images)


async def test_an_upload_survives_its_broker() -> None:
    """Killed in the middle and started again: the rest is sent, not the beginning."""
    image = a_png(64, 48, padding=40 * PART)
    digest = digest_of(attachment_id(image))
    async with broker_process() as broker, connected(broker) as llm:
        task = asyncio.ensure_future(llm.attachments.put(image))
        part = store(broker) / f"{digest}.part"
        await until_async(lambda: part.exists() and part.stat().st_size >= 4 * PART)
        os.kill(broker.pid, signal.SIGKILL)
        await asyncio.to_thread(broker.wait)
        assert not task.done()
        reached = part.stat().st_size
        assert 4 * PART <= reached < len(image)
        await asyncio.to_thread(broker.start)
        found = await asyncio.wait_for(task, WAIT_S)
        assert found.bytes == len(image)
        assert files(broker) == {digest}
        assert (store(broker) / digest).read_bytes() == image
        sent = counter(broker, "queries")
        assert sent <= (len(image) - reached) // PART + 6


async def test_the_next_broker_knows_what_is_stored() -> None:
    """Nothing is sent again after a restart, and a call finds it."""
    image = a_png(3, 3)
    async with RawServer(Answer(SHORT)) as server, broker_process(chat_worker(server)) as broker:
        async with connected(broker, "chat") as llm:
            named = await llm.attachments.put(image)
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        async with connected(broker, "chat") as llm:
            assert await llm.attachments.put(image) == named
            assert counter(broker, "attachments_stored") == 0
            (await ask(llm, [named])).raise_for_failure()
        assert urls(server.exchanges[0].body) == [data_url("image/png", image)]


async def test_a_missing_one_ends_the_call_before_the_provider(tmp_path: Path) -> None:
    """The failure names it, no adapter is asked; a model without images never needed it."""
    journal = tmp_path / "journal"
    async with RawServer(Answer(SHORT)) as server:
        config = chat_worker(server) + scripted_worker(journal)
        async with broker_process(config) as broker, connected(broker, "chat", "scripted") as llm:
            kept = await llm.attachments.put(a_png(2, 2))
            lost = kept.model_copy(update={"attachment_id": attachment_id(b"never put")})
            odd = kept.model_copy(update={"attachment_id": "../../etc/passwd"})
            for route in ("chat", "scripted"):
                for missing in (lost, odd):
                    result = await ask(llm, [kept, missing], provider=route)
                    assert result.failure is not None
                    assert (result.finish.kind, result.failure.code) == (
                        "error",
                        Code.ATTACHMENT_MISSING,
                    )
                    assert missing.attachment_id in result.failure.message
            assert not server.exchanges
            assert not journal.exists()
            (await ask(llm, [lost], provider="scripted", model="blind")).raise_for_failure()
            assert journal.exists()


async def test_a_false_claim_ends_the_call_before_the_provider() -> None:
    """Of type, size or pixels, also beside a true one for the same file; the failure says which."""
    async with (
        RawServer(Answer(SHORT)) as server,
        broker_process(chat_worker(server)) as broker,
        connected(broker, "chat") as llm,
    ):
        true = await llm.attachments.put(a_png(2, 3))
        for field, value, said in (
            ("media_type", "image/jpeg", "it is image/png, not image/jpeg"),
            ("bytes", 7, "bytes, not 7"),
            ("width", 200, "it has 2 x 3 pixels, not 200 x 3"),
        ):
            failure = (await ask(llm, [true, true.model_copy(update={field: value})])).failure
            assert failure is not None
            assert failure.code == Code.INVALID_ATTACHMENT
            assert said in failure.message
            assert true.attachment_id in failure.message
        assert not server.exchanges
        (await ask(llm, [true])).raise_for_failure()
        assert len(server.exchanges) == 1


async def test_a_file_that_somebody_removed_is_put_again() -> None:
    """The broker looks before it says that it has one."""
    image = a_png(2, 2)
    async with broker_process() as broker, connected(broker) as llm:
        named = await llm.attachments.put(image)
        path = store(broker) / digest_of(named.attachment_id)
        path.unlink()
        await llm.attachments.put(image)
        assert path.read_bytes() == image
        assert counter(broker, "attachments_lost") == 1


async def test_the_bound_holds_and_a_live_call_keeps_its_images() -> None:
    """The longest unused leaves first; while a call is open what it names stays."""
    config = '[broker]\nattachments_mib = 1\n[worker.scripted]\nadapter = "scripted"\n'
    images = [a_png(4, 4, padding=PART - 1000 + number) for number in range(6)]
    async with broker_process(config) as broker, connected(broker, "scripted") as llm:
        held = await llm.attachments.put(images[0])
        script = {"script": {"chunks": 1000, "pace_ms": 20}}
        block = ImageBlock(attachment=held).to_dict()
        content = [{"type": "text", "text": json.dumps(script)}, block]
        call = {"provider": "scripted", "model": "m"}
        async with llm.stream(messages=[{"role": "user", "content": content}], **call) as stream:
            await anext(stream)
            for image in images[1:]:
                await llm.attachments.put(image)
            names = [digest_of(attachment_id(image)) for image in images]
            assert files(broker) == {names[0], *names[3:]}
        await until_async(lambda: broker.status()["calls"]["open"] == 0)
        await llm.attachments.put(a_png(4, 4, padding=PART))
        assert names[0] not in files(broker)


async def test_a_held_call_keeps_its_images_over_a_restart() -> None:
    """The worker says what its attempts name, so the next broker removes none of it."""
    config = '[broker]\nattachments_mib = 1\n[worker.scripted]\nadapter = "scripted"\n'
    async with broker_process(config) as broker, connected(broker, "scripted") as llm:
        held = await llm.attachments.put(a_png(4, 4, padding=PART))
        script = {"script": {"chunks": 2000, "pace_ms": 20}}
        block = ImageBlock(attachment=held).to_dict()
        content = [{"type": "text", "text": json.dumps(script)}, block]
        call = {"provider": "scripted", "model": "m"}
        async with llm.stream(messages=[{"role": "user", "content": content}], **call) as stream:
            await anext(stream)
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
            for number in range(6):
                await llm.attachments.put(a_png(4, 4, padding=PART + 4 + number))
            assert digest_of(held.attachment_id) in files(broker)
            assert len(files(broker)) == 3
            assert stream.finish is None


async def test_a_full_disk_fails_the_upload_and_leaves_nothing() -> None:
    """The file system refuses: a clear failure, no file, and the broker goes on."""
    with run_directory() as root:
        # No file of the broker may pass 1 MiB, as if the disk were full there.
        start = [sys.executable, "-m", "trunkline_broker", "--config", str(root / "test.toml")]
        command = ["sh", "-c", 'ulimit -f 2048 && exec "$@"', "sh", *start]
        with broker_in(root, command=command) as broker:
            await asyncio.to_thread(broker.start)
            async with connected(broker) as llm:
                with pytest.raises(LlmError) as caught:
                    await llm.attachments.put(a_png(4, 4, padding=6 * PART))
                assert caught.value.code == Code.ATTACHMENT_STORE_FAILED
                assert files(broker) == set()
                await llm.attachments.put(a_png(4, 4, padding=PART))
                assert broker.status()["attachments"]["uploads"] == 0


@pytest.fixture
def raw() -> Iterator[tuple[BrokerProcess, RawClient]]:
    """Yield a broker and a client that says what no client would."""
    with run_directory() as root, broker_in(root) as broker:
        broker.start()
        with RawClient(broker.endpoint) as client:
            client.hello()
            yield broker, client


def put_raw(client: RawClient, **argument: Any) -> Any:
    """Send a `putAttachment`; return the answer, or the code of the failure."""
    query = QueryId(os.urandom(16))
    client.send(frames.Query(query, "putAttachment", body=pack_body(argument)))
    reply = client.receive_kind(frames.Reply)
    assert reply.query == query
    return unpack_body(reply.body) if reply.failure is None else reply.failure["code"]


def test_parts_that_do_not_fit_are_refused(raw: tuple[BrokerProcess, RawClient]) -> None:
    """Wrong hash, media type and arguments; whatever is refused at its end leaves no file."""
    broker, client = raw
    image = a_png(4, 4)
    good = {"mediaType": "image/png", "bytes": len(image), "offset": 0, "data": image}
    right, wrong = attachment_id(image), attachment_id(b"else")
    assert put_raw(client, attachment=wrong, **good) == "INVALID_ATTACHMENT"
    assert put_raw(client, attachment=right, **{**good, "mediaType": "image/gif"}) == (
        "INVALID_ATTACHMENT"
    )
    assert put_raw(client, attachment=right, **{**good, "bytes": 2**40}) == "ATTACHMENT_TOO_LARGE"
    for broken in (
        {"offset": -1},
        {"offset": len(image) + 1},
        {"bytes": 0},
        {"bytes": "7"},
        {"data": bytes(len(image) + 1)},
        {"data": "text"},
        {"data": b""},
        {"data": bytes(PART + 1), "bytes": PART + 1},
        {"mediaType": "png"},
    ):
        assert put_raw(client, attachment=right, **{**good, **broken}) == "INVALID_ATTACHMENT"
    for name in (None, "sha256:", "../../x", "sha256:" + "A" * 64, "sha256:../" + "a" * 61):
        assert put_raw(client, attachment=name, **good) == "INVALID_ATTACHMENT"
    assert files(broker) == set()
    assert put_raw(client, attachment=right, **good) == {"next": len(image), "stored": True}
    assert put_raw(client, attachment=right, **{**good, "bytes": 5, "data": bytes(5)}) == (
        "INVALID_ATTACHMENT"
    )


def test_parts_may_be_repeated_and_resumed(raw: tuple[BrokerProcess, RawClient]) -> None:
    """Only the part that comes next changes anything; other announced bytes begin anew."""
    broker, client = raw
    image = a_png(4, 4, padding=1000)
    name, size = attachment_id(image), len(image)
    head = {"attachment": name, "mediaType": "image/png", "bytes": size}

    def part(start: int, end: int) -> Any:
        return put_raw(client, **head, offset=start, data=image[start:end])

    assert put_raw(client, **head) == {"next": 0, "stored": False}
    assert part(100, 200) == {"next": 0, "stored": False}
    assert part(0, 100) == {"next": 100, "stored": False}
    assert part(0, 200) == {"next": 100, "stored": False}
    assert part(300, 400) == {"next": 100, "stored": False}
    assert put_raw(client, **head) == {"next": 100, "stored": False}
    assert part(100, 500) == {"next": 500, "stored": False}
    other = {**head, "bytes": size + 1}
    assert put_raw(client, **other) == {"next": 0, "stored": False}
    assert put_raw(client, **other, offset=0, data=bytes(7)) == {"next": 7, "stored": False}
    assert put_raw(client, **head) == {"next": 0, "stored": False}
    assert part(0, 500) == {"next": 500, "stored": False}
    (store(broker) / f"{digest_of(name)}.part").write_bytes(image[:50])
    assert part(500, size) == {"next": 50, "stored": False}
    assert part(50, size) == {"next": size, "stored": True}
    assert part(50, size) == {"next": size, "stored": True}
    assert (store(broker) / digest_of(name)).read_bytes() == image


async def test_what_is_no_image_is_refused_at_once() -> None:
    """Nothing is sent; the error names what is wrong."""
    async with broker_process() as broker, connected(broker) as llm:
        for data, media_type, said in (
            (b"", None, "PNG, JPEG, GIF or WebP"),
            (b"%PDF-1.7", None, "PNG, JPEG, GIF or WebP"),
            (a_png(4, 4)[:20], None, "cut short"),
            (a_png(4, 4), "image/gif", "image/png, not image/gif"),
            (bytes(64 * 1024 * 1024 + 1), None, "at most"),
        ):
            with pytest.raises(LocalProtocolError, match=said):
                await llm.attachments.put(data, media_type)
        with pytest.raises(FileNotFoundError):
            await llm.attachments.put_file("/nowhere/at/all.png")
        assert files(broker) == set()


def _other_host(root: Path) -> Path:
    """Return an interpreter whose processes see an empty directory in the place of the store."""
    script = root / "elsewhere"
    # What `unshare` starts keeps the process id; only its mounts are its own.
    script.write_text(
        "#!/bin/sh\n"
        f'exec unshare -rm sh -c \'mount -t tmpfs none "$0" && exec "$@"\''
        f' {root}/run/attachments {sys.executable} "$@"\n'
    )
    script.chmod(0o755)
    return script


def _can_hide() -> bool:
    if shutil.which("unshare") is None:
        return False
    tried = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0  # noqa: S603


@pytest.mark.skipif(not _can_hide(), reason="this machine lets nobody have mounts of his own")
async def test_a_worker_that_sees_no_store_is_sent_the_bytes() -> None:
    """As on another host: it asks the broker, part by part, before the provider is asked."""
    image = a_png(64, 48, padding=5 * PART)
    with run_directory() as root:
        async with RawServer(Answer(SHORT)) as server:
            python = f'python = "{_other_host(root)}"'
            with broker_in(root, chat_worker(server, extra=python)) as broker:
                await asyncio.to_thread(broker.start)
                async with connected(broker, "chat") as llm:
                    named = await llm.attachments.put(image)
                    for _ in range(2):
                        (await ask(llm, [named])).raise_for_failure()
                    lost = named.model_copy(update={"attachment_id": attachment_id(b"no")})
                    failure = (await ask(llm, [lost])).failure
                assert failure is not None
                assert failure.code == Code.ATTACHMENT_MISSING
                assert lost.attachment_id in failure.message
                assert len(server.exchanges) == 2
                for exchange in server.exchanges:
                    assert urls(exchange.body) == [data_url("image/png", image)]
                # Six parts, once, and one question for what is nowhere.
                assert counter(broker, "worker_queries") == 7
