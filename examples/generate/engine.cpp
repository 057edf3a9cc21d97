#include "engine.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace generate {
namespace {

attn::Tensor of(const std::vector<std::int32_t>& x) {
  return attn::tensor(x.data(), {std::ssize(x)});
}
attn::Tensor of(const std::vector<std::int32_t>& x, std::int64_t width) {
  return attn::tensor(x.data(), {std::ssize(x) / width, width});
}

}  // namespace

void Engine::add(std::vector<std::int32_t> prompt, int fresh) {
  Request r;
  r.id = static_cast<int>(waiting_.size());
  r.prompt = static_cast<int>(prompt.size());
  r.limit = r.prompt + fresh;
  r.tokens = std::move(prompt);
  if (r.prompt == 0) throw std::runtime_error("a prompt is empty; accepted is one token and more");
  if (options_.pages != 0 && pages_of(r) > options_.pages) {
    throw std::runtime_error("a prompt of " + std::to_string(r.prompt) + " tokens, and " +
                             std::to_string(fresh) + " to generate, need " +
                             std::to_string(pages_of(r)) + " pages; the cache has " +
                             std::to_string(options_.pages));
  }
  width_ = std::max(width_, pages_of(r));
  waiting_.push_back(std::move(r));
}

// The problem of all calls and the cache, which are as large as the requests ask for.
void Engine::start() {
  int pages = options_.pages;
  for (const Request& r : waiting_) {
    if (options_.pages == 0) pages += pages_of(r);
  }
  problem_ = {.seqlen_q = options_.chunk, .mask = attn::causal()};
  problem_.layout_q = attn::Layout::packed;
  problem_.layout_k = attn::Layout::paged;
  problem_.type_k = problem_.type_v = options_.cache;
  append_ = {
      .type_k = options_.cache, .type_v = options_.cache, .rope_pairs = model_.config().rope_pairs};
  const Config& c = model_.config();
  const std::int64_t row = attn::row_size(options_.cache, c.head_dim);
  const attn::DType dtype = attn::storage_dtype(options_.cache);
  const std::size_t bytes =
      attn::size_of(dtype) * static_cast<std::size_t>(row) * static_cast<std::size_t>(pages) *
      static_cast<std::size_t>(options_.page) * static_cast<std::size_t>(c.heads_k);
  cache_.resize(static_cast<std::size_t>(c.layers));
  for (Layer& layer : cache_) {
    const auto make = [&](std::vector<std::byte>& store) {
      store.resize(bytes);
      return attn::tensor(static_cast<void*>(store.data()), dtype,
                          {pages, options_.page, c.heads_k, row});
    };
    layer.k = make(layer.bytes_k);
    layer.v = make(layer.bytes_v);
  }
  free_pages_.resize(static_cast<std::size_t>(pages));
  std::iota(free_pages_.rbegin(), free_pages_.rend(), 0);
}

// Those that wait, in their order, while there are pages for all that they may become.
void Engine::admit() {
  while (!waiting_.empty() && std::ssize(running_) < options_.batch &&
         pages_of(waiting_.front()) <= std::ssize(free_pages_)) {
    Request& r = waiting_.front();
    const auto first = free_pages_.end() - pages_of(r);
    r.pages.assign(first, free_pages_.end());
    free_pages_.erase(first, free_pages_.end());
    running_.push_back(std::move(r));
    waiting_.pop_front();
  }
}

// Prompt lookup: what followed when the last two tokens stood next to each other before, the last
// time. No more than may be accepted beside the token that follows anyhow.
void Engine::propose(Request& r) const {
  const int most = std::min({options_.draft, options_.chunk - 1, r.limit - r.size() - 1});
  if (r.size() < 3 || most < 1) return;
  const auto end = r.tokens.end();
  const auto found = std::find_end(r.tokens.begin(), end - 1, end - 2, end);
  if (found == end - 1) return;
  const auto first = found + 2;
  const std::vector<std::int32_t> draft(first, first + std::min<std::ptrdiff_t>(most, end - first));
  r.drafted = static_cast<int>(draft.size());
  r.tokens.insert(r.tokens.end(), draft.begin(), draft.end());
}

bool Engine::step() {
  if (cache_.empty()) start();
  admit();
  if (running_.empty()) return false;
  counts_.last_prompt_rows = counts_.last_generated = 0;
  std::vector<std::int32_t> tokens, positions, starts{0}, used, table;
  for (Request& r : running_) {
    if (r.cached >= r.prompt) propose(r);  // a draft behind its tokens
    const int rows = std::min(options_.chunk, r.size() - r.cached);
    for (int i = 0; i < rows; ++i) {
      tokens.push_back(r.tokens[r.cached]);
      positions.push_back(r.cached++);
    }
    starts.push_back(starts.back() + rows);
    used.push_back(r.cached);  // a row sees its own key too
    table.insert(table.end(), r.pages.begin(), r.pages.end());
    table.resize(used.size() * width_, -1);  // entries past a length are not read
  }
  Activations& x = model_.embed(tokens);
  for (int layer = 0; layer < model_.config().layers; ++layer) {
    model_.project(layer, x);                    // norm and products: q, k, v
    append(layer, x, starts, positions, table);  // rotates q and k; k and v to their pages
    attn::Inputs in{.q = x.q, .k = cache_[layer].k, .v = cache_[layer].v};
    in.cu_seqlens_q = of(starts);
    in.seqused_k = of(used);
    in.page_table = of(table, width_);
    attn::forward(problem_, in, {.o = x.o});
    model_.finish(layer, x);  // output projection and feed-forward, which are added to x
  }
  sample(x, starts);  // the next token of each, and what of its draft was right
  return true;
}

void Engine::append(int layer, const Activations& x, const std::vector<std::int32_t>& starts,
                    const std::vector<std::int32_t>& positions,
                    const std::vector<std::int32_t>& table) {
  const Layer& cache = cache_[static_cast<std::size_t>(layer)];
  attn::AppendInputs in{.q = x.q, .k = x.k, .v = x.v};
  in.cu_seqlens = of(starts);
  in.positions = of(positions);
  in.page_table = of(table, width_);
  in.inv_freq = model_.inv_freq();
  attn::append_kv(append_, in, {.q = x.q, .k = cache.k, .v = cache.v});
}

void Engine::sample(const Activations& x, const std::vector<std::int32_t>& starts) {
  rows_.clear();
  for (std::size_t b = 0; b < running_.size(); ++b) {
    const Request& r = running_[b];
    const bool whole = r.cached == r.size();  // no prompt is left
    const int first = seen ? starts[b] : starts[b + 1] - (whole ? 1 + r.drafted : 0);
    for (int row = first; row < starts[b + 1]; ++row) rows_.push_back(row);
  }
  logits_ = &model_.logits(x, rows_);
  ++counts_.steps;
  std::size_t left = 0;
  for (std::size_t b = 0; b < running_.size(); ++b) {
    Request& r = running_[b];
    const int rows = starts[b + 1] - starts[b];
    counts_.last_prompt_rows += std::clamp(r.prompt - (r.cached - rows), 0, rows);
    for (int i = 0; seen && i < rows - r.drafted; ++i) {
      seen(r, r.cached - rows + i, logits_of(starts[b] + i));
    }
    if (r.cached < r.size() || !accept(r, starts[b + 1] - 1)) {
      if (left != b) running_[left] = std::move(r);
      ++left;
      continue;
    }
    free_pages_.insert(free_pages_.end(), r.pages.begin(), r.pages.end());
  }
  running_.resize(left);
}

std::span<const float> Engine::logits_of(int row) const {
  const auto at = std::lower_bound(rows_.begin(), rows_.end(), row) - rows_.begin();
  const auto size = static_cast<std::size_t>(model_.config().vocabulary);
  return std::span(*logits_).subspan(static_cast<std::size_t>(at) * size, size);
}

// Takes tokens of the draft while each is the most likely one, and then that one. last_row: of the
// last token. True: the request has ended.
bool Engine::accept(Request& r, int last_row) {
  const int drafted = std::exchange(r.drafted, 0), before = r.size() - drafted;
  counts_.drafted += drafted;
  bool done = false;
  for (int i = 0; i <= drafted; ++i) {
    const std::span<const float> logits = logits_of(last_row - drafted + i);
    if (seen && i > 0) seen(r, before + i - 1, logits);
    const auto next =
        static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    const auto at = static_cast<std::size_t>(before + i);
    const bool right = i < drafted && r.tokens[at] == next;
    counts_.accepted += right ? 1 : 0;
    if (!right) r.tokens.resize(at);
    if (!right) r.tokens.push_back(next);
    done = ends(next) || before + i + 1 == r.limit;
    if (done) r.tokens.resize(at + 1);
    if (done || !right) break;
  }
  r.cached = r.size() - 1;  // keys of tokens that were wrong are written over
  counts_.last_generated += r.size() - before;
  if (generated) generated(r, std::span(r.tokens).subspan(static_cast<std::size_t>(before)), done);
  return done;
}

}  // namespace generate
