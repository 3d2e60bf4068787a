"""PyTorch's own tools read a snapshot: its segments add up, and its events are told.

    python3 sums.py _memory_viz.py SNAPSHOT
"""

import importlib.util
import json
import re
import sys

page, file = sys.argv[1:]
spec = importlib.util.spec_from_file_location("memory_viz", page)
memory_viz = importlib.util.module_from_spec(spec)
spec.loader.exec_module(memory_viz)
with open(file) as opened:
    snapshot = json.load(opened)
# Fails unless the blocks of each segment add up.
told = memory_viz.segsum(snapshot)
assert "segments: 1" in told, told
trace = memory_viz.trace(snapshot)
events = snapshot["device_traces"][0]
for action, line in [("alloc", r"^\w+ = (seg_0|MEM)\["), ("free_completed", "^# free completed for ")]:
    count = len(re.findall(line, trace, re.MULTILINE))
    assert count == sum(event["action"] == action for event in events), (action, count)
