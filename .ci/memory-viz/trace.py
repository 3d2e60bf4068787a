"""Whether a trace for Perfetto keeps to the Trace Event Format: slices nest, counters are numbers.

    python3 trace.py TRACE
"""

import json
import sys

with open(sys.argv[1]) as opened:
    events = json.load(opened)["traceEvents"]
assert {event["ph"] for event in events} == {"M", "X", "C"}
around = []
for event in events:
    if event["ph"] == "X":
        begin, end = event["ts"], event["ts"] + event["dur"]
        while around and around[-1][1] <= begin and around[-1] != (begin, end):
            around.pop()
        assert not around or end <= around[-1][1], event
        around.append((begin, end))
times = [event["ts"] for event in events if event["ph"] == "C"]
assert times == sorted(times)
for event in events:
    assert event["ph"] != "C" or all(type(bytes) is int for bytes in event["args"].values())
