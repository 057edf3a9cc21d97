#include "cuda/jit/compile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "attn/error.hpp"
#include "core/first_made.hpp"
#include "core/fork_safe.hpp"
#include "core/text/echo.hpp"
#include "cuda/driver/nvrtc.hpp"
#include "cuda/jit/cache_entry.hpp"
#include "cuda/jit/disk_cache.hpp"
#include "cuda/jit/dump.hpp"

namespace attn::cuda {
namespace {

// A program of NVRTC, destroyed at the end.
class Program {
 public:
  Program(const Nvrtc& nvrtc, const Source& source) : nvrtc_(nvrtc) {
    const core::EmbeddedFiles& headers = embedded_headers();
    std::vector<const char*> texts, names;
    for (int i = 0; i < headers.count; ++i) {
      texts.push_back(headers.begin[i].text);
      names.push_back(headers.begin[i].name);
    }
    const std::string file = source.name + ".cu";
    require(nvrtc_.nvrtcCreateProgram(&program_, source.text.c_str(), file.c_str(), headers.count,
                                      texts.data(), names.data()),
            "nvrtcCreateProgram");
  }
  ~Program() { nvrtc_.nvrtcDestroyProgram(&program_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  nvrtcResult compile(const std::vector<std::string>& options) {
    std::vector<const char*> words;
    for (const std::string& option : options) words.push_back(option.c_str());
    return nvrtc_.nvrtcCompileProgram(program_, static_cast<int>(words.size()), words.data());
  }

  std::string log() const {
    std::string text = get<std::string>(nvrtc_.nvrtcGetProgramLogSize, nvrtc_.nvrtcGetProgramLog);
    return text.substr(0, text.find('\0'));
  }
  std::vector<char> cubin() const {
    return get<std::vector<char>>(nvrtc_.nvrtcGetCUBINSize, nvrtc_.nvrtcGetCUBIN);
  }
  std::string ptx() const {
    std::string text = get<std::string>(nvrtc_.nvrtcGetPTXSize, nvrtc_.nvrtcGetPTX);
    return text.substr(0, text.find('\0'));
  }

  void require(nvrtcResult result, std::string_view call) const {
    if (result == NVRTC_SUCCESS) return;
    throw Error(
        result == NVRTC_ERROR_OUT_OF_MEMORY ? ErrorCode::out_of_memory : ErrorCode::internal,
        fmt::format("{} gives {}", call, nvrtc_.nvrtcGetErrorString(result)));
  }

 private:
  template <class Bytes>
  Bytes get(nvrtcResult (*size_of)(nvrtcProgram, std::size_t*),
            nvrtcResult (*copy)(nvrtcProgram, char*)) const {
    std::size_t size = 0;
    require(size_of(program_, &size), "NVRTC's size of a result");
    Bytes bytes(size, '\0');
    require(copy(program_, bytes.data()), "NVRTC's copy of a result");
    return bytes;
  }

  const Nvrtc& nvrtc_;
  nvrtcProgram program_ = nullptr;
};

std::vector<std::string> options_of(const Nvrtc& compiler, const Source& source, Arch arch) {
  std::vector<std::string> options{"--gpu-architecture=" + to_string(arch), "-std=c++20",
                                   "--ptxas-options=-v", "--ptxas-options=--warn-on-spills"};
  // Since 12.9 NVRTC keeps results of its own where there is a driver, and returns them without the
  // assembler's report.
  constexpr int kCaches = 12090;
  if (compiler.version >= kCaches) options.emplace_back("--no-cache");
  options.insert(options.end(), source.options.begin(), source.options.end());
  return options;
}

// Enough to see what is wrong without a page of templates.
constexpr int kErrorLines = 6;

std::string first_errors(const std::string& log) {
  std::string errors;
  int lines = 0;
  std::size_t begin = 0;
  while (begin < log.size() && lines < kErrorLines) {
    const std::size_t end = std::min(log.find('\n', begin), log.size());
    const std::string line = log.substr(begin, end - begin);
    if (line.find("error") != std::string::npos || line.find("fatal") != std::string::npos) {
      errors += "\n" + line;
      ++lines;
    }
    begin = end + 1;
  }
  return errors.empty() ? "\n" + log.substr(0, 1000) : errors;
}

std::string version_of(const Nvrtc& compiler) {
  return fmt::format("{}.{}", compiler.version / 1000, compiler.version % 1000 / 10);
}

// Everything that the cubin depends on. The library's size tells builds of one version apart.
Sha256::Digest key_of(const Nvrtc& compiler, const Source& source,
                      const std::vector<std::string>& options) {
  Sha256 hash;
  hash.field(version_of(compiler));
  hash.field(std::to_string(compiler.library_bytes));
  hash.field(embedded_headers().hash);
  hash.field(std::to_string(options.size()));
  for (const std::string& option : options) hash.field(option);  // the architecture among them
  hash.field(source.name);
  hash.field(source.entry);
  hash.field(source.text);
  return hash.finish();
}

// The stem of names of files: what people look for, then enough of the key.
std::string stem_of(const Source& source, Arch arch, const Sha256::Digest& key) {
  std::string stem = source.name;
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  std::replace_if(
      stem.begin(), stem.end(), [&](char c) { return !plain(c); }, '_');
  return fmt::format("{}-{}-{}", stem.substr(0, 100), to_string(arch), to_hex(key).substr(0, 32));
}

Compiled run_compiler(const Nvrtc& compiler, const Source& source, Arch arch,
                      const std::vector<std::string>& options, bool with_ptx) {
  Program program(compiler, source);
  const nvrtcResult result = program.compile(options);
  const std::string log = program.log();
  if (result != NVRTC_SUCCESS) {
    const bool unknown_arch =
        result == NVRTC_ERROR_INVALID_OPTION && log.find("gpu-architecture") != std::string::npos;
    throw Error(unknown_arch ? ErrorCode::unsupported : ErrorCode::internal,
                fmt::format("NVRTC {} does not compile {} for {} ({}):{}", version_of(compiler),
                            source.name, to_string(arch), compiler.nvrtcGetErrorString(result),
                            first_errors(log)));
  }
  Compiled compiled;
  compiled.cubin = program.cubin();
  compiled.report = parse_log(log, source.entry);
  if (with_ptx) compiled.ptx = program.ptx();
  return compiled;
}

// A folder that is full or not ours would otherwise be told of at every kernel. `about`: one
// warning each.
void warn_once(const Context& context, const std::string& about, const std::string& message) {
  if (!context.log) return;
  struct Told {
    core::ForkSafe<std::mutex> mutex;
    std::set<std::string> about;
  };
  static constinit core::FirstMade<Told> made;
  Told& told = made.get([] { return Told(); });
  {
    const std::lock_guard lock(told.mutex);
    if (!told.about.insert(about).second) return;
  }
  context.log(message);
}

// `folder` null: no disk cache. `strict`: what is wrong with the cache is thrown, not told.
Compiled compile_with(const Source& source, Arch arch, const Context& context,
                      const std::string* folder, bool strict) {
  const auto start = std::chrono::steady_clock::now();
  const auto or_warn = [&](auto&& call) {
    try {
      call();
    } catch (const Error& error) {
      if (strict || error.code() != ErrorCode::io) throw;
      warn_once(context, *folder,
                fmt::format("{}; kernels are compiled anew in each process", error.what()));
    }
  };
  const Nvrtc& compiler = nvrtc();
  const std::vector<std::string> options = options_of(compiler, source, arch);
  const Sha256::Digest key = key_of(compiler, source, options);
  const std::string stem = stem_of(source, arch, key);
  const Dump dump = dump_from_environment();
  std::unique_ptr<DiskCache> cache;
  if (folder != nullptr) or_warn([&] { cache = std::make_unique<DiskCache>(*folder); });

  std::optional<Compiled> compiled;
  // PTX is not kept.
  if (cache != nullptr && !dump.ptx) {
    if (const std::optional<std::string> bytes = cache->load(stem + ".kernel")) {
      compiled = from_cache_entry(key, *bytes);
    }
  }
  if (compiled) {
    compiled->report.from_cache = true;
  } else {
    compiled = run_compiler(compiler, source, arch, options, dump.ptx);
    if (cache != nullptr) {
      or_warn([&] { cache->store(stem + ".kernel", to_cache_entry(key, *compiled)); });
    }
  }
  compiled->report.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!dump.unknown.empty()) {
    warn_once(context, "ATTN_DUMP",
              fmt::format("ATTN_DUMP names \"{}\"; accepted are source, ptx, cubin and "
                          "report, separated by commas",
                          core::echo(dump.unknown)));
  }
  if (dump.any()) {
    try {
      write_dump(dump, stem, source, *compiled);
    } catch (const Error& error) {
      warn_once(context, dump.folder, error.what());
    }
  }
  return *std::move(compiled);
}

}  // namespace

Compiled compile(const Source& source, Arch arch, const Context& context) {
  const std::optional<std::string> folder = default_cache_folder();
  return compile_with(source, arch, context, folder ? &*folder : nullptr, false);
}

Compiled compile_into(const Source& source, Arch arch, const Context& context,
                      const std::string& folder) {
  return compile_with(source, arch, context, &folder, true);
}

}  // namespace attn::cuda
