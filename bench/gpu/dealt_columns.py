"""How evenly tiles of a product are dealt whose B has a block mask, by a simulation: the time of the last multiprocessor over the density's share
of a dense product, in the order of columns, by how many blocks a column has (src/cuda/device/matmul/persistent.cuh, ColumnOrder), and by a counter.

  python3 bench/gpu/dealt_columns.py

8192 x 8192 x 8192 in tiles of 128 x 256 on 132 multiprocessors, blocks of 256: 4,096 cycles a block, and 3,900 to begin and end a tile
(docs/log/cuda-matmul.md). Means of 20 masks."""
import heapq, random, statistics

ROWS, COLUMNS, BLOCKS, GROUP, MULTIPROCESSORS = 64, 32, 32, 16, 132
CYCLES_OF_BLOCK, CYCLES_OF_TILE = 4096, 3900


def shares(density, seed):
    """Of a mask: the three ways to deal, and what the tiles take if they were dealt without a rest."""
    chosen = random.Random(seed).sample(range(COLUMNS * BLOCKS), round(density * COLUMNS * BLOCKS))
    blocks = [sum(place % COLUMNS == column for place in chosen) for column in range(COLUMNS)]
    cycles = [count * CYCLES_OF_BLOCK + CYCLES_OF_TILE for count in blocks]
    sorted_columns = sorted(range(COLUMNS), key=lambda column: -blocks[column])

    def tiles(columns_of):
        return [cycles[column] for group in range(ROWS // GROUP) for column in columns_of(group) for _ in range(GROUP)]

    def in_turn(order):
        return max(sum(order[first::MULTIPROCESSORS]) for first in range(MULTIPROCESSORS))

    def by_counter(order):
        busy = [0] * MULTIPROCESSORS
        for tile in order:
            heapq.heapreplace(busy, busy[0] + tile)
        return max(busy)

    as_they_lie = tiles(lambda group: range(COLUMNS))
    there_and_back = tiles(lambda group: sorted_columns[:: 1 if (ROWS // GROUP - 1 - group) % 2 == 0 else -1])
    share = ROWS * sum(blocks) * CYCLES_OF_BLOCK / MULTIPROCESSORS
    return [cost / share for cost in (in_turn(as_they_lie), in_turn(there_and_back), by_counter(as_they_lie), sum(as_they_lie) / MULTIPROCESSORS)]


print("density  as they lie  by blocks  by a counter  together")
for density in (0.5, 0.25, 0.125, 0.0625):
    means = [statistics.mean(values) for values in zip(*(shares(density, seed) for seed in range(20)))]
    print(f"{density:7g}  {means[0]:11.2f}  {means[1]:9.2f}  {means[2]:12.2f}  {means[3]:8.2f}")
