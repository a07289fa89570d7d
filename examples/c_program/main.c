// A program around a tuned layer, out = relu(x . w^T + bias), checked against plain loops.
//
//   program [ROWS]...

#include <math.h>
#include <shapewright/layer.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 256, K = 128, LINE = 64 };

static float *floats(int64_t count) {
  size_t bytes = ((size_t)count * sizeof(float) / LINE + 1) * LINE;
  float *memory = aligned_alloc(LINE, bytes);
  if (!memory) exit(2);
  for (int64_t i = 0; i < count; i++) memory[i] = (float)(i * 7919 % 1999) / 1000.0f - 1.0f;
  return memory;
}

static double largest_difference(const float *x, const float *w, const float *bias, const float *out, int64_t rows) {
  double worst = 0;
  for (int64_t m = 0; m < rows; m++) {
    for (int64_t n = 0; n < N; n++) {
      double sum = bias[n];
      for (int64_t k = 0; k < K; k++) sum += (double)x[m * K + k] * w[n * K + k];
      worst = fmax(worst, fabs(fmax(sum, 0) - out[m * N + n]));
    }
  }
  return worst;
}

// Returns 0 if every element is right.
static int run(const float *w, const void *packed, const float *bias, int64_t rows) {
  float *x = floats(rows * K), *out = floats(rows * N);
  if (shapewright_layer(x, packed, bias, out, rows) != SHAPEWRIGHT_OK) {
    fprintf(stderr, "%s\n", shapewright_layer_error());
    exit(2);
  }
  double worst = largest_difference(x, w, bias, out, rows);
  printf("%lld rows: largest difference %.1e\n", (long long)rows, worst);
  free(x);
  free(out);
  return worst > 1e-4;
}

int main(int count, char **texts) {
  float *w = floats((int64_t)N * K), *bias = floats(N);
  // Once, whatever the number of rows.
  void *packed = aligned_alloc(LINE, (shapewright_layer_packed_w_bytes() / LINE + 1) * LINE);
  if (!packed || shapewright_layer_pack_w(w, packed) != SHAPEWRIGHT_OK) return 2;
  int wrong = 0;
  for (int i = 1; i < count; i++) wrong |= run(w, packed, bias, strtoll(texts[i], NULL, 10));
  if (count == 1) wrong = run(w, packed, bias, 37);
  free(w);
  free(bias);
  free(packed);
  return wrong;
}
