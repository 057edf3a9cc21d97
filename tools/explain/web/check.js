// The page checks itself: every walk against the fp64 reference, every count against its formula.
"use strict";

const kAlgorithms = [kThreePass, kOnline, kStandard, kFlashAttention, kFlashAttention2, kDecoding,
  kBlockSparse, kBackward];
// The walks compute in double precision as the reference does; they differ by the order of sums.
const kTolerance = 1e-9;
const kSampleBlocks = [{ q: 4, k: 4 }, { q: 1, k: 1 }, { q: 3, k: 5 }, { q: 16, k: 16 }];

// {"passed", "error": largest difference from the reference, "counts": largest difference between
// the bytes that a walk moved and the formula, "models": bytes by phase and algorithm for the tiles
// of the map}.
function selfCheck(data) {
  const sample = new Sample(data.sample, data.problem.dtype_bytes);
  let error = 0;
  let counts = 0;
  for (const blocks of kSampleBlocks) {
    for (const algorithm of kAlgorithms) {
      const w = algorithm.run(sample, blocks);
      const results = w.backward ? ["dq", "dk", "dv"] : ["o", "lse"];
      for (const name of results) {
        error = Math.max(error, largestDifference(w.state[name], sample.reference[name]));
      }
      const modelled = w.backward ? "flash_attention_2" : algorithm.name;
      if (!kModelled.includes(modelled)) continue;
      const expected = modelOf(w.backward ? "backward" : "forward", modelled, sample.size,
        sample.tiling(blocks));
      counts = Math.max(counts, Math.abs(expected.bytesRead - w.moved.bytesRead),
        Math.abs(expected.bytesWritten - w.moved.bytesWritten));
    }
  }
  const models = {};
  for (const phase of ["forward", "backward"]) {
    const size = sizesOf(data.problem);
    const row = (t) => ({ read_bytes: t.bytesRead, written_bytes: t.bytesWritten });
    models[phase] = { compulsory: row(compulsoryOf(phase, size)) };
    for (const algorithm of kModelled) {
      models[phase][algorithm] = row(modelOf(phase, algorithm, size, tilingOfMap(data)));
    }
  }
  return { passed: error <= kTolerance && counts === 0, error, counts, models };
}

function tilingOfMap(data) {
  return data.tilings.find((tiling) =>
    tiling.block_q === data.map.block_q && tiling.block_k === data.map.block_k);
}
