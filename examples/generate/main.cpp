// Generates text with a Llama model (docs/serving.md): several prompts run together over a paged
// cache. MODEL is a GGUF file, or a folder of Hugging Face with config.json, tokenizer.json and
// safetensors files in f32, f16 or bf16.
//
//   example_generate MODEL [options] PROMPT...
//
//   --tokens N       tokens to generate for each prompt at most (64)
//   --cache TYPE     how keys and values are stored: f32, bf16, f16, q8_0, q4_0 (f16)
//   --weights TYPE   what products read: f32, bf16, f16 (what the file has)
//   --draft N        tokens of a draft, found in the text so far and verified in one step (0)
//   --batch N        prompts that run together at most (16)
//   --chunk N        rows of a prompt in a step at most (128)
//   --page N, --pages N   keys of a page (32); pages of the cache (as all prompts need)
//   --threads N      (as many as there are CPUs)
//   --file PATH      a prompt from a file
//   --logits PATH    writes the logits of every token, for tests: i32 prompt, position, token, and
//                    f32 [vocabulary]
//
// The text goes to stdout; rates, of steps with rows of a prompt and of others, to stderr.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "attn/attn.hpp"
#include "engine.hpp"
#include "model.hpp"
#include "model_file.hpp"
#include "tokenizer.hpp"

namespace {

struct Options {
  std::string model{}, logits{};
  std::vector<std::string> prompts{};
  generate::EngineOptions engine{};
  std::optional<attn::DType> weights{};
  int tokens = 64;
};

int number(const std::string& option, const std::string& text, int least) {
  int x = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
  if (error != std::errc{} || end != text.data() + text.size() || x < least || x > 1 << 20) {
    throw std::runtime_error(option + " is " + text + "; accepted are numbers from " +
                             std::to_string(least) + " to " + std::to_string(1 << 20));
  }
  return x;
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + ": it cannot be opened");
  return {std::istreambuf_iterator<char>(file), {}};
}

attn::CacheType cache_type(const std::string& text) {
  const attn::CacheType type = attn::parse_cache_type(text);
  for (const char* accepted : {"f32", "bf16", "f16", "q8_0", "q4_0"}) {
    if (text == accepted) return type;
  }
  throw std::runtime_error("--cache is " + text + "; accepted are f32, bf16, f16, q8_0 and q4_0");
}

attn::DType weight_type(const std::string& text) {
  if (text == "f32" || text == "bf16" || text == "f16") return attn::parse_dtype(text);
  throw std::runtime_error("--weights is " + text + "; accepted are f32, bf16 and f16");
}

Options parse(const std::vector<std::string>& arguments) {
  Options o;
  int threads = attn::get_num_threads();
  const std::map<std::string, std::pair<int*, int>> numbers{
      // and the least
      {"--tokens", {&o.tokens, 1}},      {"--draft", {&o.engine.draft, 0}},
      {"--batch", {&o.engine.batch, 1}}, {"--chunk", {&o.engine.chunk, 1}},
      {"--page", {&o.engine.page, 1}},   {"--pages", {&o.engine.pages, 1}},
      {"--threads", {&threads, 1}},
  };
  for (auto at = arguments.begin(); at != arguments.end(); ++at) {
    if (!at->starts_with("--")) {
      (o.model.empty() ? o.model : o.prompts.emplace_back()) = *at;
      continue;
    }
    const std::string& option = *at;
    if (++at == arguments.end()) throw std::runtime_error("nothing follows " + option);
    if (const auto found = numbers.find(option); found != numbers.end()) {
      *found->second.first = number(option, *at, found->second.second);
    } else if (option == "--cache") {
      o.engine.cache = cache_type(*at);
    } else if (option == "--weights") {
      o.weights = weight_type(*at);
    } else if (option == "--file") {
      o.prompts.push_back(contents(*at));
    } else if (option == "--logits") {
      o.logits = *at;
    } else {
      throw std::runtime_error("there is no option " + option);
    }
  }
  attn::set_num_threads(threads);
  if (o.prompts.empty()) {
    throw std::runtime_error("usage: example_generate MODEL [options] PROMPT...");
  }
  return o;
}

// Tokens and seconds of steps with rows of a prompt, and of others.
struct Rate {
  int tokens = 0;
  double seconds = 0, processor = 0;  // of all threads

  void print(const char* what) const {
    std::fprintf(stderr, "%s: %d tokens in %.3f s, %.1f tokens/s, %.3f s of processor time\n", what,
                 tokens, seconds, tokens / std::max(seconds, 1e-9), processor);
  }
};

void run_all(generate::Engine& engine) {
  Rate prompts, others;
  for (;;) {
    const auto start = std::chrono::steady_clock::now();
    const std::clock_t processor = std::clock();
    if (!engine.step()) break;
    const generate::Engine::Counts& counts = engine.counts();
    Rate& rate = counts.last_prompt_rows != 0 ? prompts : others;
    rate.tokens += counts.last_prompt_rows != 0 ? counts.last_prompt_rows : counts.last_generated;
    rate.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    rate.processor += static_cast<double>(std::clock() - processor) / CLOCKS_PER_SEC;
  }
  prompts.print("prompts");
  others.print("decoding");
  std::fprintf(stderr, "%d steps, %d of %d drafted tokens accepted\n", engine.counts().steps,
               engine.counts().accepted, engine.counts().drafted);
}

void write(std::ofstream& to, const void* data, std::size_t bytes) {
  to.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
}

void run(const Options& o) {
  generate::ModelFile file(o.model);
  const generate::Tokenizer tokenizer(file);
  generate::Model model(file, o.weights);
  generate::Engine engine(model, o.engine);
  for (const std::string& prompt : o.prompts) engine.add(tokenizer.encode(prompt), o.tokens);

  engine.ends = [&](std::int32_t token) { return tokenizer.ends(token); };
  std::vector<std::string> texts = o.prompts;
  engine.generated = [&](const generate::Request& r, std::span<const std::int32_t> fresh,
                         bool done) {
    std::string piece;
    for (const std::int32_t token : fresh) piece += tokenizer.decode(token);
    if (o.prompts.size() == 1) {
      std::cout << piece << (done ? "\n" : "") << std::flush;
      return;
    }
    std::string& text = texts[static_cast<std::size_t>(r.id)];
    text += piece;
    if (done) std::cout << "--- " << r.id + 1 << "\n" << text << std::endl;
  };
  std::ofstream logits;
  if (!o.logits.empty()) {
    logits.open(o.logits, std::ios::binary);
    engine.seen = [&](const generate::Request& r, int position, std::span<const float> row) {
      const std::int32_t head[] = {r.id, position, r.tokens[static_cast<std::size_t>(position)]};
      write(logits, head, sizeof head);
      write(logits, row.data(), row.size_bytes());
    };
  }
  if (o.prompts.size() == 1) std::cout << o.prompts[0] << std::flush;
  run_all(engine);
  if (!o.logits.empty() && !logits.flush()) throw std::runtime_error(o.logits + ": not written");
}

}  // namespace

int main(int argc, char** argv) {
  std::string said;
  try {
    const Options options = parse({argv + 1, argv + argc});
    said = options.model + ": ";
    run(options);
    return 0;
  } catch (const std::exception& e) {
    said += e.what();
  }
  // Names in a file may hold anything.
  std::replace_if(
      said.begin(), said.end(), [](unsigned char c) { return c < 32 || c == 127; }, '?');
  std::fprintf(stderr, "generate: %s\n", said.c_str());
  return 1;
}
