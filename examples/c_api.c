// The C interface (docs/c.md): causal attention with capped scores, beside its definition in fp64.
#include <attn/attn.h>
#include <math.h>
#include <stdio.h>

enum { kSize = 512 * 4 * 64 };
static float q[kSize], o[kSize], expected[kSize];

static int failed(attn_status status) {
  if (status) fprintf(stderr, "%s: %s\n", attn_status_name(status), attn_last_error());
  return status != ATTN_OK;
}

int main(void) {
  for (int i = 0; i < kSize; ++i) q[i] = sinf((float)i);
  int64_t shape[] = {1, 512, 4, 64};  // batch, seqlen, heads, head_dim
  const attn_tensor in = {.data = q,
                          .device = {1, 0},  // the CPU
                          .ndim = 4,
                          .dtype = {2, 32, 1},  // f32
                          .shape = shape};
  attn_tensor out = in;
  out.data = o;
  const attn_problem problem = {.struct_size = sizeof problem, .text = "causal_softcap30"};
  const attn_inputs inputs = {.struct_size = sizeof inputs, .q = &in, .k = &in, .v = &in};
  const attn_outputs outputs = {.struct_size = sizeof outputs, .o = &out};
  attn_plan* plan = NULL;
  if (failed(attn_plan_make(&problem, ATTN_FORWARD, &inputs, NULL, NULL, &plan))) return 1;
  if (failed(attn_run_forward(plan, &inputs, &outputs, NULL))) return 1;
  attn_plan_free(plan);

  out.data = expected;
  const attn_options reference = {.struct_size = sizeof reference, .backend = "reference"};
  if (failed(attn_forward(&problem, &inputs, &outputs, &reference, NULL))) return 1;
  float error = 0;
  for (int i = 0; i < kSize; ++i) error = fmaxf(error, fabsf(o[i] - expected[i]));
  printf("attn %s, largest difference from fp64: %g\n", attn_version(), (double)error);
  return error < 1e-5F ? 0 : 1;
}
