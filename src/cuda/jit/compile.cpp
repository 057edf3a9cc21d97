#include "cuda/jit/compile.hpp"

#include <fmt/format.h>

#include <chrono>

#include "attn/error.hpp"
#include "cuda/driver/nvrtc.hpp"

namespace attn::cuda {
namespace {

// A program of NVRTC, destroyed at the end.
class Program {
 public:
  Program(const Nvrtc& nvrtc, const Source& source) : nvrtc_(nvrtc) {
    const EmbeddedHeaders& headers = embedded_headers();
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

std::vector<std::string> options_of(const Source& source, Arch arch) {
  std::vector<std::string> options{"--gpu-architecture=" + to_string(arch), "-std=c++20",
                                   "--ptxas-options=-v", "--ptxas-options=--warn-on-spills"};
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

}  // namespace

Compiled compile(const Source& source, Arch arch, const Context&) {
  const auto start = std::chrono::steady_clock::now();
  const Nvrtc& compiler = nvrtc();
  Program program(compiler, source);
  const nvrtcResult result = program.compile(options_of(source, arch));
  const std::string log = program.log();
  const std::string version =
      fmt::format("NVRTC {}.{}", compiler.version / 1000, compiler.version % 1000 / 10);
  if (result != NVRTC_SUCCESS) {
    const bool unknown_arch =
        result == NVRTC_ERROR_INVALID_OPTION && log.find("gpu-architecture") != std::string::npos;
    throw Error(
        unknown_arch ? ErrorCode::unsupported : ErrorCode::internal,
        fmt::format("{} does not compile {} for {} ({}):{}", version, source.name, to_string(arch),
                    compiler.nvrtcGetErrorString(result), first_errors(log)));
  }
  Compiled compiled;
  compiled.cubin = program.cubin();
  compiled.report = parse_log(log, source.entry);
  compiled.report.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return compiled;
}

}  // namespace attn::cuda
