// NVRTC for the emulated GPU: kernels become shared objects, compiled by the host's compiler with
// the headers of device/ in front of those that the library brings.
#include "cuda/driver/nvrtc.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <list>
#include <map>
#include <mutex>
#include <regex>
#include <string>

namespace attn::cuda {
namespace {

using Texts = std::map<std::string, std::string>;  // by the names that sources include

struct Program {
  std::filesystem::path folder, headers;
  std::string log, object;
  const char* level;  // how much it is optimised
};

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void write(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::filesystem::path new_folder() {
  std::string folder = (std::filesystem::temp_directory_path() / "attn_nvrtc_XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) {
    std::fprintf(stderr, "emulated GPU: no folder %s can be made\n", folder.c_str());
    std::abort();
  }
  return folder;
}
void remove_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (std::getenv("ATTN_EMULATED_KEEP") == nullptr) {
    std::filesystem::remove_all(folder, ignored);
  }
}

// Headers of the library in a folder, as long as the process lives.
struct Headers {
  explicit Headers(Texts brought) : folder(new_folder()), texts(std::move(brought)) {
    for (const auto& [name, text] : texts) write(folder / name, text);
  }
  Headers(const Headers&) = delete;
  Headers& operator=(const Headers&) = delete;
  ~Headers() { remove_folder(folder); }

  std::filesystem::path folder;
  Texts texts;
};

// Every program brings the same headers, some fifty: they are written for the first one.
std::filesystem::path folder_of(Texts texts) {
  static std::mutex mutex;
  static std::list<Headers> all;
  const std::lock_guard lock(mutex);
  const auto same = std::ranges::find(all, texts, &Headers::texts);
  return same != all.end() ? same->folder : all.emplace_back(std::move(texts)).folder;
}

Program& of(nvrtcProgram program) { return *reinterpret_cast<Program*>(program); }

// The products, in assembly, give way to those of device/ptx/wgmma.cuh.
std::string without_products(const std::string& text) {
  std::string out;
  std::size_t at = 0;
  while (true) {
    const std::size_t begin = text.find("template <>\nstruct Product", at);
    if (begin == std::string::npos) return out + text.substr(at);
    out += text.substr(at, begin - at);
    at = text.find("\n};\n", begin) + 4;
  }
}

// Tests of these kernels spend their time in products.cpp, in waiting or in the reference, so
// optimising them takes longer than it saves.
const char* level_of(const std::string& text) {
  constexpr std::string_view kQuick[] = {"kernels/forward_sm90", "kernels/backward_sm90",
                                         "kernels/backward_simt", "kernels/backward_standard"};
  return std::ranges::any_of(
             kQuick, [&](std::string_view name) { return text.find(name) != std::string::npos; })
             ? "O0"
             : "O1";
}

// What machine.cpp calls, and the name under which kernels know shared memory.
std::string around(const std::string& text, std::string& tail) {
  std::smatch entry;
  const std::regex pattern(R"(__launch_bounds__\([^)]*\)\s*(\w+)\()");
  const std::string name = std::regex_search(text, entry, pattern) ? entry[1].str() : "none";
  tail = fmt::format(
      "\ntemplate <class... P, std::size_t... I>\n"
      "void attn_call(void (*f)(P...), void** a, std::index_sequence<I...>) {{\n"
      "  f(*static_cast<std::remove_const_t<P>*>(a[I])...);\n}}\n"
      "template <class... P>\nvoid attn_call(void (*f)(P...), void** a) {{\n"
      "  attn_call(f, a, std::index_sequence_for<P...>());\n}}\n"
      "extern \"C\" void attn_emulated_call(void** a) {{ attn_call({}, a); }}\n",
      name);
  constexpr std::string_view kOfFloats[] = {"_simt.cuh", "kernels/backward_sink.cuh",
                                            "_flash_attention.cuh", "ward_standard.cuh"};
  const bool floats = std::ranges::any_of(
      kOfFloats, [&](std::string_view name) { return text.find(name) != std::string::npos; });
  return fmt::format(
      "#include \"precompiled.hpp\"\n"
      "#if defined(__GNUC__) && !defined(__clang__) && !defined(ATTN_PRECOMPILED)\n"
      "#error precompiled.hpp is not read precompiled\n#endif\n"
      "namespace attn::device {{\nextern \"C\" {{\n"
      "alignas(1024) {} attn_emulated_shared[232448 / {}];\n}}\n}}\n"
      "#define memory attn_emulated_shared\n#define shared_floats attn_emulated_shared\n",
      floats ? "float" : "char", floats ? 4 : 1);
}

}  // namespace

extern "C" {

nvrtcResult nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return NVRTC_SUCCESS;
}
const char* nvrtcGetErrorString(nvrtcResult) { return "the host's compiler failed"; }
nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char*, int count,
                               const char* const* texts, const char* const* names) {
  Texts headers;
  for (int i = 0; i < count; ++i) headers[names[i]] = texts[i];
  auto* made = new Program{new_folder(), folder_of(std::move(headers)), {}, {}, level_of(source)};
  std::string tail;
  const std::string head = around(source, tail);
  write(made->folder / "kernel.cpp", head + without_products(source) + tail);
  *program = reinterpret_cast<nvrtcProgram>(made);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  remove_folder(of(*program).folder);
  delete &of(*program);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int, const char* const*) {
  Program& p = of(program);
  const std::string at = p.folder.string();
  // Without libraries, which take the linker a fifth of a small kernel: the process has them.
  const std::string command =
      fmt::format(ATTN_KERNEL_COMPILER
                  " -{0} -I" ATTN_PRECOMPILED "/{0} " ATTN_KERNEL_FLAGS
                  " -shared -nostdlib -I{1} -o {2}/kernel.so {2}/kernel.cpp {3} >{2}/log 2>&1",
                  p.level, p.headers.string(), at, ATTN_EMULATOR_LIBRARY);
  const int status = std::system(command.c_str());
  p.log = read(p.folder / "log") + "ptxas info    : Used 1 registers\n";
  if (status != 0) return static_cast<nvrtcResult>(6);
  const std::string object = read(p.folder / "kernel.so");
  const std::size_t bytes = object.size();
  p.object.assign(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  p.object += object;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, std::size_t* size) {
  *size = of(program).log.size() + 1;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log) {
  std::strcpy(log, of(program).log.c_str());
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetPTXSize(nvrtcProgram, std::size_t* size) {
  *size = 1;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetPTX(nvrtcProgram, char* ptx) {
  *ptx = '\0';
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, std::size_t* size) {
  *size = of(program).object.size();
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* cubin) {
  const std::string& object = of(program).object;
  std::copy(object.begin(), object.end(), cubin);
  return NVRTC_SUCCESS;
}

}  // extern "C"

}  // namespace attn::cuda
