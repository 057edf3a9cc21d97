"""What is known of Path-X's images without looking at a curve, and how fast they are made.

python -m experiments.path_x.known [COUNT]        10,000 images of each kind take some minutes
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from ..long_range_arena.tasks import compiled
from .images import Stream
from .run import judged

KINDS = ((32, 14), (64, 14), (128, 14), (256, 14), (32, 6), (64, 6))


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        program = compiled("pathfinder", Path(name))
        for size, dashes in KINDS:
            for split in ("test", "even"):
                stream = Stream(program, Path(name), size, dashes, 1, split, 1, count)
                start = time.time()
                _, labels, discs = stream.read(0)
                rate = count / (time.time() - start)
                row = judged(0, labels, discs)
                known = f"by the discs' distance {100 * row['distance_of_discs']:.1f} %"
                share = f"class 1 {100 * labels.mean():.1f} %"
                kind = f"{size} x {size}, {dashes} dashes, {split}"
                print(f"{kind}: {share}, {known}, {rate:.0f} images/s", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
