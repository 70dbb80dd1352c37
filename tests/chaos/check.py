"""Judge a chaos run from `chaos.jsonl` alone: `python tests/chaos/check.py FILE`.

It imports nothing of Trunkline. A call is judged by what was expected (`call`), what its agent
received (`end`), and what the provider was asked (`start`, `stop`).
"""

import json
import statistics
import sys
from collections import Counter, defaultdict
from pathlib import Path

# Seconds until a fault is noticed where something must end, and what adds to it.
LIMITS = {"worker_kill": 0.2, "worker_stop": 4.5, "client_kill": 1.0, "cancel": 1.0}
COLUMNS = ("strikes", "calls", "lost", "doubled", "failed")


def judge(call, ends, starts, prefixes):
    """Return what is wrong with one call: "lost", "doubled", "failed", or nothing."""
    if len(ends) > 1 or len(starts) > 1:
        return "doubled"
    if call["want"] == "gone":
        return "failed" if ends else ""
    if not ends:
        return "lost"
    (end,) = ends
    if end["chunks"] > call["chunks"]:
        return "doubled"
    if call["want"] == "whole":
        if end["finish"] != "stop":
            return "failed"
        return "" if end["sha"] == call["sha"] and starts else "lost"
    wanted = ("error", "TRANSPORT") if call["want"] == "error" else ("aborted", "ABORTED")
    if (end["finish"], end["code"]) != wanted:
        return "failed"
    return "" if [end["sha"]] == [p["sha"] for p in prefixes] else "lost"


def noticed(call, facts, struck):
    """Return seconds from the fault to its effect on one call; its longest silence if it lived."""
    ends, stops = facts["end"][call["id"]], facts["stop"][call["id"]]
    if call["want"] == "whole":
        return ends[0]["gap"] if ends else None
    if call["want"] == "error":
        return ends[0]["t"] - struck if ends else None
    if call["want"] == "aborted":
        struck = facts["cancel"][call["id"]][0]["t"]
        if not facts["start"][call["id"]]:
            return 0.0  # cancelled before the provider was asked
    return stops[0]["t"] - struck if stops else float("inf")


def main(path):
    """Print the table; return 0 if every demand is met."""
    facts = defaultdict(lambda: defaultdict(list))
    for line in Path(path).read_text().splitlines():
        entry = json.loads(line)
        facts[entry["k"]][entry.get("id", "")].append(entry)
    (run,) = facts["run"][""]
    struck = {f["e"]: f for f in facts["fault"][""]}
    rows, times = defaultdict(Counter), defaultdict(list)
    wrong = [f"leak: {entry['what']}: {entry['text']}" for entry in facts["leak"][""]]
    rows.update({f: Counter(strikes=n) for f, n in Counter(s["fault"] for s in struck.values()).items()})
    for calls in facts["call"].values():
        (call,) = calls
        found = [facts[kind][call["id"]] for kind in ("end", "start", "prefix")]
        verdict = judge(call, *found)
        rows[call["fault"]].update(calls=1, **{verdict or "fine": 1})
        if verdict:
            wrong.append(f"{call['fault']} {call['id']} {call['want']}: {verdict} {found[0]}")
        seconds = noticed(call, facts, struck[call["e"]]["t"])
        if seconds is not None:
            times[call["fault"], call["want"] == "whole"].append(seconds)
    for (fault, is_whole), values in times.items():
        limit = LIMITS.get(fault, 0) * run["slow"]
        if not is_whole and max(values) > limit:
            wrong.append(f"{fault}: noticed after {max(values):.3f} s, the limit is {limit:g} s")
    head = "".join(f"{name:>9}" for name in COLUMNS)
    print(f"{'fault':<20}{head}{'noticed p50/max s':>20}{'silence p50/max s':>20}")
    for fault, row in sorted(rows.items()):
        pairs = [times[fault, is_whole] for is_whole in (False, True)]
        told = [f"{statistics.median(v):.3f}/{max(v):.3f}" if v else "-" for v in pairs]
        print(f"{fault:<20}{''.join(f'{row[name]:>9}' for name in COLUMNS)}{told[0]:>20}{told[1]:>20}")
        if row["strikes"] < run["least"]:
            wrong.append(f"{fault}: {row['strikes']} strikes, {run['least']} are demanded")
    total = sum(row["calls"] for row in rows.values())
    if total < run["least_calls"] or set(rows) != set(run["faults"]):
        wrong.append(f"{total} calls of {len(rows)} faults are not what was demanded")
    if len(facts["end_of_world"][""]) != run["worlds"]:
        wrong.append("a world did not get to its end")
    wrong += [f"tasks left in agent {e['name']}" for e in facts["closed"][""] if e["tasks"]]
    print(f"seed {run['seed']}: {total} calls, leaks {len(facts['leak'][''])}, wrong {len(wrong)}")
    print("\n".join(wrong[:40]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
