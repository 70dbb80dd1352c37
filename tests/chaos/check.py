"""Judge a chaos run from `chaos.jsonl` alone: `python tests/chaos/check.py FILE`.

It imports nothing of Trunkline. A call is judged by what was expected (`call`), what its agent
received (`end`), and what the provider was asked (`start`, `stop`). A stream of a player, which
plays by itself whatever strikes, is judged by `play`, `read` and `start`. A line of the watcher
(`stuck`) is always wrong.
"""

import json
import statistics
import sys
from collections import Counter, defaultdict
from pathlib import Path

# Most seconds from a fault to the end of what it ends (worker_stop: a lease of 3 s).
LIMITS = {"worker_kill": 0.2, "worker_stop": 4.5, "client_kill": 1.0, "cancel": 1.0}
SILENCES = {"second_holder": 6.0}  # most seconds without a chunk of a stream that lives on
COLUMNS, WAITS = ("strikes", "calls", "lost", "doubled", "failed", "leaks"), ("noticed", "silence")
ABORTED, ERROR, WHOLE = ("aborted", "ABORTED"), ("error", "TRANSPORT"), ("stop", None)
FINISH = {"aborted": ABORTED, "error": ERROR, "whole": WHOLE}
# What may end streams of players, which play whatever strikes.
FATAL = ("worker_kill", "worker_stop", "broker_kill", "broker_restart")
TAKES_STREAMS = FATAL[:2]
PLAYS = ("streams", "lost", "doubled", "failed", "stuck", "excused")
LATE_S = 6.0  # a lease of a stopped worker, and some
STRUCK = ("TRANSPORT", "STREAM_CLOSED", "INVALID_PREPARED_CALL")
GONE = ("error", "STREAM_CLOSED")
FAILED = ("error", "UNKNOWN")  # what a script of a player raises
ENDS = {
    "whole": (WHOLE,),
    "error": (FAILED,),
    "aborted": (ABORTED, WHOLE),  # the cancel may come when all is over
    "left": (ABORTED, WHOLE, (None, None)),
    "given back": ((None, None),),
}


def judge(call, ends, starts, prefixes):
    """Return what is wrong with one call: "lost", "doubled", "failed", or nothing."""
    if len(ends) > 1 or len(starts) > 1:
        return "doubled"
    if call["want"] == "gone":
        return "failed" if ends else ""
    if not ends:
        return "lost"
    if (end := ends[0])["chunks"] > call["chunks"]:
        return "doubled"
    if (end["finish"], end["code"]) != FINISH[call["want"]]:
        return "failed"
    if call["want"] == "whole":
        return "" if end["sha"] == call["sha"] and starts else "lost"
    return "" if [end["sha"]] == [prefix["sha"] for prefix in prefixes] else "lost"


def noticed(call, facts, struck):
    """Return seconds from the fault to its effect on one call; its longest silence if it lived."""
    ends, stops = facts["end"][call["id"]], facts["stop"][call["id"]]
    if call["want"] in ("whole", "error"):
        seconds = [e["gap"] if call["want"] == "whole" else e["t"] - struck for e in ends]
        return seconds[0] if seconds else None
    if call["want"] == "aborted":
        struck = facts["cancel"][call["id"]][0]["t"]
        if not facts["start"][call["id"]]:
            return 0.0  # cancelled before the provider was asked
    return stops[0]["t"] - struck if stops else float("inf")


def is_struck(play, read, strikes):
    """Return whether a fault explains a failure; of a broker's death only a question may fail.

    A stream that begins soon after a worker stopped may still be given to that worker.
    """
    taking = FATAL if play["pattern"] == "prepare" and not read["chars"] else TAKES_STREAMS
    return any(
        name in taking and play["since"] <= at + LATE_S and at <= read["t"] for at, name in strikes
    )


def judge_play(play, reads, starts, strikes):
    """Return what is wrong with one stream: "lost", "doubled", "failed", "stuck", or nothing.

    Args:
        play: the line that says what must come.
        reads: the lines that say what came; one is right.
        starts: how often its provider was asked.
        strikes: time and name of each fault of its world.
    """
    if not reads:
        return "lost"
    read = reads[0]
    if len(reads) > 1 or starts > read["attempts"] or read["chars"] > play["chars"]:
        return "doubled"
    if read["sha"] != read["prefix"]:
        return "lost"
    end = (read["finish"], read["code"])
    if play["pattern"] == "attach" and end == GONE and read["first"] == "stop":
        return ""  # the first reader had got all of it: the call was over
    if end not in ENDS[play["want"]]:
        is_excused = read["code"] in STRUCK + ABORTED[1:] and is_struck(play, read, strikes)
        return "" if is_excused else "failed"
    is_all = play["want"] in ("whole", "error") or end == WHOLE
    return "lost" if is_all and read["sha"] != play["sha"] else ""


def count_plays(facts):
    """Return how the streams of all players went: counts by kind, and what is wrong.

    Args:
        facts: kind of line -> id -> lines, of a whole book.
    """
    strikes = {}
    for line in facts["fault"][""]:
        strikes.setdefault(line.get("w"), []).append((line["t"], line["fault"]))
    rows, wrong = {}, []
    stuck = {line["id"] for lines in facts["stuck"].values() for line in lines}
    for play_id, plays in facts["play"].items():
        (play,) = plays
        reads, starts = facts["read"][play_id], len(facts["start"][play_id])
        verdict = judge_play(play, reads, starts, strikes.get(play["w"], ()))
        verdict = "stuck" if play_id in stuck else verdict
        row = rows.setdefault(play["pattern"], Counter())
        row.update({"streams": 1, "chars": reads[0]["chars"] if reads else 0, verdict: 1})
        row["excused"] += bool(reads) and not verdict and reads[0]["code"] in STRUCK
        if verdict:
            wrong.append(f"{play['pattern']} {play_id} {play['want']}: {verdict} {reads[:2]}")
    return rows, wrong


def table_of_plays(rows):
    """Return the table of the players' streams; `excused` are those that a fault ended."""
    if not rows:
        return []
    table = [f"{'pattern':<20}" + "".join(f"{name:>9}" for name in PLAYS) + f"{'letters':>14}"]
    for pattern, row in sorted(rows.items()):
        counts = "".join(f"{row[name]:>9}" for name in PLAYS)
        table.append(f"{pattern:<20}{counts}{row['chars']:>14}")
    return table


def demands(run, facts, rows, times):
    """Return every demand on the run as a whole that is not met."""
    total = sum(row["calls"] for row in rows.values()) + len(facts["play"])
    wrong = [f"leak, {e['fault']}: {e['what']}: {e['text']}" for e in facts["leak"][""]]
    wrong += [f"tasks left in agent {e['name']}" for e in facts["closed"][""] if e["tasks"]]
    told = [line for lines in facts["stuck"].values() for line in lines]
    wrong += [f"stuck {e.get('id')}: {e['silent']:.1f} s at chunk {e['chunks']}" for e in told]
    for (fault, is_whole), values in times.items():
        limit = (SILENCES.get(fault, 1e9) if is_whole else LIMITS.get(fault, 0)) * run["slow"]
        if max(values) > limit:
            wrong.append(f"{fault}: {WAITS[is_whole]} {max(values):.3f} s, at most {limit:g} s")
    wrong += [f"too few: {f}" for f in run["faults"] if rows[f]["strikes"] < run["least"]]
    if total < run["least_calls"] or len(facts["end_of_world"][""]) != run["worlds"]:
        wrong.append(f"{total} calls are too few, or a world did not get to its end")
    return wrong


def main(path):
    """Print the table; return 0 if every demand is met."""
    facts = defaultdict(lambda: defaultdict(list))
    for line in Path(path).read_text().splitlines():
        entry = json.loads(line)
        facts[entry["k"]][entry.get("id", "")].append(entry)
    struck = {entry["e"]: entry["t"] for entry in facts["fault"][""]}
    rows, times, wrong = defaultdict(Counter), defaultdict(list), []
    for column, entries in (("strikes", facts["fault"][""]), ("leaks", facts["leak"][""])):
        for entry in entries:
            rows[entry["fault"]][column] += 1
    for (call,) in facts["call"].values():
        found = [facts[kind][call["id"]] for kind in ("end", "start", "prefix")]
        verdict = judge(call, *found)
        rows[call["fault"]].update({"calls": 1, verdict: 1})
        if verdict:
            wrong.append(f"{call['fault']} {call['id']} {call['want']}: {verdict} {found[0]}")
        if (seconds := noticed(call, facts, struck[call["e"]])) is not None:
            times[call["fault"], call["want"] == "whole"].append(seconds)
    wrong += demands(facts["run"][""][0], facts, rows, times)
    heads = [f"{name:>9}" for name in COLUMNS] + [f"{w + ' p50/max s':>19}" for w in WAITS]
    table = [f"{'fault':<20}{''.join(heads)}"]
    for fault, row in sorted(rows.items()):
        pairs = [times[fault, is_whole] for is_whole in (False, True)]
        told = [f"{statistics.median(v):.3f}/{max(v):.3f}" if v else "-" for v in pairs]
        counts = "".join(f"{row[name]:>9}" for name in COLUMNS)
        table.append(f"{fault:<20}{counts}{told[0]:>19}{told[1]:>19}")
    rows, wrong_plays = count_plays(facts)
    total = f"{len(facts['call'])} calls, {len(facts['play'])} streams of players"
    total += f", {len(wrong) + len(wrong_plays)} wrong"
    wrong += wrong_plays
    sys.stdout.write("\n".join([*table, *table_of_plays(rows), total, *wrong[:40], ""]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
