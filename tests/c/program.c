// A program in C: decoding over a padded cache with a window of this call, beside three loops in
// double; expressions, scalars and buffers by name; texts; the sizes of structures.
#include <attn/attn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The layout that other languages declare, on 64-bit systems.
_Static_assert(sizeof(void*) != 8 || sizeof(attn_tensor) == 48, "attn_tensor");
_Static_assert(sizeof(void*) != 8 || sizeof(attn_problem) == 168, "attn_problem");
_Static_assert(sizeof(void*) != 8 || sizeof(attn_executor_functions) == 32, "functions");
_Static_assert(sizeof(void*) != 8 || sizeof(attn_context) == 56, "attn_context");
_Static_assert(sizeof(void*) != 8 || sizeof(attn_machine) == 120, "attn_machine");
_Static_assert(sizeof(void*) != 8 || sizeof(attn_inputs) == 160, "attn_inputs");
_Static_assert(sizeof(void*) != 8 || sizeof(attn_outputs) == 32, "attn_outputs");
_Static_assert(sizeof(void*) != 8 || sizeof(attn_gradients) == 56, "attn_gradients");
_Static_assert(sizeof(void*) != 8 || sizeof(attn_options) == 56, "attn_options");
_Static_assert(sizeof(void*) != 8 || sizeof(attn_plan_info) == 152, "attn_plan_info");
_Static_assert(sizeof(void*) != 8 || sizeof(attn_append_inputs) == 136, "attn_append_inputs");
_Static_assert(sizeof(void*) != 8 || sizeof(attn_append_outputs) == 48, "attn_append_outputs");
_Static_assert(sizeof(void*) != 8 || sizeof(attn_append_options) == 64, "attn_append_options");
_Static_assert(sizeof(void*) != 8 || sizeof(attn_matmul_inputs) == 56, "attn_matmul_inputs");
_Static_assert(sizeof(void*) != 8 || sizeof(attn_matmul_options) == 72, "attn_matmul_options");

enum { kBatch = 3, kKeys = 40, kHeads = 4, kHeadsK = 2, kDim = 16 };
static float q[kBatch][1][kHeads][kDim], o[kBatch][1][kHeads][kDim];
static float k[kBatch][kKeys][kHeadsK][kDim], v[kBatch][kKeys][kHeadsK][kDim];
static const int32_t used[kBatch] = {40, 7, 23};
static const float slopes[kHeads] = {0.5F, 0.25F, 0.125F, 0.0625F};

#define CHECK(condition) \
  if (!(condition)) printf("line %d: %s: %s\n", __LINE__, #condition, attn_last_error()), exit(1)

static float element(unsigned i) { return (float)(i * 2654435761U >> 8) / 8388608.0F - 1.0F; }

// What problem and buffers below say.
static double expected(int b, int h, int e, int width) {
  double sum = 0, weighted = 0;
  for (int j = 0; j < used[b]; ++j) {
    const int distance = used[b] - 1 - j;
    if (distance >= width) continue;
    double score = 0;
    for (int i = 0; i < kDim; ++i) score += (double)q[b][0][h][i] * (double)k[b][j][h / 2][i];
    const double p = exp(score / 4 - (double)slopes[h] * distance);
    sum += p;
    weighted += p * (double)v[b][j][h / 2][e];
  }
  return weighted / sum;
}

int main(void) {
  unsigned i = 0;
  for (float* x = &q[0][0][0][0]; x < &q[0][0][0][0] + sizeof q / sizeof *x; ++x) *x = element(++i);
  for (float* x = &k[0][0][0][0]; x < &k[0][0][0][0] + sizeof k / sizeof *x; ++x) *x = element(++i);
  for (float* x = &v[0][0][0][0]; x < &v[0][0][0][0] + sizeof v / sizeof *x; ++x) *x = element(++i);
  memset(o, 0xff, sizeof o);

  int64_t shape_q[] = {kBatch, 1, kHeads, kDim}, shape_k[] = {kBatch, kKeys, kHeadsK, kDim};
  int64_t shape_used[] = {kBatch}, shape_slopes[] = {kHeads};
  int32_t width = 1000;
  attn_tensor of_q = {.data = q, .device = {1, 0}, .ndim = 4, .dtype = {2, 32, 1}};
  of_q.shape = shape_q;
  attn_tensor of_k = of_q, of_o = of_q, of_slopes = of_q, of_used = of_q, of_width = of_q;
  of_k.data = k, of_k.shape = shape_k;
  attn_tensor of_v = of_k;
  of_v.data = v, of_o.data = o;
  of_used.data = (void*)used, of_used.ndim = 1, of_used.shape = shape_used;
  of_used.dtype = (attn_dtype){0, 32, 1};
  of_slopes.data = NULL, of_slopes.ndim = 1, of_slopes.shape = shape_slopes;
  of_width.data = &width, of_width.ndim = 0, of_width.shape = NULL, of_width.dtype = of_used.dtype;

  const attn_named_tensor declared[] = {{"slopes", &of_slopes}, {"width", &of_width}};
  attn_expr *mask = NULL, *score = NULL, *none = NULL;
  CHECK(attn_expr_parse("key <= position && position - key < width", declared, 2, &mask) ==
        ATTN_OK);
  CHECK(attn_expr_parse("score - slopes[head] * to_float(position - key)", declared, 2, &score) ==
        0);
  CHECK(attn_expr_parse("key <", declared, 2, &none) == ATTN_INVALID_ARGUMENT && none == NULL);
  CHECK(strlen(attn_last_error()) > 10);

  char text[100];
  size_t length = 0;
  CHECK(attn_expr_text(mask, NULL, 0, &length) == ATTN_OK && length > 20 && length < sizeof text);
  CHECK(attn_expr_text(mask, text, sizeof text, NULL) == ATTN_OK && strlen(text) == length);
  CHECK(attn_expr_text(mask, text, 6, &length) == ATTN_OK && strlen(text) == 5);
  CHECK(attn_expr_text(mask, NULL, 6, &length) == ATTN_INVALID_ARGUMENT);

  const attn_problem problem = {.struct_size = sizeof problem, .mask = mask, .score = score};
  const attn_tensor with_slopes = {.data = (void*)slopes,
                                   .device = {1, 0},
                                   .ndim = 1,
                                   .dtype = {2, 32, 1},
                                   .shape = shape_slopes};
  const attn_named_tensor bound[] = {{"slopes", &with_slopes}, {"width", &of_width}};
  const attn_inputs inputs = {.struct_size = sizeof inputs,
                              .q = &of_q,
                              .k = &of_k,
                              .v = &of_v,
                              .seqused_k = &of_used,
                              .buffers = bound,
                              .num_buffers = 2};
  const attn_outputs outputs = {.struct_size = sizeof outputs, .o = &of_o};
  attn_plan* plan = NULL;
  CHECK(attn_plan_make(&problem, ATTN_FORWARD, &inputs, NULL, NULL, &plan) == ATTN_OK);
  attn_expr_free(mask), attn_expr_free(score), attn_expr_free(NULL);
  attn_plan_info info = {.struct_size = sizeof info};
  CHECK(attn_plan_get(plan, &info) == ATTN_OK && info.struct_size == sizeof info);
  CHECK(info.batch == kBatch && info.seqlen_k == kKeys && info.heads_k == kHeadsK);
  CHECK(strcmp(info.backend, "cpu") == 0 && strcmp(info.kernel, "") == 0);
  CHECK(info.device.device_type == 1 && info.tasks > 0);

  for (width = 4; width <= 64; width *= 4) {
    CHECK(attn_run_forward(plan, &inputs, &outputs, NULL) == ATTN_OK);
    for (int b = 0; b < kBatch; ++b) {
      for (int h = 0; h < kHeads; ++h) {
        for (int e = 0; e < kDim; ++e) {
          CHECK(fabs((double)o[b][0][h][e] - expected(b, h, e, width)) < 1e-6);
        }
      }
    }
  }
  attn_plan_free(plan), attn_plan_free(NULL);

  attn_machine machine = {.struct_size = sizeof machine};
  CHECK(attn_describe_machine(&machine) == ATTN_OK && machine.cpus > 0 && strlen(machine.isa) > 3);
  CHECK(strcmp(attn_version(), ATTN_VERSION_STRING) == 0);
  printf("correct on %s, %s\n", machine.cpu, machine.isa);
  return 0;
}
