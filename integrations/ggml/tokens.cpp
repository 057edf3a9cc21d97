// Tokens a second of processor time of a model, on one thread: a prompt in chunks of 512 tokens,
// and 32 tokens one by one after 512, 2048 and 8192 of it.
//   [GGML_BACKEND_PATH=libggml-attn.so] ggml-attn-tokens MODEL.gguf [f16 | q8_0]
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

namespace {

// Of the process, which neighbours on a busy machine change little.
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Seconds that so many tokens more take, in calls of so many.
double seconds(llama_context* context, int tokens, int in_a_call) {
  const double start = processor_seconds();
  for (int done = 0; done < tokens; done += in_a_call) {
    std::vector<llama_token> of(static_cast<std::size_t>(in_a_call));
    for (llama_token& token : of) token = std::rand() % 40000 + 100;
    if (llama_decode(context, llama_batch_get_one(of.data(), in_a_call)) != 0) std::abort();
  }
  return processor_seconds() - start;
}

}  // namespace

int main(int argc, char** argv) {
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  ggml_backend_load_all();
  llama_model* model =
      argc > 1 ? llama_model_load_from_file(argv[1], llama_model_default_params()) : nullptr;
  if (model == nullptr) {
    std::fprintf(stderr, "usage: %s MODEL.gguf [f16 | q8_0]\n", argv[0]);
    return 1;
  }
  llama_context_params with = llama_context_default_params();
  with.n_ctx = 8192 + 256;
  with.n_batch = with.n_ubatch = 512;
  with.n_threads = with.n_threads_batch = 1;
  with.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  const bool q8_0 = argc > 2 && std::string(argv[2]) == "q8_0";
  with.type_k = with.type_v = q8_0 ? GGML_TYPE_Q8_0 : GGML_TYPE_F16;
  llama_context* context = llama_init_from_model(model, with);
  if (context == nullptr) return 1;
  const bool attn = ggml_backend_dev_by_name("attn") != nullptr;
  int cached = 0;
  double prompt = 0;
  for (const int length : {512, 2048, 8192}) {
    prompt += seconds(context, length - cached, 512);
    const double decoding = seconds(context, 32, 1);
    llama_memory_seq_rm(llama_get_memory(context), 0, length, -1);
    cached = length;
    std::printf("%s, cache %s, context %4d: prompt %6.1f tokens/s, decoding %6.1f\n",
                attn ? "attn" : "ggml", q8_0 ? "q8_0" : "f16", length, length / prompt,
                32 / decoding);
    std::fflush(stdout);
  }
  llama_free(context);
  llama_model_free(model);
}
