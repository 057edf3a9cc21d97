// As main.cpp, in C: every row of O is the mean of the values that it sees.
#include <attn/attn.h>
#include <stdio.h>

int main(void) {
  enum { kRows = 4, kDim = 8 };
  float x[kRows * kDim], v[kRows * kDim], o[kRows * kDim] = {0};
  for (int i = 0; i < kRows * kDim; ++i) x[i] = 1.0F, v[i] = (float)(i / kDim);
  int64_t shape[] = {1, kRows, 1, kDim};
  attn_tensor in = {.data = x, .device = {1, 0}, .ndim = 4, .dtype = {2, 32, 1}, .shape = shape};
  attn_tensor values = in, out = in;
  values.data = v;
  out.data = o;
  const attn_problem problem = {.struct_size = sizeof problem, .text = "causal"};
  const attn_inputs inputs = {.struct_size = sizeof inputs, .q = &in, .k = &in, .v = &values};
  const attn_outputs outputs = {.struct_size = sizeof outputs, .o = &out};
  if (attn_forward(&problem, &inputs, &outputs, NULL, NULL) != ATTN_OK) {
    printf("%s\n", attn_last_error());
    return 1;
  }
  for (int i = 0; i < kRows * kDim; ++i) {
    const float difference = o[i] - (float)(i / kDim) / 2;
    if (!(difference < 1e-6F && difference > -1e-6F)) return 1;
  }
  printf("attn %s in C: correct\n", attn_version());
  return 0;
}
