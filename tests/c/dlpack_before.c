// DLPack's header before attn's: a tensor of the library is a DLTensor.
#include <dlpack/dlpack.h>
// After it.
#include <attn/attn.h>
#include <stdio.h>

int main(void) {
  float x[] = {1, 2, 3, 4}, o[4] = {0};
  int64_t shape[] = {1, 1, 1, 4};
  DLTensor in = {.data = x, .ndim = 4, .shape = shape};
  in.device = (DLDevice){kDLCPU, 0};
  in.dtype = (DLDataType){kDLFloat, 32, 1};
  DLTensor out = in;
  out.data = o;
  const attn_inputs inputs = {.struct_size = sizeof inputs, .q = &in, .k = &in, .v = &in};
  const attn_outputs outputs = {.struct_size = sizeof outputs, .o = &out};
  if (attn_forward(NULL, &inputs, &outputs, NULL, NULL) != ATTN_OK) {
    printf("%s\n", attn_last_error());
    return 1;
  }
  for (int i = 0; i < 4; ++i) {  // of one key
    if (o[i] != x[i]) return 1;
  }
  return 0;
}
