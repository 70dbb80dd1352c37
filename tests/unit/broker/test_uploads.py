"""Queries about attachments, from the frame to the effect and from the event to the answer."""

from __future__ import annotations

from typing import Any

import pytest
from trunkline_broker.core import effects as do
from trunkline_broker.core import events as said
from trunkline_broker.core import uploads
from trunkline_broker.core.specs import AliveWorker, StoredAttachment
from trunkline_protocol import frames
from trunkline_protocol.codec import pack_body
from trunkline_protocol.ids import Epoch, Generation, PoolName, QueryId
from trunkline_protocol.limits import ATTACHMENT_PART_BYTES as PART
from trunkline_protocol.limits import MIN_ATTACHMENT_COST_BYTES as BLOCK

from tests.support.broker_rig import Rig, RigClient, RigWorker, a_pool, held


def name(number: int) -> str:
    return f"sha256:{number:064x}"


A, B, C = name(0xA), name(0xB), name(0xC)


def put(client: RigClient, attachment: str, total: int, **fields: Any) -> QueryId:
    """Ask, or with `data` send a part."""
    argument = {"attachment": attachment, "mediaType": "image/png", "bytes": total, **fields}
    return client.query("putAttachment", argument).query


def stored(rig: Rig, *, received: int | None = None) -> said.PartStored:
    """Say that the part was written which the last event asked for."""
    (effect,) = rig.of(do.StorePart)
    there = effect.offset + len(effect.data) if received is None else received
    event = said.PartStored(
        effect.peer, effect.query, effect.attachment, there, there == effect.total
    )
    rig.tell(event)
    return event


def a_rig(blocks: int = 4, **spec: Any) -> tuple[Rig, RigClient]:
    rig = Rig(attachments_bytes=blocks * BLOCK, **spec)
    return rig, rig.a_client()


def holding(rig: Rig, client: RigClient, *names: str) -> None:
    """Have each stored with one block."""
    for each in names:
        put(client, each, BLOCK, data=bytes(BLOCK))
        stored(rig)
        assert client.answer() == {"next": BLOCK, "stored": True}


def test_an_upload_in_two_parts() -> None:
    """Each part becomes one write, each write one answer."""
    rig, client = a_rig()
    put(client, A, 10)
    assert client.answer() == {"next": 0, "stored": False}
    asked = put(client, A, 10, data=b"12345")
    (effect,) = rig.of(do.StorePart)
    assert effect == do.StorePart(client.peer, asked, A, "image/png", 10, 0, b"12345")
    assert not client.got(frames.Reply)
    stored(rig)
    assert client.answer() == {"next": 5, "stored": False}
    put(client, A, 10, offset=5, data=b"67890")
    stored(rig)
    assert client.answer() == {"next": 10, "stored": True}
    assert rig.count("attachments_stored") == 1
    status = rig.broker.status(rig.now_s)["attachments"]
    assert status == {"count": 1, "uploads": 0, "bytes": BLOCK, "bound": 4 * BLOCK}


def test_a_part_that_is_not_next_changes_nothing() -> None:
    """It is answered with what is."""
    rig, client = a_rig()
    put(client, A, 10, data=b"12345")
    stored(rig)
    for offset, data in ((0, b"1"), (6, b"7"), (10, b"")):
        put(client, A, 10, offset=offset, data=data)
        assert client.answer() == {"next": 5, "stored": False}
        assert not rig.of(do.StorePart)
    put(client, A, 11)
    assert client.answer() == {"next": 0, "stored": False}  # for other bytes nothing is there
    put(client, A, 3)
    assert client.answer() == {"next": 0, "stored": False}


def test_what_was_written_is_what_the_file_says() -> None:
    """Somebody may have cut it."""
    rig, client = a_rig()
    put(client, A, 10, data=b"12345")
    stored(rig)
    put(client, A, 10, offset=5, data=b"67")
    stored(rig, received=2)
    assert client.answer() == {"next": 2, "stored": False}


def test_others_wait_for_a_write_and_hear_of_it() -> None:
    """One part of an attachment is written at a time; then everybody knows how far it is."""
    rig, client = a_rig()
    other = rig.a_client()
    put(client, A, 10, data=b"12345")
    write = rig.of(do.StorePart)[0]
    put(other, A, 10)
    assert not rig.of(do.SendToClient)
    put(other, A, 10, data=b"1")
    assert not rig.effects or not rig.of(do.StorePart)
    rig.tell(said.PartStored(write.peer, write.query, A, 5, is_stored=False))
    assert client.answer() == {"next": 5, "stored": False}
    assert len(other.got(frames.Reply)) == 2


def test_a_refused_part_takes_the_upload_with_it() -> None:
    """Its sender hears why; who waited may begin anew."""
    rig, client = a_rig()
    other = rig.a_client()
    put(client, A, 10, data=b"12345")
    write = rig.of(do.StorePart)[0]
    put(other, A, 10)
    rig.tell(said.PartRefused(write.peer, write.query, A, "ATTACHMENT_STORE_FAILED", "disk full"))
    assert client.answer() == {"code": "ATTACHMENT_STORE_FAILED", "message": "disk full"}
    assert other.answer() == {"next": 0, "stored": False}
    assert rig.broker.status(0)["attachments"]["bytes"] == 0


def test_a_stored_one_is_looked_at_before_it_is_promised() -> None:
    """A file that somebody removed has to be sent again."""
    rig, client = a_rig()
    holding(rig, client, A)
    for is_there, answer in ((True, BLOCK), (False, 0)):
        asked = put(client, A, BLOCK)
        (check,) = rig.of(do.CheckAttachment)
        assert check == do.CheckAttachment(client.peer, asked, A, BLOCK)
        rig.tell(said.AttachmentChecked(client.peer, asked, A, is_there))
        assert client.answer() == {"next": answer, "stored": is_there}
    assert rig.count("attachments_lost") == 1
    rig.tell(said.AttachmentChecked(client.peer, asked, A, is_there=False))
    assert rig.count("attachments_lost") == 1


def test_another_size_of_a_stored_one_is_wrong() -> None:
    """The hash names one size."""
    rig, client = a_rig()
    holding(rig, client, A)
    put(client, A, BLOCK + 1)
    assert client.answer()["code"] == "INVALID_ATTACHMENT"
    assert not rig.of(do.CheckAttachment)


def test_the_longest_unused_makes_room() -> None:
    """What a call names was used, and stays as long as the call does."""
    rig, client = a_rig(blocks=3)
    holding(rig, client, A, B, C)
    call = client.open(attachments=(A, name(99)))
    (touched,) = rig.of(do.TouchAttachments)
    assert touched.attachments == (A,)
    put(client, name(1), 2 * BLOCK, data=b"x")
    (removed,) = rig.of(do.RemoveAttachments)
    assert removed.attachments == (B, C)
    assert rig.effects.index(removed) < rig.effects.index(rig.of(do.StorePart)[0])
    put(client, name(2), BLOCK, data=b"x")
    assert client.answer()["code"] == "OVERLOADED"
    client.say(frames.Cancel(call.call, 0))
    put(client, name(2), BLOCK, data=b"x")
    assert rig.of(do.RemoveAttachments)[0].attachments == (A,)
    rig.check()


def test_a_started_call_carries_its_names() -> None:
    """From `OPEN` to `START`; they stay for the next attempt too."""
    rig, client = a_rig(blocks=2)
    worker = rig.a_worker("p")
    holding(rig, client, A)
    client.open(attachments=(A,))
    (start,) = worker.got(frames.Start)
    assert start.attachments == (A,)
    put(client, B, 2 * BLOCK, data=b"x")
    assert client.answer()["code"] == "OVERLOADED"


def test_files_that_are_gone_are_forgotten() -> None:
    """Unless they are being uploaded again."""
    rig, client = a_rig()
    holding(rig, client, A)
    put(client, B, 10, data=b"1")
    rig.tell(said.AttachmentsGone((A, B, C)))
    put(client, A, BLOCK)
    assert client.answer() == {"next": 0, "stored": False}
    assert rig.broker.status(0)["attachments"]["uploads"] == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"attachment": "sha256:1"},
        {"attachment": 7},
        {"mediaType": "png"},
        {"bytes": 0},
        {"bytes": True},
        {"bytes": -1},
        {"offset": -1},
        {"offset": 11},
        {"offset": "0"},
        {"data": "text"},
        {"data": bytes(11)},
        {"data": b""},
        {"data": bytes(PART + 1), "bytes": 2 * PART},
    ],
)
def test_wrong_arguments(wrong: dict[str, Any]) -> None:
    """Refused, with nothing changed."""
    rig, client = a_rig(blocks=1024)
    good = {"attachment": A, "mediaType": "image/png", "bytes": 10, "offset": 0, "data": b"1"}
    client.query("putAttachment", {**good, **wrong})
    assert client.answer()["code"] == "INVALID_ATTACHMENT"
    assert not rig.of(do.StorePart)


@pytest.mark.parametrize("body", [b"", b"\xc1", pack_body([1])])
def test_an_argument_that_is_no_map(body: bytes) -> None:
    """Refused as any other wrong argument."""
    client = a_rig()[1]
    client.say(frames.Query(QueryId(bytes(16)), "putAttachment", body=body))
    assert client.answer()["code"] == "INVALID_ATTACHMENT"


def test_one_that_no_store_could_hold() -> None:
    """Refused before a byte is sent."""
    client = a_rig()[1]
    put(client, A, 4 * BLOCK + 1)
    assert client.answer()["code"] == "ATTACHMENT_TOO_LARGE"


def test_bounds_of_what_is_under_way() -> None:
    """Parts in memory and queries that wait have one each."""
    client = a_rig(blocks=1000)[1]
    for number in range(uploads.MAX_WRITES):
        put(client, name(number), 10, data=b"1")
    put(client, name(1000), 10, data=b"1")
    assert client.answer()["code"] == "OVERLOADED"
    for _ in range(uploads.MAX_HELD):
        put(client, name(1), 10)
        assert not client.got(frames.Reply)
    put(client, name(1), 10)
    assert client.answer()["code"] == "OVERLOADED"


def test_a_stopping_broker_takes_nothing() -> None:
    """As with every query that would begin something."""
    rig, client = a_rig()
    rig.a_worker("p")
    client.open()
    rig.tell(said.StopRequested(drain_s=5))
    put(client, A, 10, data=b"1")
    assert client.answer()["code"] == "STOPPING"


# --- after a restart ------------------------------------------------------------------------

OLD = Generation(Epoch(500), 1)
HINT = AliveWorker(PoolName("p"), 0, OLD, 4711)


def restarted(*found: StoredAttachment, blocks: int = 3) -> tuple[Rig, RigClient]:
    """Return a broker that waits for a worker of the older one."""
    rig = Rig(a_pool(), alive=(HINT,), attachments_bytes=blocks * BLOCK)
    rig.broker._uploads.start(found)
    return rig, rig.a_client()


def found(*names: str, blocks: int = 1) -> tuple[StoredAttachment, ...]:
    return tuple(StoredAttachment(each, blocks * BLOCK, is_whole=True) for each in names)


def test_what_is_found_over_the_bound_leaves_at_once_if_nobody_is_awaited() -> None:
    """The longest unused first."""
    rig = Rig(attachments_bytes=2 * BLOCK)
    rig.tell(said.Started((), found(A, B, C)))
    assert [effect.attachments for effect in rig.of(do.RemoveAttachments)] == [(A,)]


def test_nothing_leaves_before_it_is_known_what_workers_hold() -> None:
    """Uploads wait until then; what a held attempt names stays."""
    rig, client = restarted(*found(A, B, C), StoredAttachment(name(1), 9, is_whole=False))
    assert not rig.of(do.RemoveAttachments)
    put(client, name(2), BLOCK, data=b"x")
    put(client, B, 1)
    assert not rig.of(do.SendToClient)
    worker = RigWorker(rig, "p", 0, OLD)
    opened = client.an_open()
    worker.register(
        "serving",
        calls=(held(opened, client),),
        attachments=(frames.HeldAttachment(opened.call, A),),
    )
    worker.ready("p")
    removed = [each for effect in rig.of(do.RemoveAttachments) for each in effect.attachments]
    assert A not in removed
    assert removed[:2] == [B, C]
    assert rig.of(do.StorePart)
    rig.check()


def test_too_much_does_not_wait() -> None:
    """The number of queries that wait has a bound."""
    client = restarted()[1]
    for _ in range(uploads.MAX_HELD):
        put(client, A, 10)
        assert not client.got(frames.Reply)
    put(client, A, 10)
    assert client.answer()["code"] == "OVERLOADED"


def test_what_waited_may_be_refused_at_last() -> None:
    """It gets its answer like any other."""
    rig, client = restarted(*found(A))
    put(client, A, BLOCK + 1)
    rig.wait(6)
    sent = [effect.frame for effect in rig.of(do.SendToClient) if effect.peer == client.peer]
    codes = [frame.failure["code"] for frame in sent if isinstance(frame, frames.Reply)]
    assert codes == ["INVALID_ATTACHMENT"]


# --- for workers ----------------------------------------------------------------------------


def get(worker: RigWorker, argument: object, op: str = "getAttachment") -> QueryId:
    query = QueryId(worker.rig.number().to_bytes(16, "big"))
    worker.say(frames.Query(query, op, body=pack_body(argument)))
    return query


def test_a_worker_is_told_the_directory() -> None:
    """With its registration."""
    rig = Rig(attachments_dir="/somewhere")
    worker = rig.spawn(rig.spawned()[0])
    worker.register()
    assert worker.got(frames.Registered)[0].attachments_dir == "/somewhere"


def test_a_worker_reads_part_by_part() -> None:
    """Each question becomes one read, each read one answer."""
    rig, client = a_rig()
    worker = rig.a_worker("p")
    holding(rig, client, A)
    asked = get(worker, {"attachment": A, "offset": 7})
    assert rig.of(do.ReadPart) == [do.ReadPart(worker.peer, asked, A, 7)]
    rig.tell(said.PartRead(worker.peer, asked, A, BLOCK, b"bytes"))
    (reply,) = worker.got(frames.Reply)
    assert reply == frames.Reply(asked, body=pack_body({"bytes": BLOCK, "data": b"bytes"}))
    rig.tell(said.PartRead(worker.peer, asked, A, 0, None))
    (reply,) = worker.got(frames.Reply)
    assert (reply.failure or {})["code"] == "ATTACHMENT_MISSING"
    assert rig.broker.status(0)["attachments"]["count"] == 0


@pytest.mark.parametrize(
    ("argument", "op", "code"),
    [
        ({"attachment": B, "offset": 0}, "getAttachment", "ATTACHMENT_MISSING"),
        ({"attachment": C, "offset": 0}, "getAttachment", "ATTACHMENT_MISSING"),
        ({"attachment": "B", "offset": 0}, "getAttachment", "INVALID_ATTACHMENT"),
        ({"attachment": A, "offset": BLOCK}, "getAttachment", "INVALID_ATTACHMENT"),
        ({"attachment": A}, "getAttachment", "INVALID_ATTACHMENT"),
        ([], "getAttachment", "INVALID_ATTACHMENT"),
        ({"attachment": A, "offset": 0}, "status", "UNSUPPORTED"),
    ],
)
def test_what_a_worker_can_not_read(argument: object, op: str, code: str) -> None:
    """Nothing that is not whole, and nothing else than attachments."""
    rig, client = a_rig()
    worker = rig.a_worker("p")
    holding(rig, client, A)
    put(client, B, 10, data=b"1")
    get(worker, argument, op)
    assert (worker.got(frames.Reply)[0].failure or {})["code"] == code
    assert not rig.of(do.ReadPart)


def test_reads_have_a_bound() -> None:
    """Each that is answered makes a place."""
    rig, client = a_rig()
    worker = rig.a_worker("p")
    holding(rig, client, A)
    for _ in range(uploads.MAX_READS):
        asked = get(worker, {"attachment": A, "offset": 0})
    get(worker, {"attachment": A, "offset": 0})
    assert (worker.got(frames.Reply)[0].failure or {})["code"] == "OVERLOADED"
    rig.tell(said.PartRead(worker.peer, asked, A, BLOCK, b"x"))
    get(worker, {"attachment": A, "offset": 0})
    assert rig.of(do.ReadPart)


def test_a_query_comes_on_a_connection() -> None:
    """Anything else is a defect of this broker."""
    rig, client = a_rig()
    worker = rig.a_worker("p")
    client.disconnect()
    rig.tell(said.PeerDisconnected(said.Side.WORKER, worker.peer))
    flow, frame = rig.broker._uploads, frames.Query(QueryId(bytes(16)), "putAttachment")
    gone = next(iter(rig.hub.clients))
    with pytest.raises(AssertionError):
        flow.on_put(gone, frame)
    with pytest.raises(AssertionError):
        flow.on_get(next(iter(rig.hub.workers)), frame)


def test_lists_too_are_answered_when_the_time_to_settle_is_over() -> None:
    """Also if the worker that was awaited stays silent."""
    rig, client = restarted()
    asked = client.query("models").query
    rig.wait(6)
    sent = [effect.frame for effect in rig.of(do.SendToClient) if effect.peer == client.peer]
    assert frames.Reply(asked, body=pack_body([])) in sent
