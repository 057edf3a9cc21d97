// A compiler that accepts everything, and counts.
#include <chrono>
#include <cstring>
#include <thread>

#include "cuda/driver/nvrtc.hpp"
#include "fake_driver.hpp"

namespace attn::cuda {
namespace {

constexpr char kLog[] = "ptxas info    : Used 42 registers\n";
constexpr char kCubin[] = "cubin";

}  // namespace

extern "C" {

nvrtcResult nvrtcVersion(int* major, int* minor) {
  *major = attn_fake_driver()->nvrtc_major;
  *minor = 0;
  return NVRTC_SUCCESS;
}
const char* nvrtcGetErrorString(nvrtcResult) { return "NVRTC_ERROR_OF_TESTS"; }
nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char*, const char*, int,
                               const char* const*, const char* const*) {
  *program = reinterpret_cast<nvrtcProgram>(attn_fake_driver());
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram*) { return NVRTC_SUCCESS; }
nvrtcResult nvrtcCompileProgram(nvrtcProgram, int, const char* const*) {
  FakeDriver& fake = *attn_fake_driver();
  ++fake.compilations;
  const int at_once = ++fake.compiling;
  int most = fake.most_compiling;
  while (most < at_once && !fake.most_compiling.compare_exchange_weak(most, at_once)) continue;
  // Others that come by meanwhile find it compiling.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  // Nobody comes where kernels are compiled one after the other: that is waited for a minute.
  for (int i = 0; i < 6000 && fake.most_compiling < fake.compile_together; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  --fake.compiling;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, std::size_t* size) {
  *size = sizeof(kLog);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char* log) {
  std::memcpy(log, kLog, sizeof(kLog));
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
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, std::size_t* size) {
  *size = sizeof(kCubin);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char* cubin) {
  std::memcpy(cubin, kCubin, sizeof(kCubin));
  return NVRTC_SUCCESS;
}

}  // extern "C"

}  // namespace attn::cuda
