// The peak of a snapshot as pytorch.org/memory_viz counts it, in bytes.
//   node peak.mjs process_alloc_data.mjs SNAPSHOT
import {readFileSync} from 'node:fs';
import {resolve} from 'node:path';

const [page, file] = process.argv.slice(2);
const {process_alloc_data} = await import(resolve(page));
const snapshot = JSON.parse(readFileSync(file));
// What the page does to a file before it counts.
const categories = new Set();
for (const events of snapshot.device_traces) {
  for (const event of events) {
    if ('category' in event) categories.add(event.category);
  }
}
for (const segment of snapshot.segments) {
  let address = segment.address;
  for (const block of segment.blocks) {
    block.addr = address;
    address += block.size;
  }
}
// The page adds it itself, and fails at that.
if (categories.size > 0 && !categories.has('unknown')) throw 'no event is of the category unknown';
snapshot.categories = [...categories];
const peaks = snapshot.device_traces.map((_, device) => {
  const {max_size, max_at_time} = process_alloc_data(snapshot, device, false, 15000);
  return max_at_time.reduce((most, bytes) => Math.max(most, bytes), max_size);
});
console.log(Math.max(...peaks));
