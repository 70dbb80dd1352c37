"""One call that asks for recovery, against a model that counts on its fingers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from trunkline_broker.core.effects import Spawn
from trunkline_broker.core.specs import RestartSpec
from trunkline_broker.core.suspicion import Suspicion
from trunkline_protocol import frames

from tests.support.broker_rig import Rig, RigWorker, a_pool, done

CODES: Final = ("RATE_LIMIT", "SERVER", "TRANSPORT")
BACKOFF: Final = {"initialDelayMs": 1000, "maxDelayMs": 8000, "jitterRatio": 0}
POLICIES: Final[tuple[dict[str, Any], ...]] = (
    {"mode": "always", **BACKOFF},
    *(
        {"mode": "normal", "maxRetries": limit, "retryableCodes": list(CODES), **BACKOFF}
        for limit in (0, 1, 3)
    ),
)


class RetryMachine(RuleBasedStateMachine):
    """The model knows the policy, how often was retried, and what the provider asked for.

    `state` is idle, running, backoff (with `due_s`), due (the attempt may be opened) or over.
    """

    @initialize(policy=st.sampled_from(POLICIES))
    def begin(self, policy: dict[str, Any]) -> None:
        restart = RestartSpec(intensity=1000)
        self.rig = Rig(a_pool("p", restart=restart, queue_timeout_s=1000.0))
        self.policy = policy
        self._come(self.rig.spawned()[0])
        self.client = self.rig.a_client()
        self.state = "idle"
        self.paused_until_s = self.closed_until_s = 0.0
        self.retries = 0
        self.due_s = 0.0

    def _come(self, spawn: Spawn) -> None:
        self.worker: RigWorker = self.rig.spawn(spawn)
        self.worker.register()
        self.worker.ready("p", policy=self.policy)

    # --- what the model expects ------------------------------------------------------------------

    def _expected_delay_ms(self, code: str, wished_ms: float | None) -> float | None:
        """Return the delay of the next retry, or `None`: there is none."""
        is_normal = self.policy["mode"] == "normal"
        limit = BACKOFF["maxDelayMs"]
        is_patient = wished_ms is None or wished_ms <= limit
        if is_normal and (
            code not in CODES or self.retries >= self.policy["maxRetries"] or not is_patient
        ):
            return None
        if wished_ms is not None and is_patient:
            return wished_ms
        return float(min(BACKOFF["initialDelayMs"] * 2**self.retries, limit))

    def _expect(self, code: str, wished_ms: float | None, ended: type) -> None:
        """Compare what the client was told of a failure with what it should be."""
        delay_ms = self._expected_delay_ms(code, wished_ms)
        retries, ends = self.client.got(frames.Retry), self.client.got(ended)
        if delay_ms is None:
            assert (retries, len(ends)) == ([], 1)
            self._over()
            return
        assert not ends
        (offer,) = retries
        self.retries += 1
        assert (offer.attempt, offer.retry) == (self.frame.attempt + 1, self.retries)
        assert (offer.delay_ms, offer.mode) == (delay_ms, self.policy["mode"])
        assert offer.max_retries == self.policy.get("maxRetries")
        assert offer.failure["code"] == code
        self.retry_id = offer.retry_id
        self.state, self.due_s = "backoff", self.rig.now_s + delay_ms / 1000

    def _over(self) -> None:
        if self.frame.attempt or self.state != "idle":
            self.client.say(done(self.frame))
        self.state = "idle"

    # --- the call --------------------------------------------------------------------------------

    @precondition(lambda self: self.state == "idle")
    @rule()
    def open(self) -> None:
        """A new call starts its count at nothing, and is told to come later or waits."""
        self.frame = self.client.open("p", recovery="policy")
        self.retries = 0
        self._started(is_new=True)

    def _started(self, *, is_new: bool) -> None:
        now_s = self.rig.now_s
        is_exempt = not is_new and self.policy["mode"] == "always"
        if now_s < self.closed_until_s and not is_exempt:
            failure = self.client.failure()
            assert failure["code"] == "RATE_LIMIT"
            left_ms = (self.closed_until_s - now_s) * 1000
            assert abs(failure["providerRetryAfterMs"] - left_ms) < 1
            self.state = "idle"
            return
        if now_s < self.paused_until_s:
            assert self.client.got(frames.Queued)[0].reason == "paused"
            self._live(self.paused_until_s - now_s + 0.001)
        (start,) = self.worker.got(frames.Start)
        assert (start.call, start.attempt) == (self.frame.call, self.frame.attempt)
        self.state = "running"

    @precondition(lambda self: self.state == "running")
    @rule()
    def succeed(self) -> None:
        self.worker.end(self.frame)
        assert self.client.got(frames.Ended)[0].finish["kind"] == "stop"
        self._over()

    @precondition(lambda self: self.state == "running")
    @rule(
        code=st.sampled_from((*CODES, "AUTH")),
        wished_ms=st.sampled_from((None, None, 500.0, 8000.0, 20_000.0)),
    )
    def fail(self, code: str, wished_ms: float | None) -> None:
        wish = {} if wished_ms is None else {"providerRetryAfterMs": wished_ms}
        self.worker.end_with(self.frame, code, **wish)
        if wished_ms is not None and code in {"RATE_LIMIT", "SERVER"}:
            until_s = self.rig.now_s + wished_ms / 1000
            if wished_ms > BACKOFF["maxDelayMs"]:
                self.closed_until_s = max(self.closed_until_s, until_s)
            else:
                self.paused_until_s = max(self.paused_until_s, until_s)
        self._expect(code, wished_ms, frames.Ended)

    @precondition(lambda self: self.state == "running")
    @rule()
    def lose_the_worker(self) -> None:
        self.worker.exit()
        self.rig.hub.suspicion = Suspicion()  # that workers die of a request is not the subject
        spawned = self.rig.spawned()
        self._expect("TRANSPORT", None, frames.Failed)
        begun_s = self.rig.now_s
        while not spawned:
            spawned = [e for e in self.rig.wait(0.05) if isinstance(e, Spawn)]
        self._come(spawned[0])
        if self.state == "backoff" and self.rig.now_s >= self.due_s:
            assert self.rig.now_s > begun_s
            self.state = "due"

    def _live(self, seconds: float) -> None:
        self.rig.live(seconds, self.worker)

    @precondition(lambda self: self.state == "backoff")
    @rule()
    def wait_for_the_delay(self) -> None:
        """Not a moment sooner; then the client is told once."""
        left_s = self.due_s - self.rig.now_s
        if left_s > 0.01:
            self._live(left_s - 0.005)
            assert not self.client.got(frames.RetryStarted)
        self._live(0.01)
        (told,) = self.client.got(frames.RetryStarted)
        assert told.retry_id == self.retry_id
        self.state = "due"

    @precondition(lambda self: self.state == "backoff")
    @rule()
    def open_too_early(self) -> None:
        """It is told again how long it takes, and nothing starts."""
        attempt = self.frame.attempt + 1
        self.client.say(replace(self.frame, attempt=attempt, stream_key=_key(self.rig)))
        (again,) = self.client.got(frames.Retry)
        assert abs(again.delay_ms - (self.due_s - self.rig.now_s) * 1000) < 1
        assert not self.worker.got(frames.Start)

    @precondition(lambda self: self.state == "due")
    @rule()
    def go_on(self) -> None:
        attempt = self.frame.attempt + 1
        self.frame = replace(self.frame, attempt=attempt, stream_key=_key(self.rig))
        self.client.say(self.frame)
        self._started(is_new=False)

    @precondition(lambda self: self.state in {"backoff", "due"})
    @rule()
    def cancel(self) -> None:
        """Nothing is started any more, however long one waits."""
        self.client.say(frames.Cancel(self.frame.call, self.frame.attempt + 1))
        assert self.client.got(frames.Ended)[0].finish["kind"] == "aborted"
        self._live(10)
        assert not self.worker.got(frames.Start)
        assert not self.client.got(frames.RetryStarted)
        self.state = "idle"

    @rule(seconds=st.sampled_from((0.1, 3.0)))
    @precondition(lambda self: self.state in {"idle", "running"})
    def wait(self, seconds: float) -> None:
        self._live(seconds)

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.rig.check()


def _key(rig: Rig) -> Any:
    return rig.number().to_bytes(8, "big")


TestRetry = RetryMachine.TestCase
