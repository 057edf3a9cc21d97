// Requests that run together over a paged cache: continuous batching, prompts in chunks beside
// requests that decode, and drafts that are verified.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "attn/attn.hpp"
#include "model.hpp"

namespace generate {

struct EngineOptions {
  attn::CacheType cache = attn::CacheType::f16;  // without scales: not i8, e4m3
  int page = 32;                                 // keys of a page
  int pages = 0;    // of the cache; 0: as many as all requests need at once
  int batch = 16;   // requests that run together at most
  int chunk = 128;  // rows of a request in a step at most
  int draft = 0;    // tokens of a draft at most
};

struct Request {
  int id = 0;
  std::vector<std::int32_t> tokens{};  // prompt, what was generated, then the draft
  int prompt = 0, limit = 0;           // of all tokens, limit included: no more are generated
  int cached = 0;                      // tokens whose keys and values are in the cache
  int drafted = 0;
  std::vector<std::int32_t> pages{};

  int size() const { return static_cast<int>(tokens.size()); }
};

class Engine {
 public:
  Engine(Model& model, const EngineOptions& options) : model_(model), options_(options) {}

  // Before the first step. `fresh`: tokens to generate at most. Throws std::runtime_error where the
  // prompt is empty or the cache has too few pages for it.
  void add(std::vector<std::int32_t> prompt, int fresh);
  bool step();  // false: no request is left

  // Says which tokens end a text.
  std::function<bool(std::int32_t token)> ends = [](std::int32_t) { return false; };
  // Called with tokens as they are generated, and whether these are the last ones of a request.
  std::function<void(const Request&, std::span<const std::int32_t> fresh, bool done)> generated{};
  // If given, called with the logits of each token of a request, once.
  std::function<void(const Request&, int position, std::span<const float> logits)> seen{};

  struct Counts {
    int steps = 0, drafted = 0, accepted = 0;
    int last_prompt_rows = 0, last_generated = 0;  // of the last step
  };
  const Counts& counts() const { return counts_; }

 private:
  void start();
  void admit();
  void propose(Request& r) const;
  void append(int layer, const Activations& x, const std::vector<std::int32_t>& starts,
              const std::vector<std::int32_t>& positions, const std::vector<std::int32_t>& table);
  void sample(const Activations& x, const std::vector<std::int32_t>& starts);
  bool accept(Request& r, int last_row);
  std::span<const float> logits_of(int row) const;
  int pages_of(const Request& r) const { return (r.limit + options_.page - 1) / options_.page; }

  Model& model_;
  EngineOptions options_;
  attn::Problem problem_{};
  attn::AppendProblem append_{};
  int width_ = 0;  // of the page table
  struct Layer {
    std::vector<std::byte> bytes_k, bytes_v;
    attn::Tensor k, v;  // [pages, page, heads_k, row_size]
  };
  std::vector<Layer> cache_{};
  std::vector<std::int32_t> free_pages_{};
  std::deque<Request> waiting_{};
  std::vector<Request> running_{};
  std::vector<std::int32_t> rows_{};            // those whose logits are computed
  const std::vector<float>* logits_ = nullptr;  // of rows_
  Counts counts_{};
};

}  // namespace generate
