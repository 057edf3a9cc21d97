"""What the benchmarks of this folder share: how a call is timed, and how results are kept."""

import json
import time


def microseconds(call, number, repeat, before=None):
    """The least mean of `number` calls over `repeat` repeats: other work on the machine only adds.

    before: called ahead of each repeat, and not timed."""
    least = float("inf")
    for _ in range(repeat):
        if before is not None:
            before()
        start = time.perf_counter()
        for _ in range(number):
            call()
        least = min(least, time.perf_counter() - start)
    return 1e6 * least / number


def save(path, results):
    """Writes the results as JSON; nothing where there is no path."""
    if not path:
        return
    with open(path, "w") as file:
        json.dump(results, file, indent=1)
        file.write("\n")
