// Puts the page together; a page without the data element is a test of the functions.
"use strict";

function summarise(data) {
  const { problem, plan } = data;
  const size = sizesOf(problem);
  const tiling = startTiling(data);
  const standard = modelOf("forward", "standard", size, tiling).bytes;
  const flash = modelOf("forward", "flash_attention_2", size, tiling).bytes;
  byId("descriptor").textContent = problem.text;
  const times = standard / flash;
  const { empty, full, mixed } = data.map.counts;
  show(byId("summary"), "Each query is compared with the keys that it may see; the scores become weights that " +
    "sum to one; the output is the average of the values with these weights. A processor does this arithmetic faster than " +
    "its large memory delivers numbers, so what counts is how many bytes cross between that and the small memory on the chip. ",
  html("strong", {}, times > 1.05 ? `FlashAttention-2 computes exactly this with ${textOfRatio(times)} times less memory ` +
    "traffic than standard attention" : "FlashAttention-2 computes exactly this without the matrix of scores in memory"),
  empty > 0 ? `, and here ${Math.round(100 * empty / (empty + full + mixed))} % of the tiles need no work at all.` : ".");
  const facts = [
    ["sequences", textOfCount(problem.batch)],
    ["queries × keys", `${textOfCount(problem.seqlen_q)} × ${textOfCount(problem.seqlen_k)}`],
    ["heads", problem.heads_q === problem.heads_k ? textOfCount(problem.heads_q)
      : `${problem.heads_q}, on ${problem.heads_k} of K and V`],
    ["head size", problem.head_dim === problem.head_dim_v ? problem.head_dim
      : `${problem.head_dim}, V ${problem.head_dim_v}`],
    ["type", problem.dtype],
    ["mask", problem.mask ?? "none"],
    ...(problem.score ? [["score", problem.score]] : []),
    ...(problem.sink ? [["sink", "a logit per head in the denominator"]] : []),
    ...(problem.dropout > 0 ? [["dropout", problem.dropout]] : []),
    ...(problem.batch * problem.heads_q > 1
      ? [["shown", `sequence ${problem.shown_batch}, head ${problem.shown_head}`]] : []),
  ];
  show(byId("facts"), ...facts.map(([name, value]) =>
    html("div", {}, html("dt", {}, name), html("dd", {}, String(value)))));
  showPlan(plan, problem.phase);
}

function showPlan(plan, phase) {
  const many = (n, word) => `${textOfCount(n)} ${word}${n === 1 ? "" : "s"}`;
  const cpu = plan.backend === "cpu";
  byId("plan-text").textContent = [
    `${phase}: ${plan.algorithm} on the ${plan.backend} backend` +
      (cpu ? `, ${plan.isa}, ${plan.operands} operands` : ""),
    ...(cpu ? [`blocks of ${many(plan.block_q, "row")} × ${many(plan.block_k, "key")}; ${many(plan.tasks, "task")}, ` +
      `${many(plan.rows_per_task, "row")} a task, ${many(plan.num_splits, "part")} of the keys`] : []),
    `at most ${textOfBytes(plan.workspace_bytes)} of workspace`,
    ...plan.reasons.map((reason) => `because: ${reason}`),
  ].join("\n");
}

function reportSelfCheck(data) {
  const result = selfCheck(data);
  const element = byId("self-check");
  element.dataset.result = JSON.stringify(result);
  element.classList.toggle("failed", !result.passed);
  element.textContent = result.passed
    ? `✓ This page has checked itself: every algorithm above ends within ${result.error.toExponential(0)} of the ` +
      "library's fp64 reference, and the bytes that each walk counted are those of its formula."
    : `✗ This page is wrong: a walk ends ${result.error} from the reference, or its bytes ${result.counts} from ` +
      "their formula.";
}

function start(data) {
  summarise(data);
  reportSelfCheck(data);
  new TileMap(data);
  new BytesPanel(data);
  new Player(data);
}

addEventListener("error", (event) => {
  byId("self-check").classList.add("failed");
  byId("self-check").textContent = `✗ This page is wrong: ${event.message}`;
});
const kDataElement = document.getElementById("data");
if (kDataElement) start(JSON.parse(kDataElement.textContent));
