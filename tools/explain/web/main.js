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
    "its large memory delivers numbers, so what counts is how many bytes cross between the large memory and the small one on the chip. ",
  html("strong", {}, times > 1.05 ? `FlashAttention-2 computes exactly this with ${textOfRatio(times)} times less memory ` +
    "traffic than standard attention" : "FlashAttention-2 computes exactly this without the matrix of scores in memory"),
  empty > 0 ? `, and here ${Math.round(100 * empty / (empty + full + mixed))}\u00a0% of the tiles need no work at all.` : ".");
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

// The three thoughts behind the algorithm, each with a link to a step that shows it on this problem.
function showIdea(data) {
  const { sample, blocks } = startOfWalks(data);
  const link = (algorithm, words, isShown) => {
    const index = algorithm.run(sample, blocks).steps.findIndex(isShown);
    return index < 0 ? null : html("a", { href: `#${algorithm.name}/${blocks.q}x${blocks.k}/${index + 1}` }, words);
  };
  const rescales = (step) => step.line === "rescale" && mostRescaled(step) !== null;
  const tile = (step) => step.line === "scores";
  const card = (title, text, ...links) => html("li", {}, html("h2", {}, title), html("p", {}, text),
    html("p", { class: "links" }, links.find((element) => element !== null) ?? ""));
  show(byId("idea"),
    card("Work in tiles", "Standard attention writes the matrix of scores to slow memory, and reads it again for the softmax. " +
      "A tile of it, some queries by some keys, fits on the chip: it is used there and forgotten.",
    link(kFlashAttention2, "See one tile", tile)),
    card("Softmax without the whole row", "A softmax needs the largest score of a row before the last keys have come. So each row " +
      "keeps the largest so far, m. When a larger one comes, what was summed is multiplied by α = e^(m old − m new), " +
      "and is right again.",
    link(kFlashAttention2, "Watch a row rescale", rescales), link(kOnline, "Watch a row rescale", rescales)),
    card("Compute again, do not keep", "Gradients need the weights once more. Forward keeps one number a row, LSE = m + log l; " +
      "backward makes each tile's weights from it, which is faster than reading them.",
    link(kBackward, "See the weights come back", (step) => step.line === "recompute")));
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
  showIdea(data);
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
